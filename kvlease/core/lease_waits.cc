// Keeps the waits until they are taken, and the silences of expired leases until a sign comes.
#include "kvlease/core/lease_waits.h"

#include <utility>

namespace kvlease {

void LeaseWaits::add(const LeaseSilence& silence, bool late, Instant now) {
  if (waits_.size() >= kept_max_) return;  // L43: one turn's signs are alike
  waits_.push_back({.needed = lease_needed(silence, now), .late = late});
}

void LeaseWaits::on_expired(const LeaseId& id, const LeaseSilence& silence) {
  if (expired_order_.size() >= kept_max_) {
    expired_.erase(expired_order_.front());
    expired_order_.pop_front();
  }
  expired_.insert_or_assign(id.str(), silence);
  expired_order_.push_back(id.str());
}

bool LeaseWaits::on_late_sign(std::string_view id, Instant now) {
  const auto it = expired_.find(id);
  if (it == expired_.end()) return false;
  add(it->second, /*late=*/true, now);
  expired_.erase(it);
  return true;
}

std::vector<LeaseWait> LeaseWaits::take() { return std::exchange(waits_, {}); }

}  // namespace kvlease
