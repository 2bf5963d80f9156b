// The leases of one rank of the engine that keeps the blocks (P): grant, renew, complete, end,
// expire. Pure: `now` comes in, ended leases go out by take_ended(). Each end fences the lease's
// entry before it can be seen (L23). Blocks are none of its business: see engine_leases.h. A
// message is applied whether or not its lease is due already: what came before the sweep wins (L9).
//
// The picture of one lease on one rank:
//
//   admit ─► in batch ─── grant ───► live ─── complete/end/expire ─► ended (reported once)
//              │  (early completions are kept, L8)
//              └─ forget ─► gone
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvlease/base/ids.h"
#include "kvlease/base/time.h"
#include "kvlease/core/counters.h"
#include "kvlease/core/lease.h"
#include "kvlease/core/lease_entries.h"

namespace kvlease {

struct LeaseTableLimits {
  Duration early_completion_ttl = std::chrono::seconds{60};  // L8
  std::size_t early_completions_max = 10'000;                // L8
  // Groups of readers kept for one lease; the oldest gives way to a new one (L7, L43).
  std::size_t reader_groups_max = 16;
  // Of observed leases: waits kept until they are taken, and expired ones that are remembered.
  std::size_t waits_max = 4096;
};

// One report `<id>:<n>` as parsed (L7).
struct Completion {
  std::string_view id;
  std::uint32_t readers_expected = 1;  // n, 1 … 1024
};

// What a rank knows of one live lease, for people who look (L48).
struct LeaseStatus {
  Instant expires_at;
  // The engine that renewed or reported last, or an agent's whole name that is not of our form;
  // empty: nobody yet.
  std::string reader;
  bool operator==(const LeaseStatus&) const = default;
};

class LeaseTable {
 public:
  // Requires: `entries` outlives this.
  LeaseTable(const LeaseTableLimits& limits, LeaseEntries& entries);
  ~LeaseTable();
  LeaseTable(const LeaseTable&) = delete;
  LeaseTable& operator=(const LeaseTable&) = delete;

  // Notes a request of the current batch that may be granted a lease, so that a completion that
  // comes before the grant is kept (L8). Requires: the id is neither in batch nor live.
  void admit(const LeaseId& id);

  // Drops a request that ended without a grant (L34), with its early completions. Not an error when
  // it was never admitted. Requires: not live.
  void forget(const LeaseId& id);

  // Makes a lease live until now + grant.remaining (saturating) and applies early completions (L1,
  // L8). When the entry's word is not the granted one the copy ends at once, `recalled` with
  // slot_mismatch set, and the entry stays as it is: its word already refuses the reader (L23).
  // Requires: the id is not live; it need not have been admitted.
  void grant(const LeaseGrant& grant, Instant now);

  // Renews every live lease named: expires_at = max(expires_at, now + its extension), never
  // shortened (L2, L14); counts in its entry (L22). Unknown ids are counted and change nothing
  // (L5). One call is one heartbeat message. O(ids).
  void renew(std::span<const std::string_view> ids, Instant now);
  // The same for a heartbeat whose sender is known: the leases' readers are seen in status().
  void renew(std::span<const std::string_view> ids, const AgentName& sender, Instant now);

  // Counts one report of `sender`, grouped by reader; ends the lease as `completed` when one group
  // is full (L7). Kept when the id is in batch (L8). Unknown ids are counted (L5).
  void complete(const Completion& completion, const AgentName& sender, Instant now);

  // Ends a live lease on the scheduler's order (L10, L6). Not an error when it has ended already.
  void end(const LeaseId& id, LeaseEnd end, Instant now);

  // Ends every lease with now >= expires_at (L3, L4); also drops early completions that are too old
  // (L8). One comparison when nothing is due.
  void sweep(Instant now);

  // When to sweep next; kNever when nothing can fall due. Never later than the earliest deadline,
  // and after a sweep always later than its `now`: it may lie before the earliest deadline (after
  // renewals), then the sweep at it ends nothing and raises it. O(1).
  Instant next_deadline() const;

  // Takes the copies that have ended since the last call, in order of their ends.
  std::vector<LeaseEnded> take_ended();

  // Takes the waits for signs of observed leases' readers that ended since the last call: the first
  // of every lease, later ones longer than half of its extension, and late ones.
  std::vector<LeaseWait> take_waits();
  bool has_waits() const;

  std::size_t live() const;
  std::size_t in_batch() const;
  std::optional<Instant> expires_at(const LeaseId& id) const;
  // nullopt: not live here.
  std::optional<LeaseStatus> status(const LeaseId& id) const;
  const Counters& counters() const;

  // Records that sweeps have looked at since the start: their work, free of any clock.
  std::uint64_t records_scanned() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvlease
