// The estimate behind adaptive lease lengths: a histogram over a sliding window, and integers only,
// so that it is the same on every machine.
#include "kvlease/core/adaptive_lease.h"

#include <algorithm>
#include <bit>

#include "kvlease/base/check.h"

namespace kvlease {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kLinear = 16;  // so many buckets of one millisecond each come first

std::size_t bucket_of(Duration wait) {
  const auto ms = static_cast<std::uint64_t>(std::chrono::ceil<milliseconds>(wait).count());
  if (ms < kLinear) return ms;
  const auto exponent = static_cast<std::size_t>(std::bit_width(ms)) - 1;
  return kLinear + (exponent - 4) * 8 + ((ms >> (exponent - 3)) & 7);
}

// The longest wait of a bucket.
Duration upper_edge(std::size_t bucket) {
  if (bucket < kLinear) return milliseconds(bucket);
  const std::size_t shift = (bucket - kLinear) / 8 + 1;
  const std::uint64_t eighth = 8 + (bucket - kLinear) % 8;
  return milliseconds(((eighth + 1) << shift) - 1);
}

// Before anything is computed from them.
AdaptiveLeaseOptions checked(const AdaptiveLeaseOptions& options) {
  KVL_CHECK(options.duration_min > Duration::zero() &&
                options.duration_min <= options.duration_max &&
                options.duration_max <= AdaptiveLease::kDurationMax,
            "the range of lease durations was checked at start (L13)");
  KVL_CHECK(options.ranks > 0, "an engine has a rank");
  return options;
}

}  // namespace

AdaptiveLease::AdaptiveLease(const AdaptiveLeaseOptions& options)
    : options_(checked(options)),
      slice_length_(options.duration_max * kWindowDurations / static_cast<int>(kSlices)),
      present_(options.duration_max) {}

// The slice of now. What has left the window is taken out of the total.
AdaptiveLease::Slice& AdaptiveLease::slice(Instant now) {
  const std::int64_t number = now.time_since_epoch() / slice_length_;
  for (Slice& old : slices_) {
    if (old.samples == 0 && !old.foreign_reader) continue;
    if (old.number + static_cast<std::int64_t>(kSlices) > number) continue;
    total_.samples -= old.samples;
    for (std::size_t i = 0; i < kBuckets; ++i) total_.waits[i] -= old.waits[i];
    old = Slice{};
  }
  total_.needed_late = Duration::zero();
  total_.foreign_reader = false;
  for (const Slice& one : slices_) {
    total_.needed_late = std::max(total_.needed_late, one.needed_late);
    total_.foreign_reader |= one.foreign_reader;
  }
  Slice& present = slices_[static_cast<std::size_t>(number) % kSlices];
  present.number = number;
  return present;
}

void AdaptiveLease::observe(const LeaseWait& wait, Instant now) {
  Slice& present = slice(now);
  const Duration needed = std::clamp(wait.needed, Duration::zero(), options_.duration_max);
  const std::size_t bucket = bucket_of(needed);
  ++present.samples;
  ++present.waits[bucket];
  ++total_.samples;
  ++total_.waits[bucket];
  if (wait.late) present.needed_late = std::max(present.needed_late, needed);
}

void AdaptiveLease::on_expired(Duration lease_duration, Instant now) {
  if (now >= expired_floor_until_) expired_floor_ = Duration::zero();
  const Duration doubled = std::min(lease_duration, options_.duration_max) * 2;
  expired_floor_ = std::max(expired_floor_, std::min(doubled, options_.duration_max));
  expired_floor_until_ = saturating_add(now, options_.duration_max);
}

void AdaptiveLease::on_foreign_reader(Instant now) { slice(now).foreign_reader = true; }

Duration AdaptiveLease::duration(Instant now) {
  slice(now);
  // A pause without a call is no evidence for anything: no more of it counts than one lease.
  const Duration elapsed = std::clamp(now - moved_at_, Duration::zero(), options_.duration_max);
  moved_at_ = std::max(moved_at_, now);
  const Duration lowest = present_ - elapsed / kShrinkOneIn;
  const Duration wanted = std::max(target(now), lowest);
  present_ = std::clamp<Duration>(std::chrono::ceil<milliseconds>(wanted), options_.duration_min,
                                  options_.duration_max);
  return present_;
}

Duration AdaptiveLease::target(Instant now) const {
  if (total_.samples < kSamplesMin * options_.ranks || total_.foreign_reader) {
    return options_.duration_max;
  }
  // What was proven too short is covered as a whole, however rare; what was not, but for 1 in 1000.
  Duration wanted = std::max(quantile(), total_.needed_late) * kMargin;
  if (now < expired_floor_until_) wanted = std::max(wanted, expired_floor_);
  return std::clamp(wanted, options_.duration_min, options_.duration_max);
}

// An upper bound of all waits but 1 in kQuantileOneIn.
Duration AdaptiveLease::quantile() const {
  std::uint64_t longer_left = total_.samples / kQuantileOneIn;
  for (std::size_t bucket = kBuckets; bucket-- > 0;) {
    if (total_.waits[bucket] > longer_left) return upper_edge(bucket);
    longer_left -= total_.waits[bucket];
  }
  return Duration::zero();
}

}  // namespace kvlease
