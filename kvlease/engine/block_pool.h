// The blocks of one engine's KV cache: who holds which, which are free, and which cached contents
// can be found again. The same block ids on every rank. It moves no bytes.
//
// A block has references of running requests, references of leases and an optional content hash:
//
//   free         no reference, no hash
//   cached       no reference, a hash: found by it, evicted when free blocks run out, oldest first
//   in use       references of either kind, in any number; with or without a hash
//   quarantined  exclusive: a transfer that is over for the engine may still write it (L26)
#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvlease/base/ids.h"
#include "kvlease/engine/block_hash.h"

namespace kvlease {

// free + cached + in_use + quarantined is the whole pool; running and leased overlap inside in_use.
struct BlockCounts {
  std::size_t free = 0;
  std::size_t cached = 0;
  std::size_t in_use = 0;
  std::size_t quarantined = 0;
  std::size_t running = 0;     // with a running request's reference
  std::size_t leased = 0;      // with a lease's reference, each counted once (L43)
  std::size_t lease_refs = 0;  // what the ledger counts (L6)
  bool operator==(const BlockCounts&) const = default;
};

class BlockPool {
 public:
  // Requires: num_blocks > 0.
  explicit BlockPool(std::uint32_t num_blocks);

  // Takes `count` blocks for one running request, each with one reference and no hash: free ones
  // first, then cached ones in the order in which they were last used. nullopt, and nothing taken,
  // when there are fewer than `count`. O(count).
  std::optional<std::vector<BlockId>> allocate(std::size_t count);

  // The block with these contents. O(1).
  std::optional<BlockId> find(const BlockHash& hash) const;

  // One more running request uses the blocks. Requires: each is cached or in use.
  void add_run_refs(std::span<const BlockId> blocks);
  // One running request less. The last ones become the first to be evicted, for a prefix is useful
  // without its end and not the other way round. Requires: each has a running request's reference.
  void release_run_refs(std::span<const BlockId> blocks);

  // One lease more, or less, pins the blocks. Requires: each is in use; each has a lease's
  // reference.
  void lease(std::span<const BlockId> blocks);
  void unlease(std::span<const BlockId> blocks);

  // The only running request of these blocks is over, but a transfer may still write them: nobody
  // gets them until the quarantine is released (L26). Requires: each has exactly one reference, of
  // a running request, and no hash; each is quarantined.
  void quarantine(std::span<const BlockId> blocks);
  void release_quarantine(std::span<const BlockId> blocks);

  // Lets a full block be found by its contents. Its bytes must be computed here or validated:
  // others will use them unasked (L24). Does nothing when another block is already found by that
  // hash. Requires: in use, without a hash.
  void set_hash(BlockId block, const BlockHash& hash);

  std::size_t size() const { return blocks_.size(); }
  // How many allocate() could give.
  std::size_t available() const { return counts_.free + counts_.cached; }
  // O(1).
  const BlockCounts& counts() const { return counts_; }
  // The same, by looking at every block. O(blocks).
  BlockCounts recount() const;

  bool is_leased(BlockId block) const { return at(block).lease_refs > 0; }
  // How often the block has been handed out: one life each.
  std::uint64_t generation(BlockId block) const { return at(block).generation; }

 private:
  // The cached blocks are a list in order of last use, linked through the blocks; kNone ends it.
  static constexpr std::uint32_t kNone = UINT32_MAX;

  struct Block {
    std::uint32_t run_refs = 0;
    std::uint32_t lease_refs = 0;
    bool quarantined = false;
    std::optional<BlockHash> hash;
    std::uint64_t generation = 0;
    std::uint32_t older = kNone;
    std::uint32_t newer = kNone;

    bool in_use() const { return run_refs > 0 || lease_refs > 0; }
    bool is_cached() const { return !in_use() && !quarantined && hash.has_value(); }
    bool is_free() const { return !in_use() && !quarantined && !hash.has_value(); }
  };

  Block& at(BlockId block);
  const Block& at(BlockId block) const;
  void end_use_when_unreferenced(BlockId block);
  void link_newest(BlockId block);
  void unlink(BlockId block);
  BlockId evict_oldest();

  std::vector<Block> blocks_;
  std::vector<BlockId> free_;  // the last one freed is handed out first
  std::uint32_t oldest_ = kNone;
  std::uint32_t newest_ = kNone;
  boost::unordered_flat_map<BlockHash, BlockId> by_hash_;
  BlockCounts counts_;
};

}  // namespace kvlease
