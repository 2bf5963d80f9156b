// Implements lease_bridge.h.
#include "kvlease/route/lease_bridge.h"

#include <algorithm>
#include <iterator>

#include "kvlease/base/check.h"

namespace kvlease {

void LeaseBridge::track(const std::string& prefill, const LeaseId& lease, Duration interval,
                        Instant now) {
  KVL_CHECK(interval > Duration::zero(), "a lease is renewed now and then");
  Prefill& p = prefills_[prefill];
  if (!p.tracked.emplace(lease, interval).second) return;
  ++tracked_;
  p.intervals.insert(interval);
  p.next_renewal = earlier(p.next_renewal, saturating_add(now, interval));
}

void LeaseBridge::forget(const std::string& prefill, const LeaseId& lease) {
  const auto found = prefills_.find(prefill);
  if (found == prefills_.end()) return;
  Prefill& p = found->second;
  const auto it = p.tracked.find(lease);
  if (it == p.tracked.end()) return;
  p.intervals.erase(p.intervals.find(it->second));
  p.tracked.erase(it);
  --tracked_;
  if (p.tracked.empty()) p.next_renewal = kNever;
  erase_if_idle(prefill);
}

void LeaseBridge::release(const std::string& prefill, const LeaseId& lease) {
  prefills_[prefill].to_release.push_back(lease);
  forget(prefill, lease);
}

std::vector<LeaseBridge::Call> LeaseBridge::take_calls(Instant now) {
  std::vector<Call> calls;
  for (auto& [name, p] : prefills_) {
    if (!p.is_releasing && !p.to_release.empty()) {
      p.is_releasing = true;
      const auto count = std::min(p.to_release.size(), kBridgeIdsMax);
      const auto end = p.to_release.begin() + static_cast<std::ptrdiff_t>(count);
      calls.push_back({name, BridgeCall::kRelease, {p.to_release.begin(), end}});
      p.to_release.erase(p.to_release.begin(), end);
    }
    if (p.renewing > 0 || now < p.next_renewal) continue;
    p.next_renewal = saturating_add(now, *p.intervals.begin());
    // All that there is: beyond kBridgeIdsMax in several calls of one turn.
    for (auto it = p.tracked.begin(); it != p.tracked.end();) {
      Call call{name, BridgeCall::kRenew, {}};
      for (; it != p.tracked.end() && call.leases.size() < kBridgeIdsMax; ++it) {
        call.leases.push_back(it->first);
      }
      calls.push_back(std::move(call));
      ++p.renewing;
    }
  }
  return calls;
}

std::size_t LeaseBridge::on_answered(const Call& call, std::span<const LeaseId> unknown) {
  Prefill& p = prefills_.at(call.prefill);
  const std::size_t known = call.leases.size() - std::min(unknown.size(), call.leases.size());
  if (call.what == BridgeCall::kRelease) {
    p.is_releasing = false;
    for (const LeaseId& lease : call.leases) p.failed_once.erase(lease);
    erase_if_idle(call.prefill);
    return known;
  }
  --p.renewing;
  for (const LeaseId& lease : unknown) forget(call.prefill, lease);
  erase_if_idle(call.prefill);
  return known;
}

std::size_t LeaseBridge::on_failed(const Call& call) {
  Prefill& p = prefills_.at(call.prefill);
  std::size_t given_up = 0;
  if (call.what == BridgeCall::kRelease) {
    p.is_releasing = false;
    for (const LeaseId& lease : call.leases) {
      if (p.failed_once.insert(lease).second) {
        p.to_release.push_back(lease);
      } else {
        p.failed_once.erase(lease);
        ++given_up;
      }
    }
  } else {
    --p.renewing;  // the next interval tries again
  }
  erase_if_idle(call.prefill);
  return given_up;
}

Instant LeaseBridge::next_deadline() const {
  Instant next = kNever;
  for (const auto& [name, p] : prefills_) {
    if (p.renewing == 0) next = earlier(next, p.next_renewal);
    if (!p.is_releasing && !p.to_release.empty()) return kTimeZero;
  }
  return next;
}

bool LeaseBridge::quiet() const {
  return std::ranges::none_of(prefills_, [](const auto& entry) {
    return entry.second.is_releasing || !entry.second.to_release.empty();
  });
}

void LeaseBridge::erase_if_idle(const std::string& prefill) {
  const auto it = prefills_.find(prefill);
  if (it == prefills_.end()) return;
  const Prefill& p = it->second;
  if (p.tracked.empty() && p.renewing == 0 && !p.is_releasing && p.to_release.empty()) {
    prefills_.erase(it);
  }
}

}  // namespace kvlease
