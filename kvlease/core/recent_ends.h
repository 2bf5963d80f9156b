// Remembers how leases have ended, by the hashes of their ids, so that a heartbeat that comes after
// the end is counted by cause (L5). It holds no ids and never grows: of two leases that share a
// place, the one that ended last is remembered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "kvlease/core/lease.h"

namespace kvlease {

class RecentEnds {
 public:
  // `hash`: LeaseIndex::hash of the id.
  void add(std::uint64_t hash, LeaseEnd end) {
    cells_[place(hash)] = key(hash) | (static_cast<std::uint64_t>(end) + 1);
  }

  // nullopt: no lease with this hash has ended, or others have since taken its place.
  std::optional<LeaseEnd> find(std::uint64_t hash) const {
    const std::uint64_t cell = cells_[place(hash)];
    if (cell == 0 || key(cell) != key(hash)) return std::nullopt;
    return static_cast<LeaseEnd>((cell & kEndBits) - 1);
  }

 private:
  static constexpr std::size_t kCells = 8192;  // 64 KiB: some seconds of a busy engine's ends
  static constexpr std::uint64_t kEndBits = 7;
  static_assert(kLeaseEndCount <= kEndBits);

  static std::size_t place(std::uint64_t hash) { return (hash >> 32) % kCells; }
  static std::uint64_t key(std::uint64_t hash_or_cell) { return hash_or_cell & ~kEndBits; }

  // The hash with the end + 1 in its lowest bits; 0: free.
  std::vector<std::uint64_t> cells_ = std::vector<std::uint64_t>(kCells);
};

}  // namespace kvlease
