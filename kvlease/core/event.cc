// The names of the events, as logs, traces and snapshots spell them.
#include "kvlease/core/event.h"

#include "kvlease/base/check.h"

namespace kvlease {

std::string_view event_kind_name(EventKind kind) {
  switch (kind) {
    case EventKind::kLeaseGranted:
      return "lease_granted";
    case EventKind::kLeasesRenewed:
      return "leases_renewed";
    case EventKind::kLeaseEnded:
      return "lease_ended";
    case EventKind::kNotifRejected:
      return "notif_rejected";
    case EventKind::kStallGrace:
      return "stall_grace";
    case EventKind::kHandshakeStarted:
      return "handshake_started";
    case EventKind::kHandshakeDone:
      return "handshake_done";
    case EventKind::kHandshakeFailed:
      return "handshake_failed";
    case EventKind::kTrackingStarted:
      return "tracking_started";
    case EventKind::kHeartbeatSent:
      return "heartbeat_sent";
    case EventKind::kReadPosted:
      return "read_posted";
    case EventKind::kReadValidated:
      return "read_validated";
    case EventKind::kReadRejected:
      return "read_rejected";
    case EventKind::kCompletionSent:
      return "completion_sent";
    case EventKind::kLeaseLost:
      return "lease_lost";
    case EventKind::kLoadFailed:
      return "load_failed";
    case EventKind::kPeerSuspect:
      return "peer_suspect";
    case EventKind::kPeerForgotten:
      return "peer_forgotten";
    case EventKind::kQuarantined:
      return "quarantined";
    case EventKind::kQuiet:
      return "quiet";
  }
  KVL_UNREACHABLE("every kind of event has a name");
}

}  // namespace kvlease
