// How long the next lease is to be (kv_lease_adaptive): long enough for what was observed of how
// long leases wait for a sign of their readers, with a margin, and never longer than configured.
//
// Grows at once, shrinks slowly. A lease that expired proves nothing yet: its reader may be dead,
// or may have come too late. Until it is known whether the configured duration would have helped,
// it counts as too short, so that short leases cannot confirm themselves.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kvlease/base/time.h"
#include "kvlease/core/lease.h"

namespace kvlease {

struct AdaptiveLeaseOptions {
  Duration duration_min{};  // kv_lease_duration_min
  Duration duration_max{};  // kv_lease_duration; also what is granted without enough samples
  std::uint32_t ranks = 1;  // each reports its own copy's waits
  bool operator==(const AdaptiveLeaseOptions&) const = default;
};

class AdaptiveLease {
 public:
  // The share of waits that may be longer than the estimate before its margin: 1 in so many.
  static constexpr std::uint64_t kQuantileOneIn = 1000;
  static constexpr std::int64_t kMargin = 2;            // times the quantile
  static constexpr std::uint64_t kSamplesMin = 64;      // a rank; fewer: the configured duration
  static constexpr std::int64_t kWindowDurations = 10;  // of duration_max: what is remembered
  static constexpr std::int64_t kShrinkOneIn = 8;       // of the time that passes
  static constexpr Duration kDurationMax = std::chrono::hours{24};

  // Requires: 0 < duration_min <= duration_max <= kDurationMax; ranks > 0.
  explicit AdaptiveLease(const AdaptiveLeaseOptions& options);

  // One wait that a sign of the lease's reader has ended; the longest ones count as duration_max.
  // O(1).
  void observe(const LeaseWait& wait, Instant now);

  // A lease of this duration expired. Whether a longer one would have been kept is known only when
  // a sign comes late (observe), or none within duration_max: until then the next leases are twice
  // as long as it was. O(1).
  void on_expired(Duration lease_duration, Instant now);

  // A reader that does not follow a lease's own interval, as vLLM's: for the window, leases are as
  // long as configured. O(1).
  void on_foreign_reader(Instant now);

  // What a lease granted now gets: duration_min … duration_max, in whole milliseconds unless at one
  // of them. From one call to the next it falls by at most 1 / kShrinkOneIn of the time between
  // them. O(1): the number of buckets is fixed.
  Duration duration(Instant now);

  // What the last call gave; duration_max before the first.
  Duration present() const { return present_; }

  // Waits in the window.
  std::uint64_t samples() const { return total_.samples; }

 private:
  // Waits by length, in milliseconds: 8 buckets for each power of two, so that a bucket's upper
  // edge is less than an eighth above any of its waits.
  static constexpr std::size_t kBuckets = 200;
  static constexpr std::size_t kSlices = 8;  // of the window: the oldest is forgotten as a whole
  struct Slice {
    std::int64_t number = 0;  // since the clock's beginning
    std::uint64_t samples = 0;
    std::array<std::uint32_t, kBuckets> waits{};
    Duration needed_late{};  // the longest wait of a lease that had expired meanwhile …
    bool foreign_reader = false;
  };

  Slice& slice(Instant now);
  Duration target(Instant now) const;
  Duration quantile() const;

  AdaptiveLeaseOptions options_;
  Duration slice_length_{};
  std::array<Slice, kSlices> slices_{};
  Slice total_;  // of the slices in the window
  Duration expired_floor_{};
  Instant expired_floor_until_ = kTimeZero;
  Duration present_{};
  Instant moved_at_ = kTimeZero;
};

}  // namespace kvlease
