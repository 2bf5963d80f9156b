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
  kLeaseEnded,     // lease, detail: lease_end_name, count: blocks, length: held
  kNotifRejected,  // detail: cause
  kStallGrace,     // length: of the grace
  // D
  kHandshakeStarted,  // peer, detail: host:port
  kHandshakeDone,     // peer
  kHandshakeFailed,   // peer, detail: message
  kTrackingStarted,   // request, lease, peer
  kHeartbeatSent,     // peer, count: ids
  kReadPosted,        // request, lease, peer, count: blocks
  kReadValidated,     // request, lease, count: bytes, length: since the post
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
  bool operator==(const Event&) const = default;
};

}  // namespace kvlease
