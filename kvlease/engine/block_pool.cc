// Implements block_pool.h: references, the list of cached blocks by use, counts as they change.
#include "kvlease/engine/block_pool.h"

#include <ranges>

#include "kvlease/base/check.h"

namespace kvlease {

BlockPool::BlockPool(std::uint32_t num_blocks) : blocks_(num_blocks) {
  KVL_CHECK(num_blocks > 0, "a pool has blocks");
  free_.reserve(num_blocks);
  for (std::uint32_t i = num_blocks; i > 0; --i) free_.push_back(BlockId(i - 1));
  counts_.free = num_blocks;
}

BlockPool::Block& BlockPool::at(BlockId block) {
  KVL_CHECK(block.value() < blocks_.size(), "a block of this pool");
  return blocks_[block.value()];
}

const BlockPool::Block& BlockPool::at(BlockId block) const {
  KVL_CHECK(block.value() < blocks_.size(), "a block of this pool");
  return blocks_[block.value()];
}

std::optional<std::vector<BlockId>> BlockPool::allocate(std::size_t count) {
  if (count > available()) return {};
  std::vector<BlockId> taken;
  taken.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    BlockId id;
    if (counts_.free > 0) {
      id = free_.back();
      free_.pop_back();
      --counts_.free;
    } else {
      id = evict_oldest();
    }
    Block& block = at(id);
    ++block.generation;
    block.run_refs = 1;
    ++counts_.in_use;
    ++counts_.running;
    taken.push_back(id);
  }
  return taken;
}

std::optional<BlockId> BlockPool::find(const BlockHash& hash) const {
  const auto it = by_hash_.find(hash);
  return it == by_hash_.end() ? std::nullopt : std::optional(it->second);
}

void BlockPool::add_run_refs(std::span<const BlockId> blocks) {
  for (const BlockId id : blocks) {
    Block& block = at(id);
    KVL_CHECK(block.is_cached() || block.in_use(), "only held or cached contents can be shared");
    if (block.is_cached()) {
      unlink(id);
      ++counts_.in_use;
    }
    if (block.run_refs++ == 0) ++counts_.running;
  }
}

void BlockPool::release_run_refs(std::span<const BlockId> blocks) {
  for (const BlockId id : blocks | std::views::reverse) {
    Block& block = at(id);
    KVL_CHECK(block.run_refs > 0, "a request gives back a block once");
    if (--block.run_refs == 0) --counts_.running;
    end_use_when_unreferenced(id);
  }
}

void BlockPool::lease(std::span<const BlockId> blocks) {
  for (const BlockId id : blocks) {
    Block& block = at(id);
    KVL_CHECK(block.in_use(), "a lease pins blocks before anyone could see them as free");
    if (block.lease_refs++ == 0) ++counts_.leased;
    ++counts_.lease_refs;
  }
}

void BlockPool::unlease(std::span<const BlockId> blocks) {
  for (const BlockId id : blocks | std::views::reverse) {
    Block& block = at(id);
    KVL_CHECK(block.lease_refs > 0, "a lease gives back a block once");
    if (--block.lease_refs == 0) --counts_.leased;
    --counts_.lease_refs;
    end_use_when_unreferenced(id);
  }
}

void BlockPool::quarantine(std::span<const BlockId> blocks) {
  for (const BlockId id : blocks) {
    Block& block = at(id);
    KVL_CHECK(block.run_refs == 1 && block.lease_refs == 0 && !block.hash,
              "what a transfer may write belongs to one request and was never shared");
    block.run_refs = 0;
    block.quarantined = true;
    --counts_.running;
    --counts_.in_use;
    ++counts_.quarantined;
  }
}

void BlockPool::release_quarantine(std::span<const BlockId> blocks) {
  for (const BlockId id : blocks) {
    Block& block = at(id);
    KVL_CHECK(block.quarantined, "a quarantine ends once");
    block.quarantined = false;
    --counts_.quarantined;
    free_.push_back(id);
    ++counts_.free;
  }
}

void BlockPool::set_hash(BlockId id, const BlockHash& hash) {
  Block& block = at(id);
  KVL_CHECK(block.in_use() && !block.hash, "contents get their name once, while they are held");
  if (by_hash_.emplace(hash, id).second) block.hash = hash;
}

void BlockPool::end_use_when_unreferenced(BlockId id) {
  const Block& block = at(id);
  if (block.in_use()) return;
  --counts_.in_use;
  if (block.hash) {
    link_newest(id);
  } else {
    free_.push_back(id);
    ++counts_.free;
  }
}

void BlockPool::link_newest(BlockId id) {
  Block& block = at(id);
  block.older = newest_;
  block.newer = kNone;
  (newest_ == kNone ? oldest_ : blocks_[newest_].newer) = id.value();
  newest_ = id.value();
  ++counts_.cached;
}

void BlockPool::unlink(BlockId id) {
  const Block& block = at(id);
  (block.older == kNone ? oldest_ : blocks_[block.older].newer) = block.newer;
  (block.newer == kNone ? newest_ : blocks_[block.newer].older) = block.older;
  --counts_.cached;
}

BlockId BlockPool::evict_oldest() {
  const BlockId id(oldest_);
  unlink(id);
  by_hash_.erase(*at(id).hash);
  at(id).hash.reset();
  return id;
}

BlockCounts BlockPool::recount() const {
  BlockCounts counts;
  for (const Block& block : blocks_) {
    counts.free += block.is_free() ? 1 : 0;
    counts.cached += block.is_cached() ? 1 : 0;
    counts.in_use += block.in_use() ? 1 : 0;
    counts.quarantined += block.quarantined ? 1 : 0;
    counts.running += block.run_refs > 0 ? 1 : 0;
    counts.leased += block.lease_refs > 0 ? 1 : 0;
    counts.lease_refs += block.lease_refs;
  }
  return counts;
}

}  // namespace kvlease
