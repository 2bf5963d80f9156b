// Decides when a late turn waits before it expires anything.
#include "kvlease/core/stall_grace.h"

#include <algorithm>

namespace kvlease {

StallGrace::StallGrace(const LeaseTimes& times)
    : late_after_(times.heartbeat_interval),
      grace_(std::min<Duration>(times.extension / 4, std::chrono::seconds{1})) {}

bool StallGrace::begin_turn(Instant wake_requested, Instant now) {
  if (awaits_end_) {
    // L47: the first turn at or after the end sweeps, however late it is.
    awaits_end_ = now < until_;
    return false;
  }
  if (now <= saturating_add(wake_requested, late_after_)) return false;
  until_ = saturating_add(now, grace_);
  awaits_end_ = true;
  return true;
}

}  // namespace kvlease
