// The life of one client's request in the router, as a table of (state, event, next state, what the
// host does then): a prefill leg to P, a decode leg to D, and D's bytes passed on.
//
//   prefilling ──► decoding ───────────► streaming ──► ended
//       │             │    └─ refused ─────┐   │
//       │             ▼                    ▼   ▼ (D lost: cut)
//       └──► decoding alone ──────────► passing ──► ended
//
// A decode leg that fails before the client saw a byte gives its lease up and begins again, once,
// on another pair: the states `…_again` are those of the second attempt. In `decoding` and
// `streaming` P has granted a lease; every way out of them says who ends it (L10, L33).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace kvlease {

enum class RoutedState : std::uint8_t {
  kPrefilling,  // P computes
  kPrefillingAgain,
  kDecoding,  // D has the hand-off; it has not answered
  kDecodingAgain,
  kDecodingAlone,  // D has the original body; it has not answered
  kDecodingAloneAgain,
  kStreaming,  // D's answer is passed on; P has granted a lease
  kPassing,    // D's answer is passed on; there is no lease to end
  kEnded,
};
enum class RoutedEvent : std::uint8_t {
  kPrefilled,                // 2xx with a hand-off
  kPrefilledWithoutHandoff,  // 2xx
  kPrefillRefused,           // 4xx
  kPrefillFailed,            // 5xx or another answer, no connection, died, timeout
  kDecodeAnswered,           // the head of an answer below 400
  kDecodeRefused,            // the head of a 4xx
  kDecodeFailed,             // 5xx, no connection, died, timeout
  kDecodeEnded,              // the whole answer is here
  kClientGone,
};
enum class RoutedAction : std::uint8_t {
  kStartPrefill,      // on a new pair
  kStartDecode,       // with the hand-off
  kStartDecodeAlone,  // with the original body
  kAnswerRefusal,     // P's 4xx is the client's answer
  kPassHead,          // D's head begins the client's answer
  kFinish,            // the client's answer is whole
  kCut,               // the client sees an incomplete answer, never a clean end
  kFail,              // 502, 503 or 504
  kCancel,            // the leg under way
};
// What becomes of the lease on P.
enum class LeaseAction : std::uint8_t {
  kNone,
  kRelease,          // nobody will read it
  kReleaseIfRouter,  // D has told P, unless `release_by` makes that the router's (L33)
};

struct RoutedTransition {
  RoutedState from;
  RoutedEvent on;
  RoutedState to;
  RoutedAction action;
  LeaseAction lease;
};

std::string_view routed_state_name(RoutedState state);
std::string_view routed_event_name(RoutedEvent event);
std::span<const RoutedTransition> routed_transitions();

// The row of a pair; nullptr when it is illegal.
const RoutedTransition* find_routed_transition(RoutedState state, RoutedEvent event);

// One line for each state × event: `state event -> state: action, lease`, or `illegal`.
std::string describe_routed_transitions();

}  // namespace kvlease
