// The leases that a router keeps alive itself, from P's answer until D's first byte, so that none
// waits for its end while nobody names it yet; and those that it gives back. A renewing call to a P
// goes out once in P's interval, for all leases together, and never while one is under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kvlease/base/ids.h"
#include "kvlease/base/time.h"

namespace kvlease {

inline constexpr std::size_t kBridgeIdsMax = 4096;  // of one call

enum class BridgeCall : std::uint8_t {
  kRenew,    // L2
  kRelease,  // L10
};

class LeaseBridge {
 public:
  // What to tell one P now.
  struct Call {
    std::string prefill;  // as it was given to track() and release()
    BridgeCall what{};
    std::vector<LeaseId> leases;  // at most kBridgeIdsMax
    bool operator==(const Call&) const = default;
  };

  // Renews the lease every `interval`, the first time at most so long from now; of several that
  // P's leases ask for, the smallest counts (L14). Requires: interval > 0.
  void track(const std::string& prefill, const LeaseId& lease, Duration interval, Instant now);
  // Renews it no more; nothing where it was not tracked. O(log tracked), as all of these.
  void forget(const std::string& prefill, const LeaseId& lease);
  // The same, and gives it back.
  void release(const std::string& prefill, const LeaseId& lease);

  // The calls to send now; each is answered by one on_answered() or on_failed().
  std::vector<Call> take_calls(Instant now);
  // P has answered; what it does not know it need not be asked about again. Returns how many of the
  // call's leases it knew.
  std::size_t on_answered(const Call& call, std::span<const LeaseId> unknown);
  // P has not. A release is tried once more; then the lease ends by itself. Returns how many leases
  // are given up.
  std::size_t on_failed(const Call& call);

  Instant next_deadline() const;
  std::size_t tracked() const { return tracked_; }
  // Nothing is under way and nothing is to be given back.
  bool quiet() const;

 private:
  struct Prefill {
    std::map<LeaseId, Duration> tracked;  // with their intervals
    std::multiset<Duration> intervals;    // of `tracked`
    Instant next_renewal = kNever;
    std::size_t renewing = 0;  // calls under way
    std::vector<LeaseId> to_release;
    std::set<LeaseId> failed_once;
    bool is_releasing = false;
  };
  void erase_if_idle(const std::string& prefill);

  std::map<std::string, Prefill> prefills_;
  std::size_t tracked_ = 0;
};

}  // namespace kvlease
