// Tests the grace after a stall with literal times.
#include "kvlease/core/stall_grace.h"

#include <gtest/gtest.h>

#include "kvlease/core/lease_testing.h"

namespace kvlease {
namespace {

TEST(StallGraceTest, APunctualLoopNeverWaits) {  // L47
  StallGrace grace(kThirtySeconds);
  EXPECT_TRUE(grace.may_expire(at(0)));
  EXPECT_FALSE(grace.begin_turn(at(10), at(10)));
  EXPECT_FALSE(grace.begin_turn(at(10), at(15)));   // one interval late is not more than one
  EXPECT_FALSE(grace.begin_turn(kNever, at(1e6)));  // a message is never late
  EXPECT_TRUE(grace.may_expire(at(15)));
}

TEST(StallGraceTest, ALateTurnWaits) {  // L47: min(20 s / 4, 1 s)
  StallGrace grace(kThirtySeconds);
  EXPECT_TRUE(grace.begin_turn(at(10), at(15) + Duration{1}));
  EXPECT_EQ(grace.until(), at(16) + Duration{1});
  EXPECT_FALSE(grace.may_expire(at(15) + Duration{1}));
  EXPECT_FALSE(grace.may_expire(at(16)));
  EXPECT_TRUE(grace.may_expire(at(16) + Duration{1}));
}

TEST(StallGraceTest, AShortExtensionWaitsAQuarterOfIt) {  // L47
  StallGrace grace({.duration = secs(3), .heartbeat_interval = secs(0.5), .extension = secs(2)});
  EXPECT_TRUE(grace.begin_turn(at(10), at(11)));
  EXPECT_EQ(grace.until(), at(11.5));
}

TEST(StallGraceTest, ARunningGraceIsNeverExtended) {  // L47
  StallGrace grace(kThirtySeconds);
  EXPECT_TRUE(grace.begin_turn(at(10), at(20)));
  EXPECT_FALSE(grace.begin_turn(at(10), at(20.5)));
  EXPECT_EQ(grace.until(), at(21));
}

TEST(StallGraceTest, TheFirstTurnAfterItsEndSweepsHoweverLate) {  // L47
  StallGrace grace(kThirtySeconds);
  EXPECT_TRUE(grace.begin_turn(at(10), at(20)));
  EXPECT_FALSE(grace.begin_turn(at(21), at(500)));  // stalled again, right through the grace
  EXPECT_TRUE(grace.may_expire(at(500)));
  EXPECT_TRUE(grace.begin_turn(at(501), at(900)));  // a stall of its own
  EXPECT_FALSE(grace.may_expire(at(900)));
}

TEST(StallGraceTest, ATurnAtItsEndIsTheFirst) {  // L47
  StallGrace grace(kThirtySeconds);
  EXPECT_TRUE(grace.begin_turn(at(10), at(20)));
  EXPECT_FALSE(grace.begin_turn(at(21), at(21)));
  EXPECT_TRUE(grace.may_expire(at(21)));
  EXPECT_TRUE(grace.begin_turn(at(22), at(40)));
}

}  // namespace
}  // namespace kvlease
