// BlockPool against a naive model over random walks, and its states one by one.
#include "kvlease/engine/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>

#include "kvlease/base/prng.h"

namespace kvlease {
namespace {

BlockHash hash_of(std::uint64_t contents) { return {.high = contents, .low = ~contents}; }

std::vector<BlockId> allocated(BlockPool& pool, std::size_t count) {
  auto blocks = pool.allocate(count);
  KVL_CHECK(blocks.has_value(), "the test leaves room");
  return *blocks;
}

TEST(BlockPool, GivesEveryBlockOnceAndThenNone) {
  BlockPool pool(4);
  const std::vector<BlockId> blocks = allocated(pool, 4);
  EXPECT_EQ(blocks, (std::vector{BlockId(0), BlockId(1), BlockId(2), BlockId(3)}));
  EXPECT_EQ(pool.allocate(1), std::nullopt);
  EXPECT_EQ(pool.counts(), (BlockCounts{.in_use = 4, .running = 4}));
  pool.release_run_refs(blocks);
  EXPECT_EQ(pool.counts(), (BlockCounts{.free = 4}));
  EXPECT_EQ(pool.allocate(5), std::nullopt);
  EXPECT_EQ(pool.counts(), (BlockCounts{.free = 4}));
}

TEST(BlockPool, EvictsTheEndOfAPrefixBeforeItsBeginning) {
  BlockPool pool(3);
  const std::vector<BlockId> blocks = allocated(pool, 3);
  for (std::uint64_t i = 0; i < 3; ++i) pool.set_hash(blocks[i], hash_of(i));
  pool.release_run_refs(blocks);
  EXPECT_EQ(pool.counts(), (BlockCounts{.cached = 3}));
  EXPECT_EQ(allocated(pool, 1).front(), blocks[2]);
  EXPECT_EQ(pool.find(hash_of(2)), std::nullopt);
  EXPECT_EQ(pool.find(hash_of(0)), blocks[0]);
}

TEST(BlockPool, EvictsInOrderOfLastUse) {
  BlockPool pool(3);
  const std::vector<BlockId> blocks = allocated(pool, 3);
  for (std::uint64_t i = 0; i < 3; ++i) {
    pool.set_hash(blocks[i], hash_of(i));
    pool.release_run_refs(std::span(&blocks[i], 1));
  }
  pool.add_run_refs(std::span(&blocks[0], 1));  // used once more: the youngest now
  pool.release_run_refs(std::span(&blocks[0], 1));
  EXPECT_EQ(allocated(pool, 3), (std::vector{blocks[1], blocks[2], blocks[0]}));
}

// L6, L43: one running request and two leases share a block; it is pinned until the last is gone
// and counts once for the budget.
TEST(BlockPool, CountsALeasedBlockOnceAndItsReferencesEach) {
  BlockPool pool(2);
  const std::vector<BlockId> blocks = allocated(pool, 1);
  pool.lease(blocks);
  pool.lease(blocks);
  EXPECT_EQ(pool.counts(),
            (BlockCounts{.free = 1, .in_use = 1, .running = 1, .leased = 1, .lease_refs = 2}));
  pool.release_run_refs(blocks);
  pool.unlease(blocks);
  EXPECT_EQ(pool.counts(), (BlockCounts{.free = 1, .in_use = 1, .leased = 1, .lease_refs = 1}));
  EXPECT_EQ(pool.allocate(2), std::nullopt);
  pool.unlease(blocks);
  EXPECT_EQ(pool.counts(), (BlockCounts{.free = 2}));
}

// L26: nobody gets a block that a transfer may still write, not even when nothing else is left.
TEST(BlockPool, NeverHandsOutAQuarantinedBlock) {
  BlockPool pool(2);
  const std::vector<BlockId> blocks = allocated(pool, 2);
  pool.quarantine(blocks);
  EXPECT_EQ(pool.counts(), (BlockCounts{.quarantined = 2}));
  EXPECT_EQ(pool.allocate(1), std::nullopt);
  pool.release_quarantine(blocks);
  EXPECT_EQ(pool.counts(), (BlockCounts{.free = 2}));
}

TEST(BlockPool, FindsTheFirstOfTwoBlocksWithEqualContents) {
  BlockPool pool(2);
  const std::vector<BlockId> blocks = allocated(pool, 2);
  pool.set_hash(blocks[0], hash_of(7));
  pool.set_hash(blocks[1], hash_of(7));
  EXPECT_EQ(pool.find(hash_of(7)), blocks[0]);
  pool.release_run_refs(blocks);
  EXPECT_EQ(pool.counts(), (BlockCounts{.free = 1, .cached = 1}));
}

TEST(BlockPool, CountsTheLivesOfABlock) {
  BlockPool pool(1);
  for (std::uint64_t life = 1; life <= 3; ++life) {
    const std::vector<BlockId> blocks = allocated(pool, 1);
    EXPECT_EQ(pool.generation(blocks[0]), life);
    pool.release_run_refs(blocks);
  }
}

TEST(BlockHash, DependsOnEveryTokenTheirOrderTheKeysAndTheSeed) {
  const std::vector<TokenId> tokens{1, 2};
  const std::vector<TokenId> swapped{2, 1};
  const std::vector<std::string> keys{"lora"};
  const std::vector<std::string> split{"lo", "ra"};
  const BlockHash hash = extend_block_hash(root_block_hash(1, {}), tokens);
  EXPECT_EQ(hash, extend_block_hash(root_block_hash(1, {}), tokens));
  EXPECT_NE(hash, extend_block_hash(root_block_hash(1, {}), swapped));
  EXPECT_NE(hash, extend_block_hash(root_block_hash(2, {}), tokens));
  EXPECT_NE(hash, extend_block_hash(root_block_hash(1, keys), tokens));
  EXPECT_NE(root_block_hash(1, keys), root_block_hash(1, split));
  EXPECT_NE(hash, extend_block_hash(hash, tokens));
}

// The naive model of the walk: each holder keeps its list, each block is looked at.
class Walk {
 public:
  explicit Walk(std::uint64_t seed) : prng_(seed), pool_(kBlocks) {}

  void step() {
    switch (prng_.below(8)) {
      case 0:
      case 1:
        start();
        break;
      case 2:
        share_cached();
        break;
      case 3:
        name_blocks();
        break;
      case 4:
        finish();
        break;
      case 5:
        end_lease();
        break;
      case 6:
        quarantine();
        break;
      case 7:
        release_quarantine();
        break;
    }
    check();
  }

 private:
  static constexpr std::uint32_t kBlocks = 24;
  struct Running {
    std::vector<BlockId> shared;
    std::vector<BlockId> own;
  };

  template <typename Item>
  std::optional<Item> take_any(std::vector<Item>& items) {
    if (items.empty()) return {};
    std::swap(items[prng_.below(items.size())], items.back());
    Item item = std::move(items.back());
    items.pop_back();
    return item;
  }

  void start() {
    const std::size_t count = 1 + prng_.below(6);
    const auto blocks = pool_.allocate(count);
    ASSERT_EQ(blocks.has_value(), count <= kBlocks - held());
    if (!blocks) return;
    for (const BlockId block : *blocks) {
      ASSERT_EQ(refs(block), 0u) << "a held block was handed out";
      ASSERT_FALSE(in_quarantine(block)) << "a quarantined block was handed out";
      std::erase_if(names_, [&](const auto& name) { return name.second == block; });
    }
    running_.push_back({.own = *blocks});
  }

  void share_cached() {
    const auto found = pool_.find(hash_of(prng_.below(kNames)));
    if (!found) return;
    pool_.add_run_refs(std::span(&*found, 1));
    running_.push_back({.shared = {*found}});
  }

  void name_blocks() {
    if (running_.empty()) return;
    Running& request = running_[prng_.below(running_.size())];
    if (request.own.empty()) return;
    const BlockId block = request.own.front();
    const std::uint64_t name = prng_.below(kNames);
    pool_.set_hash(block, hash_of(name));
    names_.emplace(name, block);
    request.own.erase(request.own.begin());  // from now on others may find it
    request.shared.push_back(block);
  }

  void finish() {
    auto request = take_any(running_);
    if (!request) return;
    std::vector<BlockId> blocks = request->shared;
    blocks.insert(blocks.end(), request->own.begin(), request->own.end());
    if (prng_.chance(1, 2)) {
      pool_.lease(blocks);
      leases_.push_back(blocks);
    }
    pool_.release_run_refs(blocks);
  }

  void end_lease() {
    if (const auto blocks = take_any(leases_)) pool_.unlease(*blocks);
  }

  void quarantine() {
    auto request = take_any(running_);
    if (!request) return;
    pool_.release_run_refs(request->shared);
    pool_.quarantine(request->own);
    quarantines_.push_back(request->own);
  }

  void release_quarantine() {
    if (const auto blocks = take_any(quarantines_)) pool_.release_quarantine(*blocks);
  }

  std::size_t refs(BlockId block) const {
    std::size_t n = 0;
    for (const Running& request : running_) {
      n += static_cast<std::size_t>(std::ranges::count(request.shared, block) +
                                    std::ranges::count(request.own, block));
    }
    for (const auto& lease : leases_)
      n += static_cast<std::size_t>(std::ranges::count(lease, block));
    return n;
  }

  bool in_quarantine(BlockId block) const {
    return std::ranges::any_of(quarantines_, [&](const std::vector<BlockId>& blocks) {
      return std::ranges::count(blocks, block) > 0;
    });
  }

  std::size_t held() const {
    std::size_t n = 0;
    for (std::uint32_t b = 0; b < kBlocks; ++b) {
      if (refs(BlockId(b)) > 0 || in_quarantine(BlockId(b))) ++n;
    }
    return n;
  }

  void check() const {
    const BlockCounts& counts = pool_.counts();
    ASSERT_EQ(counts, pool_.recount());
    ASSERT_EQ(counts.free + counts.cached + counts.in_use + counts.quarantined, kBlocks);
    std::size_t lease_refs = 0;
    for (const auto& lease : leases_) lease_refs += lease.size();
    ASSERT_EQ(counts.lease_refs, lease_refs);
    ASSERT_EQ(counts.in_use + counts.quarantined, held());
    for (std::uint64_t name = 0; name < kNames; ++name) {
      const auto it = names_.find(name);
      ASSERT_EQ(pool_.find(hash_of(name)),
                it == names_.end() ? std::nullopt : std::optional(it->second));
    }
  }

  static constexpr std::uint64_t kNames = 30;
  Prng prng_;
  BlockPool pool_;
  std::vector<Running> running_;
  std::vector<std::vector<BlockId>> leases_;
  std::vector<std::vector<BlockId>> quarantines_;
  std::map<std::uint64_t, BlockId> names_;
};

// L6, L26, L43: at each step the counts equal a recount, no held block is handed out, the states
// never overlap, and what is found by a name is what was named.
TEST(BlockPoolProperty, AgreesWithANaiveModelAtEveryStep) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Walk walk(seed);
    for (int i = 0; i < 5'000; ++i) {
      walk.step();
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace kvlease
