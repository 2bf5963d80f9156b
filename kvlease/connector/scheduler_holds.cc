// Two-way transfer: D holds what it has computed for the next turn, as a lease that nobody renews;
// P reads it then, or declines (L36, L39, L41, L42, L49).
#include <algorithm>
#include <utility>

#include "kvlease/base/check.h"
#include "kvlease/connector/scheduler_connector.h"

namespace kvlease {
namespace {

constexpr Duration kMarginMax = std::chrono::seconds{5};  // L41

}  // namespace

// D. Without a slot the request runs all the same, and is not held.
void SchedulerConnector::reserve_hold(const RequestView& request) {
  if (!options_.config.bidirectional || draining_) return;
  auto reservation = leases_.reserve(request.client_id);
  if (!reservation) return counters_.add(Counter::kHoldsNotKept);
  hold_reservations_.emplace(request.id, std::move(*reservation));
}

std::optional<RequestFinished> SchedulerConnector::keep_hold(const RequestView& request,
                                                             FinishStatus status,
                                                             std::span<const BlockId> block_ids,
                                                             std::uint32_t num_tokens_with_kv,
                                                             Instant now) {
  const auto it = hold_reservations_.find(request.id);
  if (it == hold_reservations_.end()) return {};
  const LeaseReservation reservation = std::move(it->second);
  hold_reservations_.erase(it);
  const LeaseConfig& config = options_.config;
  const bool ended_well = status == FinishStatus::kLength || status == FinishStatus::kStopped;
  const bool fits = block_ids.size() <= hold_budget();
  if (!ended_well || block_ids.empty() || !fits || draining_) {
    leases_.cancel(reservation.id);
    if (!fits) counters_.add(Counter::kHoldsNotKept);
    return {};
  }
  make_room_for_hold(block_ids.size());
  const bool renewable = config.hold_max_lifetime > Duration::zero();
  const LeaseTimes times{
      .duration = config.hold_ttl,
      .heartbeat_interval = config.times.heartbeat_interval,
      .extension = renewable ? derive_lease_times(config.hold_ttl).extension : Duration::zero()};
  LeaseGrant grant = leases_.grant(reservation.id, block_ids, times, now);
  if (renewable) grant.lifetime_max = config.hold_max_lifetime;
  next_.reqs_to_send.push_back(grant);
  hold_numbers_.emplace(reservation.id, next_hold_);
  holds_.emplace(next_hold_++, Hold{.lease = reservation.id, .blocks = block_ids.size()});
  emit({.kind = EventKind::kLeaseGranted,
        .request = request.id,
        .lease = reservation.id,
        .detail = "hold",
        .count = block_ids.size(),
        .length = config.hold_ttl});
  return RequestFinished{.delay_free = true,
                         .num_leased_blocks = block_ids.size(),
                         .kv_transfer_params = make_params(
                             {.reservation = reservation,
                              .block_ids = block_ids,
                              .num_tokens_with_kv = num_tokens_with_kv,
                              .digested = request.token_ids.first(num_tokens_with_kv),
                              .cache_keys = request.cache_keys,
                              .times = times,
                              .expires_at = told_seconds(saturating_add(now, config.hold_ttl))})};
}

std::size_t SchedulerConnector::hold_budget() const {
  return static_cast<std::size_t>(options_.config.hold_max_blocks_fraction *
                                  static_cast<double>(options_.num_blocks));
}

void SchedulerConnector::begin_drain() {
  draining_ = true;
  recall_holds(SIZE_MAX);
}

// L49: the budget is counted in references, so that two holds of one block count twice.
void SchedulerConnector::make_room_for_hold(std::size_t blocks) {
  const std::size_t budget = hold_budget();
  std::size_t kept = 0;
  for (const auto& [number, hold] : holds_) kept += hold.recalled ? 0 : hold.blocks;
  for (auto& [number, hold] : holds_) {
    if (kept + blocks <= budget) return;
    if (hold.recalled) continue;
    hold.recalled = leases_.end(hold.lease, LeaseEnd::kRecalled);
    kept -= hold.blocks;
  }
}

void SchedulerConnector::recall_holds(std::size_t blocks) {
  std::size_t coming = 0;
  for (auto& [number, hold] : holds_) {
    if (coming >= blocks) return;
    if (!hold.recalled) hold.recalled = leases_.end(hold.lease, LeaseEnd::kRecalled);
    coming += hold.blocks;
  }
}

void SchedulerConnector::forget_hold(const LeaseId& lease) {
  const auto it = hold_numbers_.find(lease);
  if (it == hold_numbers_.end()) return;
  holds_.erase(it->second);
  hold_numbers_.erase(it);
}

std::optional<Counter> SchedulerConnector::declined(const Load& load,
                                                    std::uint32_t num_computed_tokens,
                                                    Instant now) const {
  if (!load.hold || load.num_usable_tokens <= num_computed_tokens) return {};
  if (load.num_usable_tokens - num_computed_tokens < options_.config.recompute_threshold) {
    return Counter::kHoldsTooShort;  // L42
  }
  const auto& reference = load.params.kvlease;
  const auto& expiry = load.params.remote_blocks_expiry_time;
  if (!expiry) return {};  // a router has dropped it: L24 decides
  const Duration ttl = reference ? std::chrono::milliseconds(reference->lease_duration_ms)
                                 : options_.config.hold_ttl;
  const bool late =
      peers_.at(*load.peer).clock.declines(*expiry, std::min(kMarginMax, ttl / 10), now);
  return late ? std::optional(Counter::kHoldsDeclined) : std::nullopt;  // L41
}

}  // namespace kvlease
