// The table of a remote request: the snapshot, what must hold of every row, and the paths of the
// rules.
#include "kvlease/core/remote_request.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <optional>
#include <set>
#include <utility>

#include "kvlease/core/snapshot_testing.h"

namespace kvlease {
namespace {

using enum RemoteRequestState;
using enum RemoteRequestEvent;

constexpr std::size_t kStateCount = 9;
constexpr std::size_t kEventCount = 9;

// Where a request that enters the scheduler is after `events`; nullopt when one of them is illegal.
std::optional<RemoteRequestState> after(std::initializer_list<RemoteRequestEvent> events) {
  std::optional<RemoteRequestState> state = kWaitingForPeer;
  for (const RemoteRequestEvent event : events) {
    if (state) state = next_state(remote_request_transitions(), *state, event);
  }
  return state;
}

TEST(RemoteRequestTest, SnapshotOfEveryStateAndEvent) {
  expect_transition_snapshots("remote_request", remote_request_transitions(), kStateCount,
                              kEventCount, remote_request_state_name, remote_request_event_name);
}

TEST(RemoteRequestTest, NoPairHasTwoRows) {
  std::set<std::pair<RemoteRequestState, RemoteRequestEvent>> pairs;
  for (const auto& row : remote_request_transitions()) {
    EXPECT_TRUE(pairs.emplace(row.from, row.on).second)
        << remote_request_state_name(row.from) << ' ' << remote_request_event_name(row.on);
  }
}

// L33: a request may finish in every state but those in which it has finished.
TEST(RemoteRequestTest, RequestMayFinishWheneverItLives) {
  const std::set finished{kAbortedWaiting, kAbortedLoading, kEnded};
  for (std::size_t s = 0; s < kStateCount; ++s) {
    const auto state = static_cast<RemoteRequestState>(s);
    const auto to = next_state(remote_request_transitions(), state, kFinished);
    EXPECT_EQ(to.has_value(), !finished.contains(state)) << remote_request_state_name(state);
    EXPECT_TRUE(!to || finished.contains(*to)) << remote_request_state_name(state);
  }
}

// L24, L38: a request is loaded only by a validated read or without any.
TEST(RemoteRequestTest, OnlyValidationOrAFullHitLoads) {
  for (const auto& row : remote_request_transitions()) {
    if (row.to != kLoaded || row.from == kHitWaiting) continue;
    EXPECT_TRUE(row.on == kReadValidated || row.on == kFullHit)
        << remote_request_event_name(row.on);
  }
}

// L52: nothing is read before the reference is accepted.
TEST(RemoteRequestTest, NothingIsReadBeforeTheReferenceIsAccepted) {
  EXPECT_EQ(after({kReadPosted}), std::nullopt);
  EXPECT_EQ(after({kReferenceAccepted, kReadPosted}), kLoading);
  EXPECT_EQ(after({kReferenceAccepted, kPeerDropped, kReadPosted}), std::nullopt);
}

TEST(RemoteRequestTest, ReadThatGoesWell) {
  EXPECT_EQ(after({kReferenceAccepted, kReadPosted, kReadValidated}), kLoaded);
  EXPECT_EQ(after({kReferenceAccepted, kReadPosted, kReadValidated, kFinished}), kEnded);
}

// L16: an abort while the read runs keeps the lease until the read is final.
TEST(RemoteRequestTest, AbortWhileLoadingWaitsForTheRead) {
  EXPECT_EQ(after({kReferenceAccepted, kReadPosted, kFinished}), kAbortedLoading);
  for (const RemoteRequestEvent last : {kReadValidated, kReadFailed}) {
    EXPECT_EQ(after({kReferenceAccepted, kReadPosted, kFinished, last}), kEnded);
  }
}

// L52, L33: an abort before the handshake is done owes a release that waits with the peer.
TEST(RemoteRequestTest, AbortWhileWaitingKeepsTheReleaseForThePeer) {
  EXPECT_EQ(after({kFinished}), kAbortedWaiting);
  EXPECT_EQ(after({kFinished, kReferenceAccepted}), kEnded);
  EXPECT_EQ(after({kFinished, kReferenceRefused}), kEnded);
}

// L27: the same failure path for a refused reference, a lost lease and a failed read.
TEST(RemoteRequestTest, EveryFailureTakesThePolicy) {
  EXPECT_EQ(after({kReferenceRefused}), kFailed);
  EXPECT_EQ(after({kReferenceAccepted, kLeaseLost}), kFailed);
  EXPECT_EQ(after({kReferenceAccepted, kReadPosted, kReadFailed}), kFailed);
}

// L21: the queued requests of a suspect peer wait for its next handshake and are judged anew.
TEST(RemoteRequestTest, DroppedPeerSendsQueuedRequestsBackToWaiting) {
  EXPECT_EQ(after({kReferenceAccepted, kPeerDropped}), kWaitingForPeer);
  EXPECT_EQ(after({kReferenceAccepted, kPeerDropped, kReferenceAccepted}), kQueued);
  EXPECT_EQ(after({kReferenceAccepted, kPeerDropped, kReferenceRefused}), kFailed);
}

// L33: a full local hit is told to P at once and is loaded without a read.
TEST(RemoteRequestTest, FullHitIsLoadedWithoutARead) {
  EXPECT_EQ(after({kReferenceAccepted, kFullHit}), kLoaded);
}

// L33, L52: without a connection, too; the release then waits for one, whatever becomes of the
// request.
TEST(RemoteRequestTest, FullHitDoesNotWaitForThePeer) {
  EXPECT_EQ(after({kFullHit}), kHitWaiting);
  EXPECT_EQ(after({kFullHit, kReadPosted}), std::nullopt);
  EXPECT_EQ(after({kFullHit, kReferenceAccepted}), kLoaded);
  EXPECT_EQ(after({kFullHit, kReferenceRefused}), kLoaded);
  EXPECT_EQ(after({kFullHit, kFinished}), kAbortedWaiting);
}

// G04: only "done" means success: a failed read cannot be validated later.
TEST(RemoteRequestScenario, G04_FailedReadIsNeverLoaded) {
  EXPECT_EQ(after({kReferenceAccepted, kReadPosted, kReadFailed, kReadValidated}), std::nullopt);
}

}  // namespace
}  // namespace kvlease
