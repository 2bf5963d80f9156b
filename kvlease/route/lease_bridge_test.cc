// The bridge against literal times: who is renewed when, what is given back, and what is forgotten.
#include "kvlease/route/lease_bridge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvlease {
namespace {

using namespace std::chrono_literals;
using enum BridgeCall;
using testing::ElementsAre;
using testing::IsEmpty;
using Call = LeaseBridge::Call;

constexpr Instant at(Duration since_start) { return kTimeZero + since_start; }
const LeaseId kA{"a"};
const LeaseId kB{"b"};
const LeaseId kC{"c"};

// One call per P and interval, whatever came when (L17's economy).
TEST(LeaseBridgeTest, RenewsAllLeasesOfAPTogetherOnceAnInterval) {
  LeaseBridge bridge;
  bridge.track("p1", kA, 5s, at(0s));
  bridge.track("p1", kB, 5s, at(3s));
  bridge.track("p2", kC, 2s, at(3s));
  EXPECT_THAT(bridge.take_calls(at(4s)), IsEmpty());
  EXPECT_EQ(bridge.next_deadline(), at(5s));
  EXPECT_THAT(bridge.take_calls(at(5s)),
              ElementsAre(Call{"p1", kRenew, {kA, kB}}, Call{"p2", kRenew, {kC}}));
  EXPECT_THAT(bridge.take_calls(at(20s)), IsEmpty());  // both are under way
  EXPECT_EQ(bridge.next_deadline(), kNever);
  EXPECT_EQ(bridge.on_answered({"p1", kRenew, {kA, kB}}, {}), 2u);
  EXPECT_EQ(bridge.next_deadline(), at(10s));
}

// L14: the interval of the lease that needs it most.
TEST(LeaseBridgeTest, TheSmallestIntervalCounts) {
  LeaseBridge bridge;
  bridge.track("p", kA, 5s, at(0s));
  bridge.track("p", kB, 1s, at(0s));
  for (const auto due : {1s, 2s}) {
    EXPECT_EQ(bridge.next_deadline(), at(due));
    EXPECT_THAT(bridge.take_calls(at(due)), ElementsAre(Call{"p", kRenew, {kA, kB}}));
    bridge.on_answered({"p", kRenew, {kA, kB}}, {});
  }
  bridge.forget("p", kB);
  bridge.take_calls(at(3s));
  bridge.on_answered({"p", kRenew, {kA}}, {});
  EXPECT_EQ(bridge.next_deadline(), at(8s));
}

// After D's read P does not know the lease any more: that is how it should be.
TEST(LeaseBridgeTest, WhatPDoesNotKnowIsForgotten) {
  LeaseBridge bridge;
  bridge.track("p", kA, 1s, at(0s));
  bridge.track("p", kB, 1s, at(0s));
  const auto calls = bridge.take_calls(at(1s));
  EXPECT_EQ(bridge.on_answered(calls.at(0), std::vector{kA}), 1u);
  EXPECT_EQ(bridge.tracked(), 1u);
  EXPECT_THAT(bridge.take_calls(at(2s)), ElementsAre(Call{"p", kRenew, {kB}}));
  bridge.on_answered({"p", kRenew, {kB}}, std::vector{kB});
  EXPECT_EQ(bridge.tracked(), 0u);
  EXPECT_EQ(bridge.next_deadline(), kNever);
}

TEST(LeaseBridgeTest, APThatDoesNotAnswerIsAskedAgainInTheNextInterval) {
  LeaseBridge bridge;
  bridge.track("p", kA, 1s, at(0s));
  const auto calls = bridge.take_calls(at(1s));
  EXPECT_EQ(bridge.on_failed(calls.at(0)), 0u);
  EXPECT_EQ(bridge.next_deadline(), at(2s));
  EXPECT_EQ(bridge.tracked(), 1u);
}

// L10: at once, together with what else is due, and once more where it fails.
TEST(LeaseBridgeTest, ReleasesAtOnceAndTriesTwice) {
  LeaseBridge bridge;
  bridge.track("p", kA, 5s, at(0s));
  bridge.release("p", kA);
  bridge.release("p", kB);  // was never tracked
  EXPECT_EQ(bridge.tracked(), 0u);
  EXPECT_FALSE(bridge.quiet());
  EXPECT_LE(bridge.next_deadline(), at(0s));
  const Call both{"p", kRelease, {kA, kB}};
  EXPECT_THAT(bridge.take_calls(at(0s)), ElementsAre(both));
  bridge.release("p", kC);  // waits for the one under way
  EXPECT_THAT(bridge.take_calls(at(0s)), IsEmpty());
  EXPECT_EQ(bridge.on_failed(both), 0u);
  const auto again = bridge.take_calls(at(0s));
  EXPECT_THAT(again, ElementsAre(Call{"p", kRelease, {kC, kA, kB}}));
  EXPECT_EQ(bridge.on_failed(again.at(0)), 2u);
  EXPECT_THAT(bridge.take_calls(at(0s)), ElementsAre(Call{"p", kRelease, {kC}}));
  EXPECT_EQ(bridge.on_answered({"p", kRelease, {kC}}, {}), 1u);
  EXPECT_TRUE(bridge.quiet());
  EXPECT_EQ(bridge.next_deadline(), kNever);
}

TEST(LeaseBridgeTest, ManyLeasesGoInSeveralCalls) {  // L43
  LeaseBridge bridge;
  for (std::size_t i = 0; i < kBridgeIdsMax + 1; ++i) {
    bridge.track("p", LeaseId("l" + std::to_string(i)), 1s, at(0s));
  }
  const auto calls = bridge.take_calls(at(1s));
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].leases.size() + calls[1].leases.size(), kBridgeIdsMax + 1);
  bridge.on_answered(calls[0], {});
  EXPECT_THAT(bridge.take_calls(at(2s)), IsEmpty());  // the other one is still under way
  bridge.on_answered(calls[1], {});
  EXPECT_EQ(bridge.take_calls(at(2s)).size(), 2u);
}

}  // namespace
}  // namespace kvlease
