// Finds a lease's record by the hash of its id: cells of 8 bytes with linear probing, so that a
// lookup touches one cache line, which a batch of lookups can ask for ahead of time. It holds no
// ids: the caller compares them. Its order is never seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "kvlease/base/check.h"

namespace kvlease {

class LeaseIndex {
 public:
  using RecordNumber = std::uint32_t;

  // Fast for ids of some ten bytes; only its upper half is used.
  static std::uint64_t hash(std::string_view id);

  // Tells the processor that find() is about to be called for this hash.
  void prefetch(std::uint64_t hash) const { __builtin_prefetch(&cells_[home(tag(hash))]); }

  // The record for which `matches(number)` holds, which is asked for records of the same hash only;
  // nullopt without one. Expected O(1).
  template <typename Matches>
  std::optional<RecordNumber> find(std::uint64_t hash, Matches matches) const {
    const std::size_t cell = find_cell(tag(hash), matches);
    if (cells_[cell] == kFree) return std::nullopt;
    return number(cells_[cell]);
  }

  // Requires: the record is not in the index.
  void insert(std::uint64_t hash, RecordNumber record) {
    KVL_CHECK(record < UINT32_MAX, "a record's number leaves one value for the free cell");
    if (2 * ++size_ > cells_.size()) grow();
    put((std::uint64_t{tag(hash)} << 32) | (record + 1));
  }

  // Requires: the record is in the index, under this hash.
  void erase(std::uint64_t hash, RecordNumber record) {
    std::size_t hole =
        find_cell(tag(hash), [record](RecordNumber other) { return other == record; });
    KVL_CHECK(cells_[hole] != kFree, "only what was put in is taken out");
    --size_;
    // What was pushed on from the hole or before it moves back, so that no probe ends too early.
    for (std::size_t cell = next(hole); cells_[cell] != kFree; cell = next(cell)) {
      const std::size_t pushed = (cell - home(tag(cells_[cell]))) & mask_;
      if (pushed < ((cell - hole) & mask_)) continue;
      cells_[hole] = cells_[cell];
      hole = cell;
    }
    cells_[hole] = kFree;
  }

 private:
  // High half: the tag, the upper half of the hash. Low half: the record's number + 1.
  using Cell = std::uint64_t;
  static constexpr Cell kFree = 0;
  static constexpr std::size_t kCellsMin = 64;  // a power of two, as it stays

  static std::uint32_t tag(std::uint64_t hash_or_cell) {
    return static_cast<std::uint32_t>(hash_or_cell >> 32);
  }
  static RecordNumber number(Cell cell) { return static_cast<RecordNumber>(cell) - 1; }
  std::size_t next(std::size_t cell) const { return (cell + 1) & mask_; }
  // Where the probing of a tag begins.
  std::size_t home(std::uint32_t tag) const { return tag & mask_; }

  template <typename Matches>
  std::size_t find_cell(std::uint32_t wanted, Matches matches) const {
    std::size_t cell = home(wanted);
    while (cells_[cell] != kFree &&
           !(tag(cells_[cell]) == wanted && matches(number(cells_[cell])))) {
      cell = next(cell);
    }
    return cell;
  }

  void put(Cell full) {
    std::size_t cell = home(tag(full));
    while (cells_[cell] != kFree) cell = next(cell);
    cells_[cell] = full;
  }

  void grow() {
    const std::vector<Cell> old =
        std::exchange(cells_, std::vector<Cell>(2 * cells_.size(), kFree));
    mask_ = cells_.size() - 1;
    for (const Cell cell : old) {
      if (cell != kFree) put(cell);
    }
  }

  std::vector<Cell> cells_ = std::vector<Cell>(kCellsMin, kFree);
  std::size_t mask_ = kCellsMin - 1;  // the number of cells - 1
  std::size_t size_ = 0;
};

// Multiply and fold, 16 bytes at a time, as wyhash does (Wang Yi). It is not keyed: every id ends
// in random characters of our own (L45).
inline std::uint64_t LeaseIndex::hash(std::string_view id) {
  __extension__ using Product = unsigned __int128;
  constexpr std::uint64_t odd = 0x9e3779b97f4a7c15;
  const auto fold = [](std::uint64_t a, std::uint64_t b) {
    const Product product = Product{a} * b;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  };
  const auto load = [](const char* from) {
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, from, sizeof bytes);
    return bytes;
  };
  std::uint64_t hash = id.size() ^ odd;
  if (id.size() < 16) {  // none of ours
    for (const char c : id) hash = fold(static_cast<unsigned char>(c) ^ odd, hash);
    return hash;
  }
  const char* const last = id.data() + id.size() - 16;
  for (const char* from = id.data(); from < last; from += 16) {
    hash = fold(load(from) ^ odd, load(from + 8) ^ hash);
  }
  return fold(load(last) ^ odd, load(last + 8) ^ hash);
}

}  // namespace kvlease
