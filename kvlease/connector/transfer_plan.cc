// Implements transfer_plan.h.
#include "kvlease/connector/transfer_plan.h"

#include <algorithm>
#include <string>

#include "kvlease/base/check.h"

namespace kvlease {
namespace {

constexpr std::uint32_t kHalves = 2;  // K and V

bool divide(std::uint32_t a, std::uint32_t b) {
  return a > 0 && b > 0 && (a % b == 0 || b % a == 0);
}

Error does_not_divide(const std::string& what, std::uint32_t local, std::uint32_t remote) {
  return {ErrorCode::kIncompatible, what + ": " + std::to_string(local) + " here and " +
                                        std::to_string(remote) + " there do not divide"};
}

}  // namespace

std::uint32_t units_per_block(const EngineShape& shape) {
  return kHalves * shape.heads_per_rank() * shape.block_size;
}

Result<void> check_shapes(const EngineShape& local, const EngineShape& remote) {
  if (!divide(local.tp_size, remote.tp_size)) {
    return std::unexpected(does_not_divide("tp_size", local.tp_size, remote.tp_size));
  }
  for (const EngineShape& shape : {local, remote}) {
    if (!divide(shape.tp_size, shape.num_kv_heads)) {
      return error(ErrorCode::kIncompatible, std::to_string(shape.num_kv_heads) +
                                                 " KV heads do not divide among tp_size " +
                                                 std::to_string(shape.tp_size));
    }
  }
  if (local.block_size == 0 || remote.block_size == 0 ||
      local.block_size % remote.block_size != 0) {
    return std::unexpected(does_not_divide("block_size", local.block_size, remote.block_size));
  }
  return {};
}

std::vector<PairedRank> paired_ranks(const EngineShape& local, const EngineShape& remote,
                                     Rank rank) {
  KVL_CHECK(rank.value() < local.tp_size, "a rank of ours");
  const std::uint32_t count = std::max(1u, remote.tp_size / local.tp_size);
  const std::uint32_t first =
      static_cast<std::uint32_t>(std::uint64_t{rank.value()} * remote.tp_size / local.tp_size);
  const std::uint32_t our_first = local.first_head(rank);
  const std::uint32_t our_end = our_first + local.heads_per_rank();
  std::uint32_t covered = our_first;  // heads below it are read already
  std::vector<PairedRank> paired;
  for (std::uint32_t i = 0; i < count; ++i) {
    PairedRank& pair = paired.emplace_back(PairedRank{.remote = Rank(first + i)});
    const std::uint32_t their_first = remote.first_head(pair.remote);
    const std::uint32_t their_end = their_first + remote.heads_per_rank();
    const std::uint32_t begin = std::max(covered, their_first);
    const std::uint32_t end = std::min(our_end, their_end);
    if (begin >= end) continue;
    pair.num_heads = end - begin;
    pair.remote_first_head = begin - their_first;
    pair.local_first_head = begin - our_first;
    covered = end;
  }
  KVL_CHECK(covered == our_end, "every head of ours is on a paired rank");
  return paired;
}

std::uint32_t readers_per_rank(const EngineShape& local, const EngineShape& remote) {
  return std::max(1u, local.tp_size / remote.tp_size);
}

BlockPlan plan_block(const EngineShape& local, const EngineShape& remote,
                     const PairedRank& paired) {
  KVL_CHECK(paired.num_heads > 0, "there is something to read");
  BlockPlan plan{.sub_blocks = local.block_size / remote.block_size};
  const std::uint32_t ours = local.heads_per_rank();
  const std::uint32_t theirs = remote.heads_per_rank();
  // Heads that lie together on both sides are one run, and so are K and V of whole blocks.
  const bool together = plan.sub_blocks == 1;
  const bool whole = together && paired.num_heads == ours && ours == theirs;
  const std::uint32_t heads_of_run = together ? paired.num_heads : 1;
  const std::uint32_t halves = whole ? 1 : kHalves;
  const std::uint32_t length = whole ? units_per_block(remote) : heads_of_run * remote.block_size;
  plan.remote.length = length;
  plan.local.length = length;
  for (std::uint32_t sub = 0; sub < plan.sub_blocks; ++sub) {
    for (std::uint32_t half = 0; half < halves; ++half) {
      for (std::uint32_t head = 0; head < paired.num_heads; head += heads_of_run) {
        const std::uint32_t there = half * theirs + paired.remote_first_head + head;
        const std::uint32_t here = half * ours + paired.local_first_head + head;
        if (sub == 0) plan.remote.offsets.push_back(there * remote.block_size);
        plan.local.offsets.push_back(here * local.block_size + sub * remote.block_size);
      }
    }
  }
  return plan;
}

std::vector<MemoryRegion> run_descriptors(std::span<const KvRegion> regions,
                                          std::uint32_t num_blocks, const EngineShape& shape,
                                          const BlockRuns& runs) {
  std::vector<MemoryRegion> descriptors;
  descriptors.reserve(regions.size() * num_blocks * runs.offsets.size());
  const std::uint64_t units = units_per_block(shape);
  for (const KvRegion& region : regions) {
    const auto bytes = [&](std::uint64_t count) {  // whole blocks need not divide
      return count == units ? region.block_len_bytes : region.block_len_bytes / units * count;
    };
    for (std::uint64_t block = 0; block < num_blocks; ++block) {
      const std::uint64_t address = region.base_address + block * region.block_len_bytes;
      for (const std::uint32_t offset : runs.offsets) {
        descriptors.push_back({.address = address + bytes(offset),
                               .length_bytes = bytes(runs.length),
                               .kind = region.kind,
                               .device = region.device});
      }
    }
  }
  return descriptors;
}

}  // namespace kvlease
