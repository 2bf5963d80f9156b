// A decorator that makes any Transport, the fabric or a real one, fail on purpose and repeatably.
//
// It acts on what its own agent sends and reads; for the other direction decorate the other agent.
// Time comes in through next_poll(), which every host asks at the end of a turn: a delay counts
// from the `now` of the turn that caused it, and what has become due goes out in next_poll(). So a
// host needs no knowledge of the decorator, and nothing here sleeps.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvlease/base/ids.h"
#include "kvlease/base/time.h"
#include "kvlease/transport/transport.h"

namespace kvlease::fabric {

// Which calls a fault strikes; none by default. Calls that break the contract are not counted.
struct Strikes {
  // By chance, `numerator` of `denominator` calls, drawn from the plan's seed.
  std::uint64_t numerator = 0;
  std::uint64_t denominator = 1;
  // And surely the `count` calls after the first `skip` ones.
  std::uint64_t skip = 0;
  std::uint64_t count = 0;

  static constexpr Strikes always() { return after(0); }
  // The n-th call, counted from 1, and no other.
  static constexpr Strikes nth(std::uint64_t n) { return {.skip = n - 1, .count = 1}; }
  // `n` calls succeed, all later ones are struck.
  static constexpr Strikes after(std::uint64_t n) { return {.skip = n, .count = UINT64_MAX}; }
};

struct PeerDeath {
  AgentName peer;
  Instant at;
};

struct FaultPlan {
  std::uint64_t seed = 0;

  Strikes refuse_notif;                 // send_notif() answers kSuspectPeer
  Strikes drop_notif;                   // accepted and lost
  std::string drop_notifs_with_prefix;  // for example "HB:"; empty: none
  Strikes duplicate_notif;              // sent twice
  Strikes delay_notif;                  // sent `notif_delay` later; the order per peer stays
  Duration notif_delay = Duration::zero();
  Strikes reorder_notif;  // overtakes those that are delayed to the same peer

  Strikes refuse_post;  // post_read() answers kSuspectPeer, nothing is started
  Strikes delay_post;   // accepted at once, but started `post_delay` later: it lands late
  Duration post_delay = Duration::zero();
  Strikes fail_read;  // kError once the real read is final, whatever has landed
  Strikes hang_read;  // in progress for ever, though its bytes land

  // No call is struck from then on; what was struck before stays so.
  Instant ends_at = kNever;

  // From `at` on calls that name the peer answer kSuspectPeer, its notifications are lost and its
  // reads end in kError, those under way once they are quiet (L26).
  std::vector<PeerDeath> peer_deaths;
};

// `inner` with the faults of `plan`. Equal plans and equal calls give equal faults.
std::unique_ptr<Transport> fault(std::unique_ptr<Transport> inner, FaultPlan plan);

}  // namespace kvlease::fabric
