// Keeps the lease entries. Peers read them at any time, so every access is an atomic one of 64
// bits.
#include "kvlease/core/lease_entries.h"

#include <atomic>

#include "kvlease/base/check.h"

namespace kvlease {
namespace {

static_assert(std::atomic_ref<std::uint64_t>::is_always_lock_free,
              "a lock would not be seen by a peer's one-sided read");

std::uint64_t load(std::uint64_t& cell) {
  return std::atomic_ref<std::uint64_t>(cell).load(std::memory_order_relaxed);
}
void store(std::uint64_t& cell, std::uint64_t value) {
  std::atomic_ref<std::uint64_t>(cell).store(value, std::memory_order_relaxed);
}

}  // namespace

LeaseEntries::LeaseEntries(std::span<LeaseEntry> memory, std::uint32_t word_high)
    : memory_(memory) {
  KVL_CHECK(memory.size() >= 2, "a table of lease entries holds the rank's own and one lease");
  KVL_CHECK(memory.size() <= UINT32_MAX, "a slot is a 32-bit number");
  KVL_CHECK(word_high != 0, "a word of 0 is what cleared memory looks like (L22)");
  for (LeaseEntry& entry : memory_) {
    store(entry.word, std::uint64_t{word_high} << 32);
    store(entry.renewals, 0);
  }
}

std::uint64_t LeaseEntries::word(SlotId slot) const { return load(entry(slot).word); }

std::uint64_t LeaseEntries::renewals(SlotId slot) const { return load(entry(slot).renewals); }

void LeaseEntries::end(SlotId slot) {
  KVL_CHECK(slot != kRankSlot, "the rank's own entry holds no lease (L22)");
  // L23. The fence keeps every later store to the slot's blocks behind this one; a reader that saw
  // one of those stores, fences and then reads the word sees the new word (L24). On x86 the fence
  // is a full barrier, on ARM a `dmb ish`.
  store(entry(slot).word, word(slot) + 1);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void LeaseEntries::begin(SlotId slot) {
  KVL_CHECK(slot != kRankSlot, "the rank's own entry holds no lease (L22)");
  store(entry(slot).renewals, 0);
}

void LeaseEntries::turn() { count(entry(kRankSlot)); }

}  // namespace kvlease
