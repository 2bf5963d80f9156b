// Tests the lease entries: layout, words and counts, and that a reader on another thread that
// validates by the entry never accepts bytes of the slot's next use.
#include "kvlease/core/lease_entries.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

namespace kvlease {
namespace {

constexpr std::uint32_t kHigh = 0xfeedbeef;
constexpr std::uint64_t kStart = std::uint64_t{kHigh} << 32;

TEST(LeaseEntriesTest, LayoutIsTheWires) {  // L22
  EXPECT_EQ(sizeof(LeaseEntry), 16u);
  EXPECT_EQ(alignof(LeaseEntry), 16u);
  EXPECT_EQ(offsetof(LeaseEntry, word), 0u);
  EXPECT_EQ(offsetof(LeaseEntry, renewals), 8u);
}

TEST(LeaseEntriesTest, FillsTheMemory) {  // L22
  std::vector<LeaseEntry> memory(3, LeaseEntry{.word = 7, .renewals = 9});
  const LeaseEntries entries(memory, kHigh);
  EXPECT_EQ(memory, std::vector<LeaseEntry>(3, LeaseEntry{.word = kStart, .renewals = 0}));
  EXPECT_EQ(entries.size(), 3u);
}

TEST(LeaseEntriesTest, AnEndMovesOnlyItsOwnWord) {  // L23
  std::vector<LeaseEntry> memory(3);
  LeaseEntries entries(memory, kHigh);
  entries.end(SlotId{2});
  entries.end(SlotId{2});
  EXPECT_EQ(memory[0].word, kStart);
  EXPECT_EQ(memory[1].word, kStart);
  EXPECT_EQ(memory[2].word, kStart + 2);
  EXPECT_EQ(entries.word(SlotId{2}), kStart + 2);
}

TEST(LeaseEntriesTest, RenewalsCountFromTheGrant) {  // L22
  std::vector<LeaseEntry> memory(2);
  LeaseEntries entries(memory, kHigh);
  entries.renew(kFirstLeaseSlot);
  entries.renew(kFirstLeaseSlot);
  EXPECT_EQ(entries.renewals(kFirstLeaseSlot), 2u);
  entries.begin(kFirstLeaseSlot);
  EXPECT_EQ(entries.renewals(kFirstLeaseSlot), 0u);
  EXPECT_EQ(entries.word(kFirstLeaseSlot), kStart);  // nothing is published at a grant
  entries.turn();
  entries.turn();
  EXPECT_EQ(memory[0].renewals, 2u);  // L25
  EXPECT_EQ(memory[0].word, kStart);
}

TEST(LeaseEntriesDeathTest, OurBugsAreCaught) {
  std::vector<LeaseEntry> memory(2);
  EXPECT_DEATH(LeaseEntries(memory, 0), "L22");
  EXPECT_DEATH(LeaseEntries(std::span(memory).first(1), kHigh), "one lease");
  LeaseEntries entries(memory, kHigh);
  EXPECT_DEATH(entries.word(SlotId{2}), "lies in the table");
  EXPECT_DEATH(entries.end(kRankSlot), "holds no lease");
}

// L23 against L24: P ends a use and only then overwrites the block; a reader that reads the block,
// fences and reads the word may accept only bytes of the use that the word names.
TEST(LeaseEntriesTest, AFencedReaderNeverAcceptsTheNextUse) {
  constexpr std::uint64_t kUses = 20'000;
  std::vector<LeaseEntry> memory(2);
  LeaseEntries entries(memory, kHigh);
  std::uint64_t block = 0;  // holds the number of its use
  std::atomic<bool> done = false;

  std::thread reader([&] {
    const std::atomic_ref<std::uint64_t> word(memory[1].word);
    const std::atomic_ref<std::uint64_t> bytes(block);
    while (!done.load(std::memory_order_acquire)) {
      const std::uint64_t granted = word.load(std::memory_order_relaxed);
      const std::uint64_t read = bytes.load(std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_seq_cst);
      if (word.load(std::memory_order_relaxed) == granted) {
        // Of this use or, not yet overwritten, of one before; never of a later one.
        ASSERT_LE(read, granted - kStart);
      }
    }
  });
  for (std::uint64_t use = 1; use <= kUses; ++use) {
    entries.end(kFirstLeaseSlot);
    std::atomic_ref<std::uint64_t>(block).store(use, std::memory_order_relaxed);
  }
  done.store(true, std::memory_order_release);
  reader.join();
  EXPECT_EQ(entries.word(kFirstLeaseSlot), kStart + kUses);
}

}  // namespace
}  // namespace kvlease
