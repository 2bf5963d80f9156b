// Time as types: an Instant of one process's monotonic clock and a Duration between two of them.
// Nothing here reads a clock; `now` comes in as a parameter (rule L46: only durations cross
// processes, so an Instant must never be put on a wire).
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>

namespace kvlease {

// Names the time base of Instant: CLOCK_MONOTONIC of this process, or virtual time in tests and in
// the simulator. It is not a clock of <chrono>: it has no now().
struct MonotonicTimeBase {
  using rep = std::int64_t;
  using period = std::nano;
  using duration = std::chrono::nanoseconds;
  using time_point = std::chrono::time_point<MonotonicTimeBase>;
  static constexpr bool is_steady = true;
};

using Duration = std::chrono::nanoseconds;
using Instant = MonotonicTimeBase::time_point;

// The deadline of what never happens; every other instant is before it.
inline constexpr Instant kNever = Instant::max();
inline constexpr Instant kTimeZero = Instant{};
inline constexpr Duration kForever = Duration::max();

// `start + length`, saturating at kNever instead of wrapping (L13; scenario A18).
// Requires: length >= 0.
constexpr Instant saturating_add(Instant start, Duration length) {
  const std::int64_t ticks = start.time_since_epoch().count();
  if (ticks > 0 && length.count() > INT64_MAX - ticks) return kNever;
  return start + length;
}

// What is left of the time until `deadline`; 0 when it has passed, kForever for kNever.
constexpr Duration remaining(Instant deadline, Instant now) {
  if (deadline == kNever) return kForever;
  return deadline <= now ? Duration::zero() : deadline - now;
}

constexpr Instant earlier(Instant a, Instant b) { return a < b ? a : b; }

constexpr double to_seconds(Duration length) {
  return std::chrono::duration<double>(length).count();
}
// Rounded to the nanosecond. Requires: finite, and within what a Duration holds.
inline Duration from_seconds(double seconds) { return Duration(std::llround(seconds * 1e9)); }
constexpr double to_milliseconds(Duration length) {
  return std::chrono::duration<double, std::milli>(length).count();
}

}  // namespace kvlease
