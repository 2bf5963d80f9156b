// What the decode side (D) is doing with one request whose prefill is remote, as a transition
// table: from entering the scheduler to its end (L15, L16, L21, L27, L33, L52).
//
//   waiting for peer ──► queued ──► loading ──► loaded        (queued ── full hit ──► loaded)
//      ▲  │               │  │         │
//      │  └───► failed ◄──│──┴─────────┘
//      └── peer dropped ──┘
//
//   full hit:  waiting for peer ──► hit waiting ──► loaded      runs; the release waits
//   finished:  waiting for peer, hit waiting ──► aborted waiting ──► ended     the release waits
//              loading ───────────► aborted loading ──► ended   the read runs on
//              queued, loaded, failed ────────────────► ended
//
// Of a read that failed P is owed the release only when the read is quiet, in whatever state the
// request then is (L26, L33).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kvlease/core/transition_table.h"

namespace kvlease {

enum class RemoteRequestState : std::uint8_t {
  kWaitingForPeer,  // the handshake is under way; nothing that names the reference is sent (L52)
  kHitWaiting,      // nothing of it is needed; the request runs, the release waits (L33, L52)
  kAbortedWaiting,  // finished meanwhile; the release waits, at most handshake_timeout (L52)
  kQueued,          // reference checked, lease renewed, not yet scheduled
  kLoading,         // the read is under way; the lease is renewed
  kAbortedLoading,  // finished meanwhile; the read runs on and its lease is renewed (L16)
  kLoaded,          // all of it is here, validated on every rank or cached before; P is told
  kFailed,          // takes the failure policy; nothing of it came from the remote (L27)
  kEnded,           // the request is gone
};
enum class RemoteRequestEvent : std::uint8_t {
  kReferenceAccepted,  // handshake done, seal and digest hold
  kReferenceRefused,   // invalid, stale, the handshake was given up, or handshake_timeout
  kPeerDropped,        // its connection became suspect or stale: to be judged anew (L21, L31)
  kLeaseLost,          // by the probe (L25)
  kReadPosted,
  kFullHit,        // everything was here already: nothing to read (L33)
  kReadValidated,  // on every rank (L38)
  kReadFailed,     // on one rank or more; of an aborted request: and the read is quiet
  kFinished,       // the request ended, for whatever reason
};
std::string_view remote_request_state_name(RemoteRequestState state);
std::string_view remote_request_event_name(RemoteRequestEvent event);
std::span<const Transition<RemoteRequestState, RemoteRequestEvent>> remote_request_transitions();

}  // namespace kvlease
