// The table of one routed request.
#include "kvlease/route/routed_request.h"

#include "kvlease/base/check.h"

namespace kvlease {
namespace {

using enum RoutedState;
using enum RoutedEvent;
using enum RoutedAction;

constexpr LeaseAction kKeep = LeaseAction::kNone;
constexpr LeaseAction kRelease = LeaseAction::kRelease;
constexpr LeaseAction kReleaseIfRouter = LeaseAction::kReleaseIfRouter;
constexpr LeaseAction kForget = LeaseAction::kForget;

constexpr RoutedTransition kTransitions[] = {
    {kPrefilling, kPrefilled, kDecoding, kStartDecode, kKeep},
    {kPrefilling, kPrefilledWithoutHandoff, kDecodingAlone, kStartDecodeAlone, kKeep},
    {kPrefilling, kPrefillBusy, kPrefilling, kStartPrefill, kKeep},
    {kPrefilling, kPrefillRefused, kEnded, kAnswerRefusal, kKeep},
    {kPrefilling, kPrefillFailed, kDecodingAlone, kStartDecodeAlone, kKeep},
    {kPrefilling, kClientGone, kEnded, kCancel, kKeep},  // L34: P sees it hang up
    {kPrefillingAgain, kPrefilled, kDecodingAgain, kStartDecode, kKeep},
    {kPrefillingAgain, kPrefilledWithoutHandoff, kDecodingAloneAgain, kStartDecodeAlone, kKeep},
    {kPrefillingAgain, kPrefillBusy, kPrefillingAgain, kStartPrefill, kKeep},
    {kPrefillingAgain, kPrefillRefused, kEnded, kAnswerRefusal, kKeep},
    {kPrefillingAgain, kPrefillFailed, kDecodingAloneAgain, kStartDecodeAlone, kKeep},
    {kPrefillingAgain, kClientGone, kEnded, kCancel, kKeep},

    {kDecoding, kDecodeAnswered, kPassing, kPassHead, kReleaseIfRouter},  // L33: a hit, for one
    {kDecoding, kDecodeRefused, kPassing, kPassHead, kRelease},  // L33: or D never saw the params
    {kDecoding, kDecodeFailed, kChecking, kCheckLease, kKeep},
    {kDecoding, kClientGone, kEnded, kCancel, kRelease},
    {kChecking, kLeaseLive, kDecodingAgain, kStartDecode, kKeep},
    {kChecking, kLeaseGone, kPrefillingAgain, kStartPrefill, kForget},
    {kChecking, kClientGone, kEnded, kCancel, kRelease},
    {kDecodingAgain, kDecodeAnswered, kPassing, kPassHead, kReleaseIfRouter},
    {kDecodingAgain, kDecodeRefused, kPassing, kPassHead, kRelease},
    {kDecodingAgain, kDecodeFailed, kEnded, kFail, kRelease},
    {kDecodingAgain, kClientGone, kEnded, kCancel, kRelease},

    {kDecodingAlone, kDecodeAnswered, kPassing, kPassHead, kKeep},
    {kDecodingAlone, kDecodeRefused, kPassing, kPassHead, kKeep},
    {kDecodingAlone, kDecodeFailed, kPrefillingAgain, kStartPrefill, kKeep},
    {kDecodingAlone, kClientGone, kEnded, kCancel, kKeep},
    {kDecodingAloneAgain, kDecodeAnswered, kPassing, kPassHead, kKeep},
    {kDecodingAloneAgain, kDecodeRefused, kPassing, kPassHead, kKeep},
    {kDecodingAloneAgain, kDecodeFailed, kEnded, kFail, kKeep},
    {kDecodingAloneAgain, kClientGone, kEnded, kCancel, kKeep},

    {kPassing, kDecodeEnded, kEnded, kFinish, kKeep},
    {kPassing, kDecodeFailed, kEnded, kCut, kKeep},
    {kPassing, kClientGone, kEnded, kCancel, kKeep},
};

constexpr int kStateCount = 9;
constexpr int kEventCount = 12;

std::string_view routed_action_name(RoutedAction action) {
  switch (action) {
    case kStartPrefill:
      return "start_prefill";
    case kStartDecode:
      return "start_decode";
    case kStartDecodeAlone:
      return "start_decode_alone";
    case kCheckLease:
      return "check_lease";
    case kAnswerRefusal:
      return "answer_refusal";
    case kPassHead:
      return "pass_head";
    case kFinish:
      return "finish";
    case kCut:
      return "cut";
    case kFail:
      return "fail";
    case kCancel:
      return "cancel";
  }
  KVL_UNREACHABLE("every action has a name");
}

std::string_view lease_action_name(LeaseAction action) {
  switch (action) {
    case kKeep:
      return "";
    case kRelease:
      return ", release";
    case kReleaseIfRouter:
      return ", release_if_router";
    case kForget:
      return ", forget";
  }
  KVL_UNREACHABLE("every lease action has a name");
}

}  // namespace

std::string_view routed_state_name(RoutedState state) {
  switch (state) {
    case kPrefilling:
      return "prefilling";
    case kPrefillingAgain:
      return "prefilling_again";
    case kDecoding:
      return "decoding";
    case kChecking:
      return "checking";
    case kDecodingAgain:
      return "decoding_again";
    case kDecodingAlone:
      return "decoding_alone";
    case kDecodingAloneAgain:
      return "decoding_alone_again";
    case kPassing:
      return "passing";
    case kEnded:
      return "ended";
  }
  KVL_UNREACHABLE("every state of a routed request has a name");
}

std::string_view routed_event_name(RoutedEvent event) {
  switch (event) {
    case kPrefilled:
      return "prefilled";
    case kPrefilledWithoutHandoff:
      return "prefilled_without_handoff";
    case kPrefillBusy:
      return "prefill_busy";
    case kPrefillRefused:
      return "prefill_refused";
    case kPrefillFailed:
      return "prefill_failed";
    case kDecodeAnswered:
      return "decode_answered";
    case kDecodeRefused:
      return "decode_refused";
    case kDecodeFailed:
      return "decode_failed";
    case kDecodeEnded:
      return "decode_ended";
    case kLeaseLive:
      return "lease_live";
    case kLeaseGone:
      return "lease_gone";
    case kClientGone:
      return "client_gone";
  }
  KVL_UNREACHABLE("every event of a routed request has a name");
}

std::span<const RoutedTransition> routed_transitions() { return kTransitions; }

const RoutedTransition* find_routed_transition(RoutedState state, RoutedEvent event) {
  for (const RoutedTransition& row : kTransitions) {
    if (row.from == state && row.on == event) return &row;
  }
  return nullptr;
}

std::string describe_routed_transitions() {
  std::string text;
  for (int s = 0; s < kStateCount; ++s) {
    for (int e = 0; e < kEventCount; ++e) {
      const auto state = static_cast<RoutedState>(s);
      const auto event = static_cast<RoutedEvent>(e);
      const RoutedTransition* row = find_routed_transition(state, event);
      text += std::string(routed_state_name(state)) + ' ' + std::string(routed_event_name(event)) +
              " -> ";
      text += row == nullptr ? "illegal"
                             : std::string(routed_state_name(row->to)) + ": " +
                                   std::string(routed_action_name(row->action)) +
                                   std::string(lease_action_name(row->lease));
      text += '\n';
    }
  }
  return text;
}

}  // namespace kvlease
