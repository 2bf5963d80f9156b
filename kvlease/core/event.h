// The typed events of the protocol: the only thing that metrics, logs, the demo's story and test
// snapshots are made from.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kvlease/base/ids.h"
#include "kvlease/base/time.h"

namespace kvlease {

enum class EventKind : std::uint8_t {
  // P
  kLeaseGranted,   // lease, count: blocks, length: duration
  kLeasesRenewed,  // count: ids in the heartbeat, peer: sender's engine
  kLeaseEnded,     // lease, detail: lease_end_name, count: blocks, length: held, left, silent
  kNotifRejected,  // detail: cause
  kStallGrace,     // length: of the grace
  // D
  kHandshakeStarted,  // peer, detail: host:port
  kHandshakeDone,     // peer
  kHandshakeFailed,   // peer, detail: message
  kTrackingStarted,   // request, lease, peer
  kHeartbeatSent,     // peer, count: ids, length: how late
  kReadPosted,        // request, lease, peer, count: blocks
  kReadValidated,     // request, lease, count: bytes, length: since the post, posting, descriptors
  kReadRejected,      // request, lease, detail: load_failure_name
  kCompletionSent,    // lease, peer
  kLeaseLost,         // lease, peer (probe)
  kLoadFailed,        // request, detail: load_failure_name and what follows by policy
  kPeerSuspect,       // peer, detail
  kPeerForgotten,     // peer
  kQuarantined,       // request, count: blocks
  kQuiet,             // request, count: blocks
};
std::string_view event_kind_name(EventKind kind);

// Fields that a kind does not use are empty.
struct Event {
  EventKind kind{};
  RequestId request;
  LeaseId lease;
  std::string peer;  // an engine id
  std::string detail;
  std::uint64_t count = 0;
  Duration length{};
  Duration left{};                // of a lease that ended: until its expires_at
  Duration silent{};              // of a lease that ended: since its last sign of life
  Duration posting{};             // of a read: how long the transport took to start it
  std::uint64_t descriptors = 0;  // of a read
  bool operator==(const Event&) const = default;
};

}  // namespace kvlease
