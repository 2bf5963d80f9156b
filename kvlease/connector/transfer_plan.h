// Which ranks of two engines exchange what: who is paired with whom, which heads pass between them,
// and where these lie in the blocks of either side (L19, L37). Blocks are
// `[2 (K, V)][heads of the rank][block_size][head_dim]` on both sides.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvlease/base/ids.h"
#include "kvlease/base/memory_region.h"
#include "kvlease/base/result.h"
#include "kvlease/wire/handshake.h"

namespace kvlease {

// What the plan needs to know of one engine.
struct EngineShape {
  std::uint32_t tp_size = 1;
  std::uint32_t num_kv_heads = 1;  // in all ranks together
  std::uint32_t block_size = 16;   // tokens
  bool operator==(const EngineShape&) const = default;

  // With more ranks than heads each head is on several ranks.
  std::uint32_t heads_per_rank() const {
    return num_kv_heads > tp_size ? num_kv_heads / tp_size : 1;
  }
  // The first of the heads that `rank` has.
  std::uint32_t first_head(Rank rank) const {
    return num_kv_heads > tp_size ? rank.value() * heads_per_rank()
                                  : rank.value() / (tp_size / num_kv_heads);
  }
};

// One rank of the other engine that a rank of ours is paired with. Heads are counted from the first
// one of the rank in whose blocks they lie.
struct PairedRank {
  Rank remote;
  std::uint32_t num_heads = 0;  // to read; 0: another replica is read, this one is only told (L37)
  std::uint32_t remote_first_head = 0;
  std::uint32_t local_first_head = 0;
  bool operator==(const PairedRank&) const = default;
};

// Tokens times heads, K and V, of one block of one rank.
std::uint32_t units_per_block(const EngineShape& shape);

// Errors: kIncompatible, with both numbers, for what does not divide: heads among ranks, ranks
// among ranks, our block size by theirs.
Result<void> check_shapes(const EngineShape& local, const EngineShape& remote);

// The ranks that `rank` of ours sends heartbeats and completions to and reads from, ascending.
// Requires: check_shapes() was good.
std::vector<PairedRank> paired_ranks(const EngineShape& local, const EngineShape& remote,
                                     Rank rank);

// How many ranks of `local` report to each rank of `remote`: the number in our completions (L7).
std::uint32_t readers_per_rank(const EngineShape& local, const EngineShape& remote);

// Where the bytes of one transfer lie in a block: runs of equal length, each contiguous on both
// sides. Counted in units: one token of one head, K or V.
struct BlockRuns {
  std::vector<std::uint32_t> offsets;
  std::uint32_t length = 0;
  bool operator==(const BlockRuns&) const = default;
};

// How one of their blocks goes into one of ours: run i of `remote` into run
// `sub_block * remote.offsets.size() + i` of `local`, where sub_block says which part of our block
// it is (0 when the block sizes are equal).
struct BlockPlan {
  BlockRuns remote;
  BlockRuns local;
  std::uint32_t sub_blocks = 1;  // of theirs in one of ours
  bool operator==(const BlockPlan&) const = default;
};

// Requires: `paired` is one of paired_ranks() and has heads to read.
BlockPlan plan_block(const EngineShape& local, const EngineShape& remote, const PairedRank& paired);

// The descriptors of all runs: region by region, block by block, run by run. So run r of block b in
// region g stands at (g * num_blocks + b) * runs.offsets.size() + r.
std::vector<MemoryRegion> run_descriptors(std::span<const KvRegion> regions,
                                          std::uint32_t num_blocks, const EngineShape& shape,
                                          const BlockRuns& runs);

}  // namespace kvlease
