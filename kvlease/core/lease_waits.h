// What one rank of P observes of how long its leases wait for a sign of their readers: a heartbeat,
// a renewal by HTTP, a report. Says for each wait how long a lease would have had to be to outlive
// it, also when the sign came too late: expired leases are remembered for that, in bounded number.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kvlease/base/time.h"
#include "kvlease/core/lease.h"

namespace kvlease {

// A lease's time without a sign, as it stands.
struct LeaseSilence {
  Instant since;         // the last sign, or the grant
  bool first = true;     // no sign came yet
  Duration extension{};  // the lease's own
};

// A lease that nobody renews after its first sign loses it an extension later; its readers renew it
// four times in that (L12). So what counts of a later silence is how late it was ended: a silence
// of a quarter of the extension needs nothing, one of all of it needs the lease's whole duration.
constexpr Duration lease_needed(const LeaseSilence& silence, Instant now) {
  const Duration length = now - silence.since;
  if (silence.first) return length;
  return std::max(Duration::zero(), 2 * (length - silence.extension / 4));
}

class LeaseWaits {
 public:
  // Of waits not taken yet, and of expired leases, so many are kept (L43).
  explicit LeaseWaits(std::size_t kept_max) : kept_max_(kept_max) {}

  // A sign has ended this silence of a live lease. O(1).
  void on_sign(const LeaseSilence& silence, Instant now) { add(silence, /*late=*/false, now); }

  // The lease's silence has outlived it. O(log n).
  void on_expired(const LeaseId& id, const LeaseSilence& silence);

  // A sign for an id that is not live. Returns true when its lease had expired and this is the
  // first sign since. O(log n).
  bool on_late_sign(std::string_view id, Instant now);

  std::vector<LeaseWait> take();
  bool empty() const { return waits_.empty(); }

 private:
  void add(const LeaseSilence& silence, bool late, Instant now);

  std::size_t kept_max_;
  std::vector<LeaseWait> waits_;
  std::map<std::string, LeaseSilence, std::less<>> expired_;
  std::deque<std::string> expired_order_;  // oldest first; some may have had their sign
};

}  // namespace kvlease
