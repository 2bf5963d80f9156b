// The system's random numbers differ and fill everything.
#include "kvlease/runtime/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

namespace kvlease {
namespace {

TEST(Random, FillsTheWholeRange) {
  std::array<std::byte, 4096> bytes{};
  fill_random(bytes);
  // A stretch of 16 zero bytes has the chance 2^-116.
  constexpr std::array<std::byte, 16> kZeros{};
  EXPECT_TRUE(std::ranges::search(bytes, kZeros).empty());
  fill_random({});
}

TEST(Random, NumbersDiffer) { EXPECT_NE(random_u64(), random_u64()); }

}  // namespace
}  // namespace kvlease
