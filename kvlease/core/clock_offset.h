// How far a peer's clock is ahead of ours, estimated from the samples that handshakes bring (L40).
// An error costs time, never truth: what is read is validated (L24, L41).
#pragma once

#include <optional>

#include "kvlease/base/time.h"

namespace kvlease {

class ClockOffset {
 public:
  // One exchange: we asked at `sent`, had the answer at `received`, and in between the peer's clock
  // read `remote_seconds`. Requires: sent <= received.
  void add_sample(Instant sent, Instant received, double remote_seconds) {
    const Duration round_trip = received - sent;
    if (round_trip_ && *round_trip_ <= round_trip) return;
    round_trip_ = round_trip;
    const double sent_seconds = to_seconds(sent.time_since_epoch());
    seconds_ = remote_seconds - (sent_seconds + to_seconds(round_trip) / 2);
  }

  // Seconds by which the peer's clock is ahead, from the sample with the smallest round trip; off
  // by half of that at most. 0 without a sample.
  double seconds() const { return seconds_; }

  // Whether so little is left of something that ends at `expiry_seconds` on the peer's clock that
  // it is not worth beginning to read (L41).
  bool declines(double expiry_seconds, Duration margin, Instant now) const {
    return to_seconds(now.time_since_epoch()) + to_seconds(margin) >= expiry_seconds - seconds_;
  }

 private:
  std::optional<Duration> round_trip_;
  double seconds_ = 0;
};

}  // namespace kvlease
