// The shape of the synthetic engine's KV cache and where each byte of it lies: for every layer one
// region `[num_blocks][2 (K, V)][heads of the rank][block_size][head_dim]` on each rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvlease/base/ids.h"
#include "kvlease/base/result.h"
#include "kvlease/connector/transfer_plan.h"
#include "kvlease/connector/worker_connector.h"

namespace kvlease {

struct KvLayout {
  std::uint32_t num_layers = 1;
  std::uint32_t num_kv_heads = 1;  // in all ranks together
  std::uint32_t head_dim = 4;
  std::uint32_t element_bytes = 1;
  std::uint32_t block_size = 16;  // tokens
  std::uint32_t num_blocks = 0;
  std::uint32_t tp = 1;
  bool operator==(const KvLayout&) const = default;

  // Errors: kInvalidArgument naming what is zero, when heads and ranks do not divide, or when no
  // process could address so many bytes.
  Result<void> check() const;

  EngineShape shape() const {
    return {.tp_size = tp, .num_kv_heads = num_kv_heads, .block_size = block_size};
  }
  std::uint32_t heads_per_rank() const { return shape().heads_per_rank(); }
  // With more ranks than heads each head is on so many of them, one after the other (L37).
  std::uint32_t replicas() const { return tp > num_kv_heads ? tp / num_kv_heads : 1; }
  // One token of one head, K or V.
  std::size_t head_bytes() const { return std::size_t{head_dim} * element_bytes; }
  // One token in all layers, heads and ranks.
  std::size_t token_bytes() const { return 2 * head_bytes() * num_kv_heads * num_layers; }
  // One block of one layer on one rank.
  std::size_t block_len_bytes() const { return 2 * head_bytes() * heads_per_rank() * block_size; }
  std::size_t region_bytes() const { return block_len_bytes() * num_blocks; }
  // The whole KV cache of one rank.
  std::size_t rank_bytes() const { return region_bytes() * num_layers; }

  // Where one head's tokens of one block begin in its rank's memory: block_size runs of
  // head_bytes().
  struct Place {
    std::uint32_t layer = 0;
    BlockId block;
    std::uint32_t value = 0;  // 0: K, 1: V
    std::uint32_t head_of_rank = 0;
  };
  std::size_t offset(const Place& place) const;

  // The regions of one rank whose cache lies in `memory`, for KvCaches. Requires: rank_bytes()
  // bytes.
  std::vector<KvRegion> regions(std::span<const std::byte> memory) const;
};

}  // namespace kvlease
