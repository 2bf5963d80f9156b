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
prefilling prefill_refused -> ended: answer_refusal
prefilling prefill_failed -> decoding_alone: start_decode_alone
prefilling decode_answered -> illegal
prefilling decode_refused -> illegal
prefilling decode_failed -> illegal
prefilling decode_ended -> illegal
prefilling client_gone -> ended: cancel
prefilling_again prefilled -> decoding_again: start_decode
prefilling_again prefilled_without_handoff -> decoding_alone_again: start_decode_alone
prefilling_again prefill_refused -> ended: answer_refusal
prefilling_again prefill_failed -> decoding_alone_again: start_decode_alone
prefilling_again decode_answered -> illegal
prefilling_again decode_refused -> illegal
prefilling_again decode_failed -> illegal
prefilling_again decode_ended -> illegal
prefilling_again client_gone -> ended: cancel
decoding prefilled -> illegal
decoding prefilled_without_handoff -> illegal
decoding prefill_refused -> illegal
decoding prefill_failed -> illegal
decoding decode_answered -> streaming: pass_head
decoding decode_refused -> passing: pass_head, release
decoding decode_failed -> prefilling_again: start_prefill, release
decoding decode_ended -> illegal
decoding client_gone -> ended: cancel, release
decoding_again prefilled -> illegal
decoding_again prefilled_without_handoff -> illegal
decoding_again prefill_refused -> illegal
decoding_again prefill_failed -> illegal
decoding_again decode_answered -> streaming: pass_head
decoding_again decode_refused -> passing: pass_head, release
decoding_again decode_failed -> ended: fail, release
decoding_again decode_ended -> illegal
decoding_again client_gone -> ended: cancel, release
decoding_alone prefilled -> illegal
decoding_alone prefilled_without_handoff -> illegal
decoding_alone prefill_refused -> illegal
decoding_alone prefill_failed -> illegal
decoding_alone decode_answered -> passing: pass_head
decoding_alone decode_refused -> passing: pass_head
decoding_alone decode_failed -> prefilling_again: start_prefill
decoding_alone decode_ended -> illegal
decoding_alone client_gone -> ended: cancel
decoding_alone_again prefilled -> illegal
decoding_alone_again prefilled_without_handoff -> illegal
decoding_alone_again prefill_refused -> illegal
decoding_alone_again prefill_failed -> illegal
decoding_alone_again decode_answered -> passing: pass_head
decoding_alone_again decode_refused -> passing: pass_head
decoding_alone_again decode_failed -> ended: fail
decoding_alone_again decode_ended -> illegal
decoding_alone_again client_gone -> ended: cancel
streaming prefilled -> illegal
streaming prefilled_without_handoff -> illegal
streaming prefill_refused -> illegal
streaming prefill_failed -> illegal
streaming decode_answered -> illegal
streaming decode_refused -> illegal
streaming decode_failed -> ended: cut, release
streaming decode_ended -> ended: finish, release_if_router
streaming client_gone -> ended: cancel, release
passing prefilled -> illegal
passing prefilled_without_handoff -> illegal
passing prefill_refused -> illegal
passing prefill_failed -> illegal
passing decode_answered -> illegal
passing decode_refused -> illegal
passing decode_failed -> ended: cut
passing decode_ended -> ended: finish
passing client_gone -> ended: cancel
ended prefilled -> illegal
ended prefilled_without_handoff -> illegal
ended prefill_refused -> illegal
ended prefill_failed -> illegal
ended decode_answered -> illegal
ended decode_refused -> illegal
ended decode_failed -> illegal
ended decode_ended -> illegal
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
  return state == kDecoding || state == kDecodingAgain || state == kStreaming;
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
  for (const RoutedState state : {kPrefilling, kPrefillingAgain, kDecoding, kDecodingAgain,
                                  kDecodingAlone, kDecodingAloneAgain, kStreaming, kPassing}) {
    const RoutedTransition* row = find_routed_transition(state, RoutedEvent::kClientGone);
    ASSERT_NE(row, nullptr) << routed_state_name(state);
    EXPECT_EQ(row->to, kEnded);
    EXPECT_EQ(row->action, kCancel);
  }
  for (const auto& row : routed_transitions()) {
    EXPECT_EQ(row.action == kFinish, row.on == RoutedEvent::kDecodeEnded);
  }
}

// One retry, and none once the client has seen a byte.
TEST(RoutedRequestTest, RetriesOnceAndOnlyBeforeTheFirstByte) {
  int retries = 0;
  for (const auto& row : routed_transitions()) {
    if (row.action == kStartPrefill) {
      ++retries;
      EXPECT_TRUE(row.from == kDecoding || row.from == kDecodingAlone);
      EXPECT_EQ(row.to, kPrefillingAgain);
    }
    if (row.action == kCut) {
      EXPECT_TRUE(row.from == kStreaming || row.from == kPassing);
    }
  }
  EXPECT_EQ(retries, 2);
}

}  // namespace
}  // namespace kvlease
