// The table of a routed request: the snapshot, and what must hold of every row.
#include "kvlease/route/routed_request.h"

#include <gtest/gtest.h>

#include <set>
#include <string_view>
#include <utility>

namespace kvlease {
namespace {

using enum RoutedState;
using enum RoutedAction;

constexpr std::string_view kSnapshot = R"(prefilling prefilled -> decoding: start_decode
prefilling prefilled_without_handoff -> decoding_alone: start_decode_alone
prefilling prefill_busy -> prefilling: start_prefill
prefilling prefill_refused -> ended: answer_refusal
prefilling prefill_failed -> decoding_alone: start_decode_alone
prefilling decode_answered -> illegal
prefilling decode_refused -> illegal
prefilling decode_failed -> illegal
prefilling decode_ended -> illegal
prefilling lease_live -> illegal
prefilling lease_gone -> illegal
prefilling client_gone -> ended: cancel
prefilling_again prefilled -> decoding_again: start_decode
prefilling_again prefilled_without_handoff -> decoding_alone_again: start_decode_alone
prefilling_again prefill_busy -> prefilling_again: start_prefill
prefilling_again prefill_refused -> ended: answer_refusal
prefilling_again prefill_failed -> decoding_alone_again: start_decode_alone
prefilling_again decode_answered -> illegal
prefilling_again decode_refused -> illegal
prefilling_again decode_failed -> illegal
prefilling_again decode_ended -> illegal
prefilling_again lease_live -> illegal
prefilling_again lease_gone -> illegal
prefilling_again client_gone -> ended: cancel
decoding prefilled -> illegal
decoding prefilled_without_handoff -> illegal
decoding prefill_busy -> illegal
decoding prefill_refused -> illegal
decoding prefill_failed -> illegal
decoding decode_answered -> passing: pass_head, release_if_router
decoding decode_refused -> passing: pass_head, release
decoding decode_failed -> checking: check_lease
decoding decode_ended -> illegal
decoding lease_live -> illegal
decoding lease_gone -> illegal
decoding client_gone -> ended: cancel, release
checking prefilled -> illegal
checking prefilled_without_handoff -> illegal
checking prefill_busy -> illegal
checking prefill_refused -> illegal
checking prefill_failed -> illegal
checking decode_answered -> illegal
checking decode_refused -> illegal
checking decode_failed -> illegal
checking decode_ended -> illegal
checking lease_live -> decoding_again: start_decode
checking lease_gone -> prefilling_again: start_prefill, forget
checking client_gone -> ended: cancel, release
decoding_again prefilled -> illegal
decoding_again prefilled_without_handoff -> illegal
decoding_again prefill_busy -> illegal
decoding_again prefill_refused -> illegal
decoding_again prefill_failed -> illegal
decoding_again decode_answered -> passing: pass_head, release_if_router
decoding_again decode_refused -> passing: pass_head, release
decoding_again decode_failed -> ended: fail, release
decoding_again decode_ended -> illegal
decoding_again lease_live -> illegal
decoding_again lease_gone -> illegal
decoding_again client_gone -> ended: cancel, release
decoding_alone prefilled -> illegal
decoding_alone prefilled_without_handoff -> illegal
decoding_alone prefill_busy -> illegal
decoding_alone prefill_refused -> illegal
decoding_alone prefill_failed -> illegal
decoding_alone decode_answered -> passing: pass_head
decoding_alone decode_refused -> passing: pass_head
decoding_alone decode_failed -> prefilling_again: start_prefill
decoding_alone decode_ended -> illegal
decoding_alone lease_live -> illegal
decoding_alone lease_gone -> illegal
decoding_alone client_gone -> ended: cancel
decoding_alone_again prefilled -> illegal
decoding_alone_again prefilled_without_handoff -> illegal
decoding_alone_again prefill_busy -> illegal
decoding_alone_again prefill_refused -> illegal
decoding_alone_again prefill_failed -> illegal
decoding_alone_again decode_answered -> passing: pass_head
decoding_alone_again decode_refused -> passing: pass_head
decoding_alone_again decode_failed -> ended: fail
decoding_alone_again decode_ended -> illegal
decoding_alone_again lease_live -> illegal
decoding_alone_again lease_gone -> illegal
decoding_alone_again client_gone -> ended: cancel
passing prefilled -> illegal
passing prefilled_without_handoff -> illegal
passing prefill_busy -> illegal
passing prefill_refused -> illegal
passing prefill_failed -> illegal
passing decode_answered -> illegal
passing decode_refused -> illegal
passing decode_failed -> ended: cut
passing decode_ended -> ended: finish
passing lease_live -> illegal
passing lease_gone -> illegal
passing client_gone -> ended: cancel
ended prefilled -> illegal
ended prefilled_without_handoff -> illegal
ended prefill_busy -> illegal
ended prefill_refused -> illegal
ended prefill_failed -> illegal
ended decode_answered -> illegal
ended decode_refused -> illegal
ended decode_failed -> illegal
ended decode_ended -> illegal
ended lease_live -> illegal
ended lease_gone -> illegal
ended client_gone -> illegal
)";

TEST(RoutedRequestTest, SnapshotOfEveryStateAndEvent) {
  EXPECT_EQ(describe_routed_transitions(), kSnapshot);
}

TEST(RoutedRequestTest, NoPairHasTwoRows) {
  std::set<std::pair<RoutedState, RoutedEvent>> pairs;
  for (const auto& row : routed_transitions()) {
    EXPECT_TRUE(pairs.emplace(row.from, row.on).second)
        << routed_state_name(row.from) << ' ' << routed_event_name(row.on);
  }
}

bool has_lease(RoutedState state) {
  return state == kDecoding || state == kChecking || state == kDecodingAgain;
}

// L10, L33: whoever leaves a state with a lease for one without says who ends the lease; nothing is
// released where there is none.
TEST(RoutedRequestTest, EveryLeaseIsEnded) {
  for (const auto& row : routed_transitions()) {
    EXPECT_EQ(row.lease != LeaseAction::kNone, has_lease(row.from) && !has_lease(row.to))
        << routed_state_name(row.from) << ' ' << routed_event_name(row.on);
  }
}

// A client that goes away ends every state, and only a whole answer of D ends well.
TEST(RoutedRequestTest, ClientMayGoAtEveryStage) {
  for (const RoutedState state : {kPrefilling, kPrefillingAgain, kDecoding, kChecking,
                                  kDecodingAgain, kDecodingAlone, kDecodingAloneAgain, kPassing}) {
    const RoutedTransition* row = find_routed_transition(state, RoutedEvent::kClientGone);
    ASSERT_NE(row, nullptr) << routed_state_name(state);
    EXPECT_EQ(row->to, kEnded);
    EXPECT_EQ(row->action, kCancel);
  }
  for (const auto& row : routed_transitions()) {
    EXPECT_EQ(row.action == kFinish, row.on == RoutedEvent::kDecodeEnded);
  }
}

// One decoder is lost at most, and none may be once the client has seen a byte.
TEST(RoutedRequestTest, BeginsAgainOnceAndOnlyBeforeTheFirstByte) {
  for (const auto& row : routed_transitions()) {
    SCOPED_TRACE(std::string(routed_state_name(row.from)) + ' ' +
                 std::string(routed_event_name(row.on)));
    EXPECT_EQ(row.action == kCut, row.from == kPassing && row.on == RoutedEvent::kDecodeFailed);
    const bool again = row.from == kDecodingAgain || row.from == kDecodingAloneAgain;
    if (row.on == RoutedEvent::kDecodeFailed && again) {
      EXPECT_EQ(row.action, kFail);
    }
    if (row.from == kPassing) {
      EXPECT_TRUE(row.to == kEnded);
    }
    const bool second = row.from == kPrefillingAgain || again;
    if (second && row.to != kEnded && row.to != kPassing) {  // there is no third attempt
      EXPECT_TRUE(row.to == kPrefillingAgain || row.to == kDecodingAgain ||
                  row.to == kDecodingAloneAgain);
    }
  }
}

// H12: the same hand-off goes to another D exactly while P knows the lease.
TEST(RoutedRequestTest, H12_AnotherDecoderGetsALiveLeaseWithoutAPrefill) {
  const RoutedTransition* lost = find_routed_transition(kDecoding, RoutedEvent::kDecodeFailed);
  ASSERT_NE(lost, nullptr);
  EXPECT_EQ(lost->to, kChecking);
  EXPECT_EQ(lost->lease, LeaseAction::kNone);
  const RoutedTransition* live = find_routed_transition(kChecking, RoutedEvent::kLeaseLive);
  ASSERT_NE(live, nullptr);
  EXPECT_EQ(live->action, kStartDecode);
  const RoutedTransition* gone = find_routed_transition(kChecking, RoutedEvent::kLeaseGone);
  ASSERT_NE(gone, nullptr);
  EXPECT_EQ(gone->action, kStartPrefill);
}

}  // namespace
}  // namespace kvlease
