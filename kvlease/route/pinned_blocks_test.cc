// Shares of a P's blocks, against literal numbers.
#include "kvlease/route/pinned_blocks.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvlease {
namespace {

using Pin = PinnedBlocks::Pin;

// D1 is full at 700 of 1000 blocks: D2 goes on; at 650 D1 does as well.
TEST(PinnedBlocksTest, F14_AFullDecoderDoesNotStopP) {
  PinnedBlocks blocks(1, 2, 0.7);
  blocks.set_budget(0, 1000);
  std::vector<Pin> first;
  for (int i = 0; i < 14; ++i) {
    ASSERT_TRUE(blocks.fits(0, 0, 50)) << i;
    first.emplace_back(blocks, 0, 0, 50);
  }
  EXPECT_EQ(blocks.pinned(0, 0), 700u);
  EXPECT_FALSE(blocks.fits(0, 0, 1));
  EXPECT_TRUE(blocks.fits(0, 1, 300));
  first.pop_back();
  EXPECT_TRUE(blocks.fits(0, 0, 50));
  EXPECT_FALSE(blocks.fits(0, 0, 51));
}

TEST(PinnedBlocksTest, EveryPHasItsOwn) {
  PinnedBlocks blocks(2, 1, 0.5);
  blocks.set_budget(0, 10);
  blocks.set_budget(1, 100);
  const Pin small(blocks, 0, 0, 5);
  const Pin large(blocks, 1, 0, 5);
  EXPECT_FALSE(blocks.fits(0, 0, 1));
  EXPECT_TRUE(blocks.fits(1, 0, 45));
  EXPECT_FALSE(blocks.fits(1, 0, 46));
}

TEST(PinnedBlocksTest, WithoutABudgetOrAloneEverythingFits) {
  PinnedBlocks blocks(1, 1, 0.1);
  const Pin pin(blocks, 0, 0, 5);
  EXPECT_TRUE(blocks.fits(0, 0, 1'000'000));
  PinnedBlocks known(1, 1, 0.1);
  known.set_budget(0, 10);
  EXPECT_TRUE(known.fits(0, 0, 11));
}

TEST(PinnedBlocksTest, APinCountsOnce) {
  PinnedBlocks blocks(1, 2, 1);
  Pin pin(blocks, 0, 0, 7);
  Pin moved(std::move(pin));
  EXPECT_EQ(blocks.pinned(0, 0), 7u);
  moved = Pin(blocks, 0, 1, 9);
  EXPECT_EQ(blocks.pinned(0, 0), 0u);
  EXPECT_EQ(blocks.pinned(0, 1), 9u);
  moved = Pin();
  EXPECT_EQ(blocks.pinned(0, 1), 0u);
}

TEST(PinnedBlocksTest, EstimatesByWhatItHasSeen) {
  PinnedBlocks blocks(1, 1, 1);
  EXPECT_EQ(blocks.estimate(1000), 0u);
  blocks.learn(640, 10);
  EXPECT_EQ(blocks.estimate(640), 10u);
  EXPECT_EQ(blocks.estimate(65), 2u);
  blocks.learn(640, 26);  // one odd one weighs a sixteenth
  EXPECT_EQ(blocks.estimate(640), 11u);
}

}  // namespace
}  // namespace kvlease
