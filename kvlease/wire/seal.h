// Digest and seal of a reference (L52): the digest binds it to the prompt, the seal (a keyed MAC
// whose key comes with the handshake) to the lease, so that a mixed or forged reference is rejected
// before a byte is read. BLAKE2b of libsodium. Golden vectors stand in seal_test.cc.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvlease/base/ids.h"

namespace kvlease {

using Digest = std::array<std::byte, 16>;
using Seal = std::array<std::byte, 16>;
using SealKey = std::array<std::byte, 32>;

// BLAKE2b-128 over `tokens` as u32 little-endian each, then over each of `cache_keys` (whatever
// else keys the prefix cache: LoRA name, salt, image hashes, in order), each preceded by its length
// as u32.
Digest digest_tokens(std::span<const TokenId> tokens, std::span<const std::string> cache_keys);

// Everything that a seal covers, in the order in which it is hashed (L52).
struct SealedReference {
  EngineId engine_id;
  Incarnation incarnation;
  LeaseId remote_request_id;
  std::uint64_t remote_num_tokens = 0;
  std::vector<std::vector<BlockId>> remote_block_ids;  // [group][block]
  SlotId slot;
  std::uint64_t word = 0;
  std::uint64_t lease_duration_ms = 0;
  std::uint64_t heartbeat_interval_ms = 0;
  std::uint64_t digest_tokens = 0;
  Digest digest{};
};

// Keyed BLAKE2b-128: integers as u64 little-endian, strings and lists preceded by their length as
// u32.
Seal seal_reference(const SealKey& key, const SealedReference& reference);

// Compares in constant time.
bool seal_matches(const Seal& a, const Seal& b);

}  // namespace kvlease
