// The leases of one engine (P's scheduler half): gives out slots and ids, pins blocks by counting
// them into the ledger, merges the ranks' ends into one end, and says which blocks to give back
// (L6).
//
// Life of one lease: reserve (at admission) ─► grant ─► every rank reports its end ─► taken once
// from take_ended(). When one rank's copy ends otherwise than `completed`, the ranks are ordered to
// end theirs for the same cause (L23): take_orders().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kvlease/base/ids.h"
#include "kvlease/base/prng.h"
#include "kvlease/base/result.h"
#include "kvlease/base/time.h"
#include "kvlease/core/lease.h"

namespace kvlease {

struct EngineLeasesOptions {
  std::uint32_t tp = 1;
  std::uint32_t slots = 65'536;  // entries of the table, entry 0 included (kv_lease_slots)
  std::uint32_t word_high = 0;   // as in every rank's LeaseEntries; never 0 (L22)
  std::uint64_t id_seed = 0;     // for the random suffix of ids (L45)
  // Uses after which a slot is retired, for its word counts them in 32 bits (L22).
  std::uint32_t slot_uses_max = UINT32_MAX;
};

// What a request is promised before it runs: its id on the wire and its place in the tables (L22,
// L45).
struct LeaseReservation {
  LeaseId id;
  SlotId slot;
  std::uint64_t word = 0;
  bool operator==(const LeaseReservation&) const = default;
};

// One order for every rank (L23): end this lease's copy. A rank whose copy has ended ignores it.
struct LeaseEndOrder {
  LeaseId id;
  LeaseEnd end = LeaseEnd::kReleased;
  bool operator==(const LeaseEndOrder&) const = default;
};

// The engine's one end of a lease (L6). Its blocks may be given back now.
struct EngineLeaseEnded {
  LeaseId id;
  LeaseEnd end = LeaseEnd::kExpired;  // the worst of its ranks'
  std::vector<BlockId> blocks;
  std::uint32_t readers_done = 0;  // of the rank that gave the end, the first of those that did
  std::uint32_t readers_expected = 0;
  Duration held{};      // the longest of its ranks'
  Duration left{};      // until expires_at, the least of its ranks'
  Duration silent{};    // since the last sign of life on any rank
  Duration duration{};  // as granted
  bool operator==(const EngineLeaseEnded&) const = default;
};

// granted = live + the sum of all ends, in leases and in references to blocks (L6).
struct LeaseLedger {
  std::uint64_t granted = 0;
  std::uint64_t live = 0;
  std::array<std::uint64_t, kLeaseEndCount> ended{};
  std::uint64_t granted_blocks = 0;
  std::uint64_t live_blocks = 0;
  std::array<std::uint64_t, kLeaseEndCount> ended_blocks{};
  bool operator==(const LeaseLedger&) const = default;

  bool balanced() const;
};

class EngineLeases {
 public:
  explicit EngineLeases(const EngineLeasesOptions& options);

  // Reserves a slot and makes the lease's id from the client's own (L45): bytes outside
  // [A-Za-z0-9._-] become '_', cut to 128, plus '-' and 8 random hex digits; redrawn until free.
  // Errors: kResourceExhausted when no slot is free (L22: 503).
  Result<LeaseReservation> reserve(std::string_view client_id);

  // Gives a reservation back whose request got no lease (L34). Requires: reserved, not granted.
  void cancel(const LeaseId& id);

  // Makes the reserved lease live with its blocks pinned and returns the order for the ranks (L1).
  // Requires: reserved, not granted; at least one block.
  LeaseGrant grant(const LeaseId& id, std::span<const BlockId> blocks, const LeaseTimes& times,
                   Instant now);

  // Orders every rank to end a live lease. Returns false when the id names no live lease or one
  // whose end is already ordered (L5, L10). Requires: not kCompleted, which only readers can
  // report.
  bool end(const LeaseId& id, LeaseEnd end);

  // Takes one rank's report. A report for a lease that is gone, or a second one of the same rank,
  // is ignored and returns false (L35). Requires: rank < tp.
  bool on_rank_ended(Rank rank, const LeaseEnded& ended);

  // The orders for all ranks that came up since the last call, in order; never one for a lease that
  // has ended on every rank. At most one a lease.
  std::vector<LeaseEndOrder> take_orders();

  // The leases that ended on every rank since the last call, in order. Their slots are free again,
  // except those retired by a slot_mismatch or a word at its limit (L23).
  std::vector<EngineLeaseEnded> take_ended();

  bool is_live(const LeaseId& id) const { return live_.contains(id); }
  std::size_t live() const { return live_.size(); }
  std::size_t reserved() const { return reserved_.size(); }
  std::size_t free_slots() const { return free_slots_.size(); }
  std::size_t retired_slots() const { return retired_slots_; }
  const LeaseLedger& ledger() const { return ledger_; }

  // When the oldest live lease was granted; kNever without one (L48: its age is a metric). O(live).
  Instant oldest_grant() const;

  // What the ranks have reported of one lease so far.
  struct RankEnds {
    std::vector<bool> ended;  // by rank
    std::uint32_t ranks_left = 0;
    LeaseEnded worst{.end = LeaseEnd::kCompleted};
    Duration held{};
    Duration left = kForever;
    Duration silent = kForever;
    bool slot_mismatch = false;
  };
  struct LiveLease {
    SlotId slot;
    std::uint64_t word = 0;
    std::vector<BlockId> blocks;
    LeaseTimes times{};
    Instant granted_at;
    RankEnds ranks;
    std::optional<LeaseEnd> end_ordered;
  };
  // Every live lease, in order of its id.
  const std::map<LeaseId, LiveLease>& live_leases() const { return live_; }

 private:
  using Lease = std::map<LeaseId, LiveLease>::iterator;

  std::uint64_t word(SlotId slot) const;
  void order_end(Lease lease, LeaseEnd end);
  void finish(Lease lease);

  EngineLeasesOptions options_;
  Prng prng_;
  std::map<LeaseId, SlotId> reserved_;
  std::map<LeaseId, LiveLease> live_;
  std::vector<SlotId> free_slots_;        // the next one last
  std::vector<std::uint32_t> slot_uses_;  // ended uses of each slot, the low half of its word
  std::size_t retired_slots_ = 0;
  std::vector<LeaseId> orders_;  // whose orders were not taken yet; some may have ended meanwhile
  std::vector<EngineLeaseEnded> ended_;
  LeaseLedger ledger_;
};

}  // namespace kvlease
