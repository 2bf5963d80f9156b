// What names a full block's contents in the prefix cache: a hash over the cache keys and all tokens
// up to and including the block, chained block by block.
//
// 128 bits of two chains that start from the engine's secret seed. A false hit would hand one
// request another's KV, so a collision must be out of reach: among 2^32 cached blocks chance makes
// one with probability 2^-65, and a client who does not know the seed cannot search for one. It
// never leaves the engine; what binds a reference to a prompt between engines is the digest of L52.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvlease/base/ids.h"

namespace kvlease {

struct BlockHash {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  bool operator==(const BlockHash&) const = default;
};

// For hash containers: 64 of the 128 bits.
inline std::size_t hash_value(const BlockHash& hash) { return hash.low; }

// Where a chain begins: what keys the cache besides the tokens (LoRA name, salt, image hashes).
BlockHash root_block_hash(std::uint64_t seed, std::span<const std::string> cache_keys);

// The hash of the block that holds `tokens` and follows the one with hash `parent`.
BlockHash extend_block_hash(const BlockHash& parent, std::span<const TokenId> tokens);

}  // namespace kvlease
