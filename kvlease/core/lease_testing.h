// What the tests of leases share: literal times, and one P rank with its entries in ordinary
// memory.
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "kvlease/base/ids.h"
#include "kvlease/base/time.h"
#include "kvlease/core/agent_name.h"
#include "kvlease/core/engine_leases.h"
#include "kvlease/core/lease.h"
#include "kvlease/core/lease_entries.h"
#include "kvlease/core/lease_table.h"

namespace kvlease {

// Seconds to a duration and to an instant of the test's clock, exact to the nanosecond.
inline Duration secs(double seconds) { return Duration{std::llround(seconds * 1e9)}; }
inline Instant at(double seconds) { return kTimeZero + secs(seconds); }

inline constexpr std::uint32_t kTestWordHigh = 0x1badd00d;
inline constexpr std::uint64_t kTestWord = std::uint64_t{kTestWordHigh} << 32;

// vLLM's defaults (L12).
inline const LeaseTimes kThirtySeconds{
    .duration = secs(30), .heartbeat_interval = secs(5), .extension = secs(20)};

inline AgentName reader_agent(std::string_view engine, std::uint32_t rank,
                              std::uint64_t incarnation = 1, std::uint32_t agent_number = 0) {
  return make_agent_name({.engine_id = engine,
                          .rank = Rank{rank},
                          .incarnation = Incarnation{incarnation},
                          .agent_number = agent_number});
}

// A P rank: table and entries.
struct TestRank {
  explicit TestRank(const LeaseTableLimits& limits = {}, std::uint32_t slots = 64)
      : memory(slots), entries(memory, kTestWordHigh), table(limits, entries) {}

  // Grants a lease on a slot of the test's choice, as its word stands.
  LeaseGrant order(const std::string& id, std::uint32_t slot, const LeaseTimes& times) const {
    return {.id = LeaseId{id},
            .slot = SlotId{slot},
            .word = entries.word(SlotId{slot}),
            .remaining = times.duration,
            .extension = times.extension};
  }
  void grant(const std::string& id, std::uint32_t slot, const LeaseTimes& times, Instant now) {
    table.grant(order(id, slot, times), now);
  }
  void renew(const std::vector<std::string_view>& ids, Instant now) { table.renew(ids, now); }
  void complete(std::string_view id, std::uint32_t readers_expected, const AgentName& sender,
                Instant now) {
    table.complete({.id = id, .readers_expected = readers_expected}, sender, now);
  }
  // Sweeps and takes what has ended.
  std::vector<LeaseEnded> sweep(Instant now) {
    table.sweep(now);
    return table.take_ended();
  }
  std::uint64_t count(Counter counter) const { return table.counters().value(counter); }

  std::vector<LeaseEntry> memory;
  LeaseEntries entries;
  LeaseTable table;
};

// A P engine: its leases and its ranks, reports and orders delivered at once.
struct TestEngine {
  explicit TestEngine(std::uint32_t tp = 1, std::uint32_t slots = 64)
      : leases({.tp = tp, .slots = slots, .word_high = kTestWordHigh, .id_seed = 1}) {
    for (std::uint32_t rank = 0; rank < tp; ++rank) ranks.emplace_back(LeaseTableLimits{}, slots);
  }

  // Admits and grants a lease of `blocks` blocks.
  LeaseId grant(std::string_view client_id, std::uint32_t blocks, const LeaseTimes& times,
                Instant now) {
    const LeaseId id = leases.reserve(client_id).value().id;
    std::vector<BlockId> block_ids;
    for (std::uint32_t i = 0; i < blocks; ++i) block_ids.push_back(BlockId{i});
    const LeaseGrant grant = leases.grant(id, block_ids, times, now);
    for (TestRank& rank : ranks) {
      rank.table.admit(id);
      rank.table.grant(grant, now);
    }
    return id;
  }

  // The end of a turn (L9): sweeps, reports, and carries out the orders.
  std::vector<EngineLeaseEnded> step(Instant now) {
    for (TestRank& rank : ranks) rank.table.sweep(now);
    report();
    for (const LeaseEndOrder& order : leases.take_orders()) {
      for (TestRank& rank : ranks) rank.table.end(order.id, order.end, now);
    }
    report();
    return leases.take_ended();
  }

  std::uint64_t ended(LeaseEnd end) const {
    return leases.ledger().ended[static_cast<std::size_t>(end)];
  }

  EngineLeases leases;
  std::deque<TestRank> ranks;

 private:
  void report() {
    for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
      for (const LeaseEnded& one : ranks[rank].table.take_ended()) {
        leases.on_rank_ended(Rank{rank}, one);
      }
    }
  }
};

// The ids of reports, in their order.
inline std::vector<std::string> ids_of(const std::vector<LeaseEnded>& ended) {
  std::vector<std::string> ids;
  for (const LeaseEnded& one : ended) ids.push_back(one.id.str());
  return ids;
}

}  // namespace kvlease
