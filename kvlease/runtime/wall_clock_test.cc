// Tests of wall_clock.h.
#include "kvlease/runtime/wall_clock.h"

#include <gtest/gtest.h>

#include <ctime>

namespace kvlease {
namespace {

TEST(WallClock, TellsTheSecondsOfTheUnixEpoch) {
  const std::int64_t before = std::time(nullptr);
  const std::int64_t told = unix_seconds();
  EXPECT_GE(told, before - 1);  // time() may read a coarser clock
  EXPECT_LE(told, std::time(nullptr) + 1);
}

}  // namespace
}  // namespace kvlease
