// What every Transport checks before it starts a read: that the paired descriptors agree.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kvlease/base/check.h"
#include "kvlease/base/result.h"
#include "kvlease/transport/transport.h"

namespace kvlease {

// The bytes that one read moves.
// Requires: what post_read() requires of `indices`.
// Errors: kInvalidArgument when two paired descriptors differ in length.
inline Result<std::uint64_t> paired_bytes(std::span<const MemoryRegion> local,
                                          std::span<const MemoryRegion> remote,
                                          ReadIndices indices) {
  KVL_CHECK(indices.local.size() == indices.remote.size(), "a read pairs its indices one to one");
  KVL_CHECK(!indices.local.empty(), "a read has at least one pair");
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < indices.local.size(); ++i) {
    KVL_CHECK(indices.local[i] < local.size(), "a local index lies inside its list");
    KVL_CHECK(indices.remote[i] < remote.size(), "a remote index lies inside its list");
    const std::uint64_t to = local[indices.local[i]].length_bytes;
    const std::uint64_t from = remote[indices.remote[i]].length_bytes;
    if (to != from) {
      return error(ErrorCode::kInvalidArgument,
                   "pair " + std::to_string(i) + " of the read joins " + std::to_string(from) +
                       " remote bytes with " + std::to_string(to) +
                       " local bytes; give both descriptors the same length");
    }
    bytes += to;
  }
  return bytes;
}

}  // namespace kvlease
