// Implements block_hash.h: the two chains.
#include "kvlease/engine/block_hash.h"

#include "kvlease/base/prng.h"

namespace kvlease {
namespace {

// Two chains over the same words, of different form so that they do not collide together.
void absorb(BlockHash& hash, std::uint64_t word) {
  hash.high = mix64(hash.high ^ word);
  hash.low = mix64(hash.low + mix64(word));
}

}  // namespace

BlockHash root_block_hash(std::uint64_t seed, std::span<const std::string> cache_keys) {
  BlockHash hash{.high = mix64(seed), .low = mix64(~seed)};
  absorb(hash, cache_keys.size());
  for (const std::string& key : cache_keys) {
    absorb(hash, key.size());
    for (const char byte : key) absorb(hash, static_cast<unsigned char>(byte));
  }
  return hash;
}

BlockHash extend_block_hash(const BlockHash& parent, std::span<const TokenId> tokens) {
  BlockHash hash = parent;
  for (const TokenId token : tokens) absorb(hash, token);
  return hash;
}

}  // namespace kvlease
