// The life of one client's request in the router, as a table of (state, event, next state, what the
// host does then, what becomes of the lease): a prefill leg to P, a decode leg to D, and D's bytes
// passed on.
//
//   prefilling ──► decoding ────────────────► passing ──► ended
//    │  ▲  │          └─ D lost: checking       ▲ ▲ (D lost: cut)
//    └──┘  │                ├─ lease live ──► decoding again, on another D
//    busy  │                └─ lease gone ──► prefilling again ──► decoding again
//          └──► decoding alone ─────────────────┘
//
// A decode leg that fails before the client saw a byte begins again, once: with the same hand-off
// on another D while P says that the lease is live (H12), else on a new pair. The states `…_again`
// are those of the second attempt. From P's answer until D's first byte the router itself keeps the
// lease alive; every way out of these states says who ends it (L10, L33).
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
  kChecking,  // D was lost; P is asked whether the lease is live
  kDecodingAgain,
  kDecodingAlone,  // D has the original body; it has not answered
  kDecodingAloneAgain,
  kPassing,  // D's answer is passed on
  kEnded,
};
enum class RoutedEvent : std::uint8_t {
  kPrefilled,                // 2xx with a hand-off
  kPrefilledWithoutHandoff,  // 2xx
  kPrefillBusy,              // 503 with Retry-After, and there is another P to ask
  kPrefillRefused,           // 4xx; 503 with Retry-After from the last P there is
  kPrefillFailed,            // 5xx or another answer, no connection, died, timeout
  kDecodeAnswered,           // the first bytes of an answer below 400
  kDecodeRefused,            // the head of a 4xx; 503 with Retry-After from the last D there is
  kDecodeFailed,             // 5xx, no connection, died, timeout
  kDecodeEnded,              // the whole answer is here
  kLeaseLive,                // P has renewed it
  kLeaseGone,                // P does not know it, or does not answer
  kClientGone,
};
enum class RoutedAction : std::uint8_t {
  kStartPrefill,      // on a new pair, or the next P
  kStartDecode,       // with the hand-off
  kStartDecodeAlone,  // with the original body
  kCheckLease,        // at P
  kAnswerRefusal,     // P's refusal is the client's answer
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
  kForget,           // it has ended
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
