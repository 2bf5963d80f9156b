// The table of lease entries of one rank, in registered memory: the fence, D's acknowledgement and
// the loss notice in 16 bytes a lease (L22, L23, L25). Only this process's CPU writes it; peers
// read it one-sidedly at any time.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "kvlease/base/check.h"
#include "kvlease/base/ids.h"

namespace kvlease {

// Little-endian, aligned to 16. Part of the wire: the layout never changes within a protocol
// version.
struct alignas(16) LeaseEntry {
  std::uint64_t word = 0;  // high 32: drawn per engine start; low 32: uses of the slot that ended
  std::uint64_t renewals =
      0;  // heartbeats that named the live lease; in entry 0: turns of the loop
  bool operator==(const LeaseEntry&) const = default;
};
static_assert(sizeof(LeaseEntry) == 16);

// Slot 0 belongs to the rank itself; leases use the slots from 1 on.
inline constexpr SlotId kRankSlot{0};
inline constexpr SlotId kFirstLeaseSlot{1};

class LeaseEntries {
 public:
  // Takes over `memory` (registered by the host, outlives this) and fills it: every word is
  // `word_high << 32`, every count 0. Requires: at least 2 entries; word_high != 0, the same on all
  // ranks (L22).
  LeaseEntries(std::span<LeaseEntry> memory, std::uint32_t word_high);

  std::uint64_t word(SlotId slot) const;
  std::uint64_t renewals(SlotId slot) const;
  std::uint32_t size() const { return static_cast<std::uint32_t>(memory_.size()); }

  // Ends the present use of a slot: stores word + 1, then a sequentially consistent fence; only
  // after it returns may the blocks be handed out again (L23).
  void end(SlotId slot);

  // Starts the count of a new lease in `slot` at 0 (L22).
  void begin(SlotId slot);

  // Tells the processor that renew() is about to be called for this slot.
  void prefetch(SlotId slot) const { __builtin_prefetch(&entry(slot)); }

  // Counts a heartbeat for the live lease in `slot` (L22).
  void renew(SlotId slot) {
    KVL_CHECK(slot != kRankSlot, "the rank's own entry holds no lease (L22)");
    count(entry(slot));
  }

  // Counts one turn of the rank's loop in entry 0 (L22, L25).
  void turn();

 private:
  LeaseEntry& entry(SlotId slot) const {
    KVL_CHECK(slot.value() < memory_.size(), "a slot lies in the table");
    return memory_[slot.value()];
  }
  // This process's one loop thread is the only writer, so counting needs no read-modify-write.
  static void count(LeaseEntry& entry) {
    const std::atomic_ref renewals(entry.renewals);
    renewals.store(renewals.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  std::span<LeaseEntry> memory_;
};

}  // namespace kvlease
