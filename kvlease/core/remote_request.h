// What the decode side (D) is doing with one request whose prefill is remote, as a transition table: from
// entering the scheduler to the last message about its lease (L15, L16, L27, L33).
//
//                  ┌── peer dropped ──┐
//                  ▼                  │
//           waiting for peer ──► queued ──► loading ──► loaded ──► ended
//              │        │          │  │      │    │
//              │        └► failed ◄┘  │      │    └─► failed (destination quarantined until quiet)
//              ▼                      ▼      ▼
//       aborted waiting ──────────► ended ◄─ aborted loading
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kvlease/core/transition_table.h"

namespace kvlease {

enum class RemoteRequestState : std::uint8_t {
  kWaitingForPeer,  // the handshake is under way; nothing that names the reference is sent (L52)
  kAbortedWaiting,  // finished meanwhile: its release waits with the peer for the handshake (L52)
  kQueued,          // reference checked, lease renewed, not yet scheduled
  kLoading,         // the read is under way; the lease is renewed
  kAbortedLoading,  // finished or aborted meanwhile; the read runs on and its lease is renewed (L16)
  kLoaded,          // validated on every rank; completions are sent
  kFailed,          // takes the failure policy; nothing of it came from the remote (L27)
  kEnded,           // no message about its lease is owed any more
};
enum class RemoteRequestEvent : std::uint8_t {
  kReferenceAccepted,  // handshake done, seal and digest hold
  kReferenceRefused,   // invalid, stale, or the handshake was given up
  kPeerDropped,        // the peer is suspect: judged anew after the next handshake (L21)
  kLeaseLost,          // by the probe (L25)
  kReadPosted,
  kFullHit,            // everything was here already: nothing to read (L33)
  kReadValidated,
  kReadFailed,
  kFinished,           // the request ended, for whatever reason
};
std::string_view remote_request_state_name(RemoteRequestState state);
std::string_view remote_request_event_name(RemoteRequestEvent event);
std::span<const Transition<RemoteRequestState, RemoteRequestEvent>> remote_request_transitions();

}  // namespace kvlease
