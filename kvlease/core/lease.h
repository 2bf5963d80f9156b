// The vocabulary of leases that both halves of an engine and both sides of a hand-off share: how a
// lease is granted to a rank, how a rank reports its end, and the durations around it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "kvlease/base/ids.h"
#include "kvlease/base/time.h"

namespace kvlease {

// How a lease ended, best first: an engine's end is the worst of its ranks' (L6).
enum class LeaseEnd : std::uint8_t {
  kCompleted,  // every reader reported
  kReleased,   // by HTTP or by P itself (L10, L34)
  kRecalled,   // a hold that gave way (L49), or a copy taken back because another rank's was lost
  kDrained,    // cut at the drain limit (L36)
  kExpired,    // now >= expires_at (L3)
};
inline constexpr int kLeaseEndCount = 5;

// `completed`, `released`, … as in metrics and events.
std::string_view lease_end_name(LeaseEnd end);

// The durations of one lease (L12).
struct LeaseTimes {
  Duration duration;            // from the grant
  Duration heartbeat_interval;  // between D's heartbeats
  Duration extension;           // what one renewal guarantees
  bool operator==(const LeaseTimes&) const = default;
};

// What one rank saw of a lease's wait for a sign of its reader (kv_lease_adaptive).
struct LeaseWait {
  Duration needed{};  // a lease of this duration would just have outlived it
  bool late = false;  // the lease did not: it had expired
  bool operator==(const LeaseWait&) const = default;
};

// One rank's order to keep a lease: what the scheduler half sends to each rank (L1, L22, L46).
struct LeaseGrant {
  LeaseId id;
  SlotId slot;
  std::uint64_t word = 0;            // the entry's word as granted
  Duration remaining{};              // until expires_at, when the order was built
  Duration extension{};              // 0: a hold that no heartbeat renews (L39)
  Duration lifetime_max = kForever;  // never longer than this from the grant (L48)
  bool observed = false;             // its waits for its reader are reported (kv_lease_adaptive)
  bool operator==(const LeaseGrant&) const = default;
};

// One rank's report that its copy has ended and is fenced (L6, L23).
struct LeaseEnded {
  LeaseId id;
  LeaseEnd end = LeaseEnd::kExpired;
  bool slot_mismatch = false;          // the rank's word differed from the granted one (L23)
  std::uint32_t readers_done = 0;      // different ranks of the largest group that reported (L7)
  std::uint32_t readers_expected = 0;  // n of that group; 0 when nobody reported
  Duration held{};                     // since the rank took the grant
  Duration left{};    // until expires_at, 0 when it has passed; kForever when it never comes
  Duration silent{};  // since the last sign of life: the grant, or the last renewal
  bool operator==(const LeaseEnded&) const = default;
};

}  // namespace kvlease
