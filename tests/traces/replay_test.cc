// Adaptive leases against fixed ones on real traffic: no reader that lives loses a lease, and dead
// ones keep blocks for a fraction of the time. Figures are printed; docs/adaptive-lease.md has
// them.
#include "tests/traces/replay.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>

namespace kvlease::traces {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

void print(const std::string& what, const ReplayResult& r) {
  std::cout << what << ": " << r.granted << " granted, " << r.completed << " completed, "
            << r.expired << " expired, " << r.premature << " premature, " << r.heartbeats
            << " heartbeats, " << r.block_seconds << " block·s, of dead readers "
            << r.dead_block_seconds << " (";
  for (const ReplayDeath& death : r.deaths) {
    std::cout << ' ' << death.leases << ':' << death.block_seconds;
  }
  std::cout << " )\n";
}

// A trace, decoders that it keeps busy most of the time, and what happens to them.
struct Traffic {
  std::string trace;
  ReplayOptions options;
};

ReplayOptions an_hour() { return {.sequences = 10, .way_max = seconds(9)}; }
ReplayOptions a_quarter() { return {.sequences = 6, .deaths = {30, 50, 70, 90}}; }

class Trace : public ::testing::TestWithParam<Traffic> {
 protected:
  ReplayResult run(const std::string& what, const ReplayOptions& with) {
    const ReplayResult result = replay(trace, with);
    print(GetParam().trace + ", " + what, result);
    EXPECT_EQ(result.granted, trace.size());
    EXPECT_EQ(result.completed + result.expired, result.granted);
    return result;
  }
  const std::vector<TraceRequest> trace = read_trace(GetParam().trace);
  ReplayOptions options = GetParam().options;
};
INSTANTIATE_TEST_SUITE_P(Mooncake, Trace,
                         ::testing::Values(Traffic{"mooncake_conversation", an_hour()},
                                           Traffic{"mooncake_synthetic", a_quarter()}));

TEST_P(Trace, AdaptiveLeasesLoseNoReaderAndGiveBackSooner) {
  for (const std::uint64_t seed : {1u, 2u}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    options.seed = seed;
    options.adaptive = false;
    const ReplayResult fixed = run("fixed 30 s", options);
    options.adaptive = true;
    const ReplayResult adaptive = run("adaptive", options);
    EXPECT_EQ(fixed.premature, 0u);
    EXPECT_EQ(adaptive.premature, 0u);
    EXPECT_GT(fixed.dead_block_seconds, 0);
    EXPECT_LT(adaptive.dead_block_seconds, 0.5 * fixed.dead_block_seconds);
  }
}

// For tools/adaptive_lease_figure.py, when it asks: the run of seed 1.
TEST(Figure, WritesItsData) {
  const char* const path = std::getenv("KVL_FIGURE_DATA");
  if (path == nullptr) GTEST_SKIP() << "KVL_FIGURE_DATA names no file";
  std::ofstream file(path);
  const std::vector<TraceRequest> trace = read_trace("mooncake_conversation");
  for (const bool adaptive : {false, true}) {
    ReplayOptions options = an_hour();
    options.adaptive = adaptive;
    const ReplayResult result = replay(trace, options);
    const std::string name = adaptive ? "adaptive" : "fixed";
    for (const auto& [at, duration] : result.durations) {
      file << name << " duration " << to_seconds(at - kTimeZero) << ' ' << to_seconds(duration)
           << '\n';
    }
    for (const ReplayDeath& death : result.deaths) {
      file << name << " death " << to_seconds(death.at - kTimeZero) << ' ' << death.block_seconds
           << '\n';
    }
  }
  ASSERT_TRUE(file.good()) << path;
}

// It is no art to give back soon: leases that are always short lose readers.
TEST_P(Trace, LeasesThatAreAlwaysShortLoseReaders) {
  options.lease_duration = seconds(6);
  options.way_max = seconds(9);
  EXPECT_GT(run("fixed 6 s", options).premature, 0u);
}

// Stalls that are longer than leases allow, and too rare to be remembered, may break leases: never
// more of them than if leases were always short.
TEST_P(Trace, RareLongStallsBreakFewLeases) {
  options.way_max = seconds(0);
  options.stall_max = seconds(12);
  options.stalls_every = seconds(900);
  options.adaptive = true;
  const ReplayResult adaptive = run("rare long stalls, adaptive", options);
  options.adaptive = false;
  const ReplayResult fixed = run("rare long stalls, fixed 30 s", options);
  options.lease_duration = seconds(6);
  const ReplayResult shortest = run("rare long stalls, fixed 6 s", options);
  EXPECT_EQ(fixed.premature, 0u);
  EXPECT_LE(adaptive.premature, shortest.premature);
}

}  // namespace
}  // namespace kvlease::traces
