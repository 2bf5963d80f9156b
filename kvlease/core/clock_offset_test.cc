// Tests of clock_offset.h with vLLM's vectors.
#include "kvlease/core/clock_offset.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace kvlease {
namespace {

using std::chrono::seconds;

Instant at(double time) { return kTimeZero + Duration(std::llround(time * 1e9)); }

struct Sample {
  double send;
  double recv;
  double remote;
};

TEST(ClockOffset, TheSampleWithTheSmallestRoundTripCounts) {  // L40; clock_offset
  const struct {
    std::vector<Sample> samples;
    double offset;
  } rows[] = {{{{100, 100.002, 5000.001}}, 4900},
              {{{100, 100.01, 5000.005}, {101, 101.001, 5001.0006}}, 4900.0001},
              {{{101, 101.001, 5001.0006}, {100, 100.01, 5000.005}}, 4900.0001},
              {{{10, 10, 7}}, -3}};
  for (const auto& row : rows) {
    ClockOffset offset;
    for (const Sample& sample : row.samples) {
      offset.add_sample(at(sample.send), at(sample.recv), sample.remote);
    }
    EXPECT_NEAR(offset.seconds(), row.offset, 1e-9);
  }
}

TEST(ClockOffset, DeclinesWhatIsAboutToEnd) {  // L41; bidirectional_decline
  const struct {
    double now;
    double expiry;
    double offset;
    bool decline;
  } rows[] = {{100, 5010, 4900, false}, {104.9, 5010, 4900, false}, {105, 5010, 4900, true},
              {111, 5010, 4900, true},  {0, 480, 0, false},         {475, 480, 0, true},
              {474.999, 480, 0, false}};
  for (const auto& row : rows) {
    ClockOffset offset;
    offset.add_sample(kTimeZero, kTimeZero, row.offset);
    EXPECT_EQ(offset.declines(row.expiry, seconds(5), at(row.now)), row.decline) << row.now;
  }
}

// P's clock and D's differ by 1000 s; the round trip takes 0.1 s, not the same both ways.
TEST(ClockOffset, A13_AHoldIsReadByItsOwnersClock) {
  ClockOffset offset;
  offset.add_sample(at(10), at(10.1), 1010.08);
  EXPECT_NEAR(offset.seconds(), 1000, 0.05);
  EXPECT_FALSE(offset.declines(1110, seconds(5), at(100)));
  EXPECT_TRUE(offset.declines(1110, seconds(5), at(106)));
}

}  // namespace
}  // namespace kvlease
