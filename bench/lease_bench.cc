// What the leases of one rank of P cost: a step in which nothing happens, a heartbeat, a grant with
// its end, by the number of live leases.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/rounds.h"
#include "kvlease/base/check.h"
#include "kvlease/base/hex.h"
#include "kvlease/base/prng.h"
#include "kvlease/connector/worker_connector.h"
#include "kvlease/core/lease_table.h"
#include "kvlease/fabric/network.h"
#include "kvlease/wire/notification.h"

namespace kvlease {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint32_t kWordHigh = 7;
constexpr std::size_t kHeartbeatIds = 1024;

// As long as the ids of vLLM's API server: 54 bytes.
LeaseId lease_id(std::uint64_t number) {
  return LeaseId("chatcmpl-" + to_hex(mix64(number)) + to_hex(number) + "--00-0badcafe");
}

LeaseGrant make_grant(const LeaseEntries& entries, LeaseId id, SlotId slot) {
  return {.id = std::move(id),
          .slot = slot,
          .word = entries.word(slot),
          .remaining = seconds(30),
          .extension = seconds(20)};
}

SlotId slot(std::size_t number) { return SlotId(static_cast<std::uint32_t>(number)); }

// A rank with live leases, as an engine drives it.
class IdleRank {
 public:
  explicit IdleRank(std::size_t live)
      : entries_(live + 2),
        landing_(2),
        blocks_(64),
        network_(fabric::NetworkConfig{}),
        transport_(network_.make_agent(AgentName("p/0/00000000000000aa.0"))),
        worker_({.word_high = kWordHigh}, *transport_,
                {.regions = {{.base_address = reinterpret_cast<std::uint64_t>(blocks_.data()),
                              .block_len_bytes = blocks_.size()}},
                 .num_blocks = 1,
                 .entries = entries_,
                 .landing = landing_}) {
    KVL_CHECK(worker_.register_kv_caches().has_value(), "the fabric takes any memory");
    ConnectorMetadata metadata;
    const LeaseEntries words(entries_, kWordHigh);
    for (std::size_t i = 1; i <= live; ++i) {
      metadata.reqs_to_send.push_back(make_grant(words, lease_id(i), slot(i)));
    }
    worker_.start_load_kv(metadata, kTimeZero);
    KVL_CHECK(worker_.leases().live() == live, "every lease is live");
  }

  void idle_steps(std::size_t times) {
    const Instant now = kTimeZero + seconds(1);
    const ConnectorMetadata nothing;
    for (std::size_t i = 0; i < times; ++i) {
      worker_.begin_turn(now, now);
      worker_.start_load_kv(nothing, now);
      KVL_CHECK(worker_.get_finished(now).empty(), "nothing happens in an idle step");
      KVL_CHECK(worker_.next_deadline(now) > now, "nothing is due after it");
    }
  }

 private:
  std::vector<LeaseEntry> entries_;
  std::vector<LeaseEntry> landing_;
  std::vector<std::byte> blocks_;
  fabric::Network network_;
  std::unique_ptr<Transport> transport_;
  WorkerConnector worker_;
};

// The table of one rank, and the heartbeats that name each of its leases once.
class Leases {
 public:
  explicit Leases(std::size_t live)
      : memory_(live + 2), entries_(memory_, kWordHigh), table_(LeaseTableLimits{}, entries_) {
    std::vector<LeaseId> ids;
    for (std::size_t i = 1; i <= live; ++i) {
      ids.push_back(lease_id(i));
      table_.grant(make_grant(entries_, ids.back(), slot(i)), kTimeZero);
    }
    // As the leases of many readers come in: not in the order of the grants.
    std::ranges::sort(ids, {}, [](const LeaseId& id) { return mix64(std::hash<LeaseId>{}(id)); });
    for (std::span<const LeaseId> left = ids; !left.empty();) {
      const auto named = left.first(std::min(left.size(), kHeartbeatIds));
      heartbeats_.push_back(encode_heartbeat(named, SIZE_MAX).front());
      left = left.subspan(named.size());
    }
  }

  // Takes in all heartbeats, at a later time each time, so that every id raises its deadline.
  void renew_all(std::size_t times) {
    for (std::size_t i = 0; i < times; ++i) {
      now_ += milliseconds(1);
      for (const Bytes& heartbeat : heartbeats_) {
        const ParsedNotif parsed = parse_notif(heartbeat, heartbeat.size());
        table_.renew(std::get<HeartbeatNotif>(parsed).ids, reader_, now_);
      }
    }
    KVL_CHECK(table_.counters().value(Counter::kHeartbeatUnknown) == 0, "every id is live");
  }

  // A grant, and the message of its reader that ends it.
  void grant_and_free(std::size_t times) {
    const LeaseId id = lease_id(0);
    const Bytes message = encode_completion(id, 1);
    for (std::size_t i = 0; i < times; ++i) {
      table_.grant(make_grant(entries_, id, slot(memory_.size() - 1)), now_);
      const ParsedNotif parsed = parse_notif(message, message.size());
      const auto& completion = std::get<CompletionNotif>(parsed);
      table_.complete({.id = completion.id, .readers_expected = completion.readers_expected},
                      reader_, now_);
      KVL_CHECK(table_.take_ended().size() == 1, "its reader ended it");
    }
  }

 private:
  std::vector<LeaseEntry> memory_;
  LeaseEntries entries_;
  LeaseTable table_;
  std::vector<Bytes> heartbeats_;
  const AgentName reader_ = AgentName("decoder/0/00000000000000aa.0");
  Instant now_ = kTimeZero + seconds(15);
};

// The one of this size, made when first asked for.
template <typename World>
World& world(std::size_t size) {
  static std::map<std::size_t, World> worlds;
  return worlds.try_emplace(size, size).first->second;
}

}  // namespace
}  // namespace kvlease

int main() {
  using namespace kvlease;
  return answer_rounds({
      {"idle_step", [](auto live, auto times) { world<IdleRank>(live).idle_steps(times); }},
      {"renew_all", [](auto live, auto times) { world<Leases>(live).renew_all(times); }},
      {"grant_and_free", [](auto live, auto times) { world<Leases>(live).grant_and_free(times); }},
  });
}
