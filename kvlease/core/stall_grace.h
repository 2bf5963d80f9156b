// Keeps a loop that woke late from expiring leases whose heartbeats still sit in sockets (L47).
#pragma once

#include "kvlease/base/time.h"
#include "kvlease/core/lease.h"

namespace kvlease {

class StallGrace {
 public:
  explicit StallGrace(const LeaseTimes& times);

  // Begins a turn. `wake_requested`: when the loop had asked to be woken (kNever: by a message
  // only, which is never late). A turn more than one heartbeat interval later than asked starts a
  // grace of min(extension / 4, 1 s); a running grace is never extended. Returns true when a grace
  // started.
  bool begin_turn(Instant wake_requested, Instant now);

  // False while a grace runs: drain and renew, but sweep nothing. True from its end on, however
  // late.
  bool may_expire(Instant now) const { return now >= until_; }

  // The end of a running grace; kTimeZero when none ran yet.
  Instant until() const { return until_; }

 private:
  Duration late_after_;
  Duration grace_;
  Instant until_ = kTimeZero;
  bool awaits_end_ = false;  // the grace began and no turn at or after its end has come
};

}  // namespace kvlease
