// Tests of prng.h: known sequences, and that draws stay in their range and reach all of it.
#include "kvlease/base/prng.h"

#include <gtest/gtest.h>

#include <array>

namespace kvlease {
namespace {

TEST(Prng, MixIsSplitmix64) {  // its published outputs for the seed 0
  EXPECT_EQ(mix64(0), 0xe220a8397b1dcdafu);
  EXPECT_EQ(mix64(0x9e3779b97f4a7c15), 0x6e789e6aa1b965f4u);
}

TEST(Prng, TheSequenceOfASeedIsFixed) {  // computed apart, from the definition of xoshiro256**
  Prng prng(42);
  EXPECT_EQ(prng.next(), 0x5c8961e1f2055d33u);
  EXPECT_EQ(prng.next(), 0xe182e8e848466886u);
  EXPECT_EQ(prng.next(), 0x9f7313650e290a18u);
  EXPECT_EQ(prng.next(), 0xe6c0f551804ef0bbu);
  static_assert(Prng(42).next() == 0x5c8961e1f2055d33u);
}

TEST(Prng, DrawsCoverTheirRangeEvenly) {
  Prng prng(7);
  std::array<int, 6> counts{};
  for (int i = 0; i < 60'000; ++i) ++counts[prng.below(counts.size())];
  for (const int count : counts) EXPECT_NEAR(count, 10'000, 500);  // over five standard deviations
  EXPECT_EQ(prng.below(1), 0u);
  constexpr std::uint64_t kMoreThanHalf = (std::uint64_t{1} << 63) + 1;
  for (int i = 0; i < 1'000; ++i) EXPECT_LT(prng.below(kMoreThanHalf), kMoreThanHalf);
}

TEST(Prng, ChanceHoldsAtItsEnds) {
  Prng prng(7);
  for (int i = 0; i < 1'000; ++i) {
    EXPECT_FALSE(prng.chance(0, 10));
    EXPECT_TRUE(prng.chance(10, 10));
  }
}

TEST(PrngDeathTest, AnEmptyRangeIsABug) {
  Prng prng(7);
  EXPECT_DEATH(prng.below(0), "an empty range has no number");
}

}  // namespace
}  // namespace kvlease
