// The table of one remote request on D.
#include "kvlease/core/remote_request.h"

#include "kvlease/base/check.h"

namespace kvlease {
namespace {

using enum RemoteRequestState;
using enum RemoteRequestEvent;

constexpr Transition<RemoteRequestState, RemoteRequestEvent> kTransitions[] = {
    {kWaitingForPeer, kReferenceAccepted, kQueued},  // L15, L18: renewal begins
    {kWaitingForPeer, kReferenceRefused, kFailed},   // L27
    {kWaitingForPeer, kFullHit, kHitWaiting},        // L33, L52: nobody waits but the release
    {kWaitingForPeer, kFinished, kAbortedWaiting},   // L33, L52: the release waits
    {kHitWaiting, kReferenceAccepted, kLoaded},      // L33: the release is sent
    {kHitWaiting, kReferenceRefused, kLoaded},       // L52: nothing is sent; nothing was needed
    {kHitWaiting, kFinished, kAbortedWaiting},
    {kAbortedWaiting, kReferenceAccepted, kEnded},  // L33: the release is sent
    {kAbortedWaiting, kReferenceRefused, kEnded},   // L52: nothing is sent
    {kQueued, kPeerDropped, kWaitingForPeer},       // L21, L31
    {kQueued, kLeaseLost, kFailed},                 // L25, L27
    {kQueued, kReadPosted, kLoading},               // L24
    {kQueued, kFullHit, kLoaded},                   // L33: P is told at once
    {kQueued, kFinished, kEnded},                   // L33: P is told at once
    {kLoading, kReadValidated, kLoaded},            // L24: only now P is told
    {kLoading, kReadFailed, kFailed},               // L27; the release when quiet (L26, L33)
    {kLoading, kFinished, kAbortedLoading},         // L16: renewed until the read is final
    {kAbortedLoading, kReadValidated, kEnded},      // L33
    {kAbortedLoading, kReadFailed, kEnded},         // L26, L33
    {kLoaded, kFinished, kEnded},
    {kFailed, kFinished, kEnded},
};

}  // namespace

std::string_view remote_request_state_name(RemoteRequestState state) {
  switch (state) {
    case kWaitingForPeer:
      return "waiting_for_peer";
    case kHitWaiting:
      return "hit_waiting";
    case kAbortedWaiting:
      return "aborted_waiting";
    case kQueued:
      return "queued";
    case kLoading:
      return "loading";
    case kAbortedLoading:
      return "aborted_loading";
    case kLoaded:
      return "loaded";
    case kFailed:
      return "failed";
    case kEnded:
      return "ended";
  }
  KVL_UNREACHABLE("every state of a remote request has a name");
}

std::string_view remote_request_event_name(RemoteRequestEvent event) {
  switch (event) {
    case kReferenceAccepted:
      return "reference_accepted";
    case kReferenceRefused:
      return "reference_refused";
    case kPeerDropped:
      return "peer_dropped";
    case kLeaseLost:
      return "lease_lost";
    case kReadPosted:
      return "read_posted";
    case kFullHit:
      return "full_hit";
    case kReadValidated:
      return "read_validated";
    case kReadFailed:
      return "read_failed";
    case kFinished:
      return "finished";
  }
  KVL_UNREACHABLE("every event of a remote request has a name");
}

std::span<const Transition<RemoteRequestState, RemoteRequestEvent>> remote_request_transitions() {
  return kTransitions;
}

}  // namespace kvlease
