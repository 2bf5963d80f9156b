// Replays a trace of requests against one P and several queueing D in virtual time: P's lease
// table, its engine's leases, D's heartbeat clocks and the estimate of the lease length are the
// real ones; the way to D, its queue, its stalls and its deaths are a model. The same options give
// the same run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvlease/base/time.h"

namespace kvlease::traces {

struct TraceRequest {
  Instant arrives_at;
  std::uint32_t input_tokens = 0;
  std::uint32_t output_tokens = 0;
};

// Reads tests/data/NAME.csv.
std::vector<TraceRequest> read_trace(const std::string& name);

struct ReplayOptions {
  bool adaptive = false;
  Duration lease_duration = std::chrono::seconds{30};     // fixed, or the longest
  Duration lease_duration_min = std::chrono::seconds{6};  // of adaptive ones
  std::uint32_t decoders = 4;
  std::uint32_t sequences = 12;  // that one decoder runs at once
  std::uint64_t seed = 1;
  // Decoders stand still now and then, for up to so long.
  Duration stall_max = std::chrono::milliseconds{2500};
  Duration stalls_every = std::chrono::seconds{60};  // on average, each decoder
  // Shares of the trace's length in percent: when a decoder dies, one after the other, and when the
  // way to the decoders gets slower, up to so much, and faster again.
  std::vector<std::int64_t> deaths = {12, 24, 36, 47, 60, 72, 84, 96};
  Duration way_max{};
  std::int64_t way_slow_from = 40;
  std::int64_t way_slow_until = 55;
};

struct ReplayDeath {
  Instant at;
  std::uint64_t leases = 0;  // that nobody could read any more
  double block_seconds = 0;  // that these kept their blocks after the death
};

struct ReplayResult {
  std::uint64_t granted = 0;
  std::uint64_t completed = 0;
  std::uint64_t expired = 0;
  std::uint64_t premature = 0;  // of these, those whose decoder lived and still wanted them
  std::uint64_t heartbeats = 0;
  double block_seconds = 0;  // of all leases
  double dead_block_seconds = 0;
  std::vector<ReplayDeath> deaths;
  struct Granted {
    Instant at;
    Duration duration;
  };
  std::vector<Granted> durations;  // every one that differs from the one before
};

ReplayResult replay(const std::vector<TraceRequest>& trace, const ReplayOptions& options);

}  // namespace kvlease::traces
