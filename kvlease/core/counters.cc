// The names of the counters.
#include "kvlease/core/counters.h"

#include "kvlease/base/check.h"

namespace kvlease {

std::string_view counter_name(Counter counter) {
  switch (counter) {
    case Counter::kHeartbeatsReceived:
      return "heartbeats_received";
    case Counter::kLeasesRenewed:
      return "leases_renewed";
    case Counter::kHeartbeatEarly:
      return "heartbeat_early";
    case Counter::kHeartbeatExpired:
      return "heartbeat_expired";
    case Counter::kHeartbeatEnded:
      return "heartbeat_ended";
    case Counter::kHeartbeatUnknown:
      return "heartbeat_unknown";
    case Counter::kCompletionsReceived:
      return "completions_received";
    case Counter::kCompletionUnknown:
      return "completion_unknown";
    case Counter::kCompletionDuplicate:
      return "completion_duplicate";
    case Counter::kCompletionMismatch:
      return "completion_mismatch";
    case Counter::kHeartbeatHold:
      return "heartbeat_hold";
    case Counter::kCompletionEarly:
      return "completion_early";
    case Counter::kCompletionEarlyDropped:
      return "completion_early_dropped";
    case Counter::kNotifMalformed:
      return "notif_malformed";
    case Counter::kNotifEmptyId:
      return "notif_empty_id";
    case Counter::kSlotMismatch:
      return "slot_mismatch";
    case Counter::kStallGraces:
      return "stall_graces";
    case Counter::kSignsLate:
      return "signs_late";
    case Counter::kSignsForeign:
      return "signs_foreign";
    case Counter::kHeartbeatsSent:
      return "heartbeats_sent";
    case Counter::kCompletionsSent:
      return "completions_sent";
    case Counter::kSendFailures:
      return "send_failures";
    case Counter::kReadsPosted:
      return "reads_posted";
    case Counter::kReadsValidated:
      return "reads_validated";
    case Counter::kReadsRejected:
      return "reads_rejected";
    case Counter::kReadsFailed:
      return "reads_failed";
    case Counter::kReadsTimedOut:
      return "reads_timed_out";
    case Counter::kUnvalidatedReads:
      return "unvalidated_reads";
    case Counter::kProbes:
      return "probes";
    case Counter::kLeasesLost:
      return "leases_lost";
    case Counter::kHeartbeatsUnacknowledged:
      return "heartbeats_unacknowledged";
    case Counter::kHandshakesStarted:
      return "handshakes_started";
    case Counter::kHandshakesDone:
      return "handshakes_done";
    case Counter::kHandshakesFailed:
      return "handshakes_failed";
    case Counter::kPeersForgotten:
      return "peers_forgotten";
    case Counter::kPeersSuspect:
      return "peers_suspect";
    case Counter::kInvalidReferences:
      return "invalid_references";
    case Counter::kStaleReferences:
      return "stale_references";
    case Counter::kLateReports:
      return "late_reports";
    case Counter::kRefusedAdmissions:
      return "refused_admissions";
    case Counter::kHoldsNotKept:
      return "holds_not_kept";
    case Counter::kHoldsDeclined:
      return "holds_declined";
    case Counter::kHoldsTooShort:
      return "holds_too_short";
    case Counter::kFallbacks:
      return "fallbacks";
    case Counter::kEventsDropped:
      return "events_dropped";
    case Counter::kCount:
      break;
  }
  KVL_UNREACHABLE("a counter has a name");
}

}  // namespace kvlease
