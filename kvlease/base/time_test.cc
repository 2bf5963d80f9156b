// Tests of time.h: nothing wraps (L13; scenario A18).
#include "kvlease/base/time.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace kvlease {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

constexpr Instant at(Duration since_zero) { return kTimeZero + since_zero; }

TEST(Time, A18_AdditionSaturatesAtNever) {
  EXPECT_EQ(saturating_add(at(seconds{1}), seconds{30}), at(seconds{31}));
  EXPECT_EQ(saturating_add(at(seconds{1}), kForever), kNever);
  EXPECT_EQ(saturating_add(kNever, seconds{30}), kNever);
  EXPECT_EQ(saturating_add(kTimeZero, kForever), kNever);
  EXPECT_EQ(saturating_add(at(nanoseconds{1}), kForever - nanoseconds{1}), kNever);
  EXPECT_EQ(saturating_add(at(seconds{-1}), kForever), kNever - seconds{1});
}

TEST(Time, A18_AdditionNeverGoesBack) {
  EXPECT_TRUE(rc::check([](std::int64_t start, std::int64_t length) {
    RC_PRE(length >= 0);
    const Instant begin = at(nanoseconds{start});
    RC_ASSERT(saturating_add(begin, nanoseconds{length}) >= begin);
  }));
}

TEST(Time, RemainingIsNeverNegative) {
  EXPECT_EQ(remaining(at(seconds{31}), at(seconds{1})), seconds{30});
  EXPECT_EQ(remaining(at(seconds{1}), at(seconds{1})), Duration::zero());
  EXPECT_EQ(remaining(at(seconds{1}), at(seconds{2})), Duration::zero());
  EXPECT_EQ(remaining(kNever, at(seconds{2})), kForever);
}

TEST(Time, EarlierAndUnits) {
  EXPECT_EQ(earlier(at(seconds{1}), kNever), at(seconds{1}));
  EXPECT_EQ(earlier(at(seconds{2}), at(seconds{1})), at(seconds{1}));
  EXPECT_EQ(to_seconds(milliseconds{1'500}), 1.5);
  EXPECT_EQ(to_milliseconds(nanoseconds{1'500'000}), 1.5);
}

}  // namespace
}  // namespace kvlease
