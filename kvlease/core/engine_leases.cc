// Merges what the ranks report into one end a lease, and keeps the account of every lease and of
// every reference to a block.
#include "kvlease/core/engine_leases.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "kvlease/base/check.h"
#include "kvlease/base/hex.h"
#include "kvlease/core/lease_entries.h"

namespace kvlease {
namespace {

constexpr std::size_t kClientIdBytesMax = 128;
constexpr std::size_t kSuffixDigits = 8;

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

// L45: what is left of a client's id holds no ':' or ',' of the notifications and nothing binary.
std::string plain_client_id(std::string_view client_id) {
  std::string plain(client_id.substr(0, kClientIdBytesMax));
  std::replace_if(plain.begin(), plain.end(), [](char c) { return !is_plain(c); }, '_');
  return plain;
}

}  // namespace

bool LeaseLedger::balanced() const {
  const auto sum = [](const std::array<std::uint64_t, kLeaseEndCount>& ends) {
    return std::accumulate(ends.begin(), ends.end(), std::uint64_t{0});
  };
  return granted == live + sum(ended) && granted_blocks == live_blocks + sum(ended_blocks);
}

EngineLeases::EngineLeases(const EngineLeasesOptions& options)
    : options_(options), prng_(options.id_seed), slot_uses_(options.slots) {
  KVL_CHECK(options.tp > 0, "an engine has a rank");
  KVL_CHECK(options.slots > kFirstLeaseSlot.value(), "the table has a slot for a lease (L22)");
  KVL_CHECK(options.word_high != 0, "a word of 0 is what cleared memory looks like (L22)");
  KVL_CHECK(options.slot_uses_max > 0, "a slot is used at least once");
  free_slots_.reserve(options.slots);
  for (std::uint32_t slot = options.slots - 1; slot >= kFirstLeaseSlot.value(); --slot) {
    free_slots_.push_back(SlotId{slot});
  }
}

std::uint64_t EngineLeases::word(SlotId slot) const {
  return std::uint64_t{options_.word_high} << 32 | slot_uses_[slot.value()];
}

Result<LeaseReservation> EngineLeases::reserve(std::string_view client_id) {
  if (free_slots_.empty()) {  // L22, L43
    return error(ErrorCode::kResourceExhausted,
                 "no lease slot is free: " + std::to_string(live_.size()) + " leases are live, " +
                     std::to_string(reserved_.size()) + " reserved, " +
                     std::to_string(retired_slots_) +
                     " slots retired; try again later, or raise kv_lease_slots (now " +
                     std::to_string(options_.slots) + ")");
  }
  const std::string plain = plain_client_id(client_id);
  LeaseId id;
  do {
    id = LeaseId{plain + '-' + to_hex(prng_.next()).substr(16 - kSuffixDigits)};
  } while (live_.contains(id) || reserved_.contains(id));  // L45
  const SlotId slot = free_slots_.back();
  free_slots_.pop_back();
  reserved_.emplace(id, slot);
  return LeaseReservation{.id = std::move(id), .slot = slot, .word = word(slot)};
}

void EngineLeases::cancel(const LeaseId& id) {
  const auto reserved = reserved_.find(id);
  KVL_CHECK(reserved != reserved_.end(), "what is given back was reserved and not granted");
  free_slots_.push_back(reserved->second);  // nobody was told its word, so the word stays
  reserved_.erase(reserved);
}

LeaseGrant EngineLeases::grant(const LeaseId& id, std::span<const BlockId> blocks,
                               const LeaseTimes& times, Instant now) {
  const auto reserved = reserved_.find(id);
  KVL_CHECK(reserved != reserved_.end(), "what is granted was reserved and not granted");
  KVL_CHECK(!blocks.empty(), "a lease keeps at least one block (L1)");
  const SlotId slot = reserved->second;
  reserved_.erase(reserved);
  live_.emplace(
      id, LiveLease{.slot = slot,
                    .word = word(slot),
                    .blocks = {blocks.begin(), blocks.end()},
                    .times = times,
                    .granted_at = now,
                    .ranks = {.ended = std::vector<bool>(options_.tp), .ranks_left = options_.tp},
                    .end_ordered = std::nullopt});
  ++ledger_.granted;
  ++ledger_.live;
  ledger_.granted_blocks += blocks.size();
  ledger_.live_blocks += blocks.size();
  return LeaseGrant{.id = id,
                    .slot = slot,
                    .word = word(slot),
                    .remaining = times.duration,
                    .extension = times.extension};
}

bool EngineLeases::end(const LeaseId& id, LeaseEnd end) {
  KVL_CHECK(end != LeaseEnd::kCompleted, "only readers complete a lease (L7)");
  const Lease lease = live_.find(id);
  if (lease == live_.end() || lease->second.end_ordered) return false;  // L5, L10
  order_end(lease, end);
  return true;
}

void EngineLeases::order_end(Lease lease, LeaseEnd end) {
  lease->second.end_ordered = end;
  orders_.push_back(lease->first);
}

bool EngineLeases::on_rank_ended(Rank rank, const LeaseEnded& ended) {
  KVL_CHECK(rank.value() < options_.tp, "a report comes from a rank of this engine");
  const Lease lease = live_.find(ended.id);
  if (lease == live_.end() || lease->second.ranks.ended[rank.value()]) return false;  // L35
  RankEnds& ranks = lease->second.ranks;
  const bool is_first = ranks.ranks_left == options_.tp;
  ranks.ended[rank.value()] = true;
  --ranks.ranks_left;
  if (is_first || ended.end > ranks.worst.end) ranks.worst = ended;  // L6
  ranks.held = std::max(ranks.held, ended.held);
  ranks.left = std::min(ranks.left, ended.left);
  ranks.silent = std::min(ranks.silent, ended.silent);
  ranks.slot_mismatch |= ended.slot_mismatch;
  if (ranks.ranks_left == 0) {
    finish(lease);
  } else if (ended.end != LeaseEnd::kCompleted && !lease->second.end_ordered) {
    order_end(lease, ended.end);  // L23: with the same cause, so that the ranks agree on it
  }
  return true;
}

void EngineLeases::finish(Lease lease) {
  LiveLease& live = lease->second;
  const LeaseEnd end = live.ranks.worst.end;
  const auto end_index = static_cast<std::size_t>(end);
  --ledger_.live;
  ++ledger_.ended[end_index];
  ledger_.live_blocks -= live.blocks.size();
  ledger_.ended_blocks[end_index] += live.blocks.size();

  // L23: free again, now that every rank's word has moved on; not when a rank's word is another
  // one, nor when the count in its low half is used up.
  std::uint32_t& uses = slot_uses_[live.slot.value()];
  ++uses;
  if (live.ranks.slot_mismatch || uses == options_.slot_uses_max) {
    ++retired_slots_;
  } else {
    free_slots_.push_back(live.slot);
  }
  ended_.push_back({.id = lease->first,
                    .end = end,
                    .blocks = std::move(live.blocks),
                    .readers_done = live.ranks.worst.readers_done,
                    .readers_expected = live.ranks.worst.readers_expected,
                    .held = live.ranks.held,
                    .left = live.ranks.left,
                    .silent = live.ranks.silent,
                    .duration = live.times.duration});
  live_.erase(lease);
}

std::vector<LeaseEndOrder> EngineLeases::take_orders() {
  std::vector<LeaseEndOrder> orders;
  for (LeaseId& id : orders_) {
    const Lease lease = live_.find(id);
    // Ended meanwhile on every rank; its id may even be another lease's by now.
    if (lease == live_.end() || !lease->second.end_ordered) continue;
    orders.push_back({.id = std::move(id), .end = *lease->second.end_ordered});
  }
  orders_.clear();
  return orders;
}

std::vector<EngineLeaseEnded> EngineLeases::take_ended() { return std::exchange(ended_, {}); }

Instant EngineLeases::oldest_grant() const {
  Instant oldest = kNever;
  for (const auto& [id, lease] : live_) oldest = earlier(oldest, lease.granted_at);
  return oldest;
}

}  // namespace kvlease
