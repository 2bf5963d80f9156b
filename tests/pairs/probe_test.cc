// How soon a decoder learns, while its request still waits, that a lease is over or that nobody
// hears its heartbeats (L25, L21).
#include <gtest/gtest.h>

#include "tests/pairs/fixture.h"

namespace kvlease::pairs {
namespace {

constexpr Duration kInterval = seconds(5);
// A turn of P that fences, a probe's flight, a turn of D that sees it.
constexpr Duration kStep = milliseconds(10);

class Probe : public PairTest {
 protected:
  // Of the n-th such event, which is still to come.
  Instant time_of(const std::string& engine, EventKind kind, std::size_t n = 1) {
    EXPECT_TRUE(
        world.run_until([&] { return world.count_events(engine, kind) >= n; }, seconds(60)));
    return world.now();
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Probe, ::testing::Values(1u, 2u));

// L25: within an interval and a step of the end, whenever that comes, the load is given up and the
// prompt waits to be computed here.
TEST_P(Probe, AForcedEndReachesTheWaitingRequestWithinAnInterval) {
  world.add("P", options());
  world.add("D", one_at_a_time(options()));
  Duration longest{};
  std::size_t lost = 0;
  for (const int phase_ms : {1, 700, 1900, 2500, 3300, 4400, 4999}) {
    SCOPED_TRACE(phase_ms);
    const std::string text = prompt(22, static_cast<char>('a' + lost));
    const std::string params = world.params_of_prefill("P", text);
    const LeaseId lease = *parse_kv_transfer_params(params, 1 << 20)->remote_request_id;
    const Ticket before = keep_busy("D", 20);
    const Ticket ticket = world.decode("D", text, params, 8);
    world.run_for(seconds(10) + milliseconds(phase_ms));
    ASSERT_TRUE(world.release("P", lease));
    const Instant ended_at = world.now();
    const Duration took = time_of("D", EventKind::kLoadFailed, ++lost) - ended_at;
    EXPECT_LE(took, kInterval + kStep);
    EXPECT_EQ(world.count_events("D", EventKind::kLeaseLost), lost);
    EXPECT_FALSE(world.finished(before));
    ASSERT_TRUE(world.finishes(ticket, seconds(60)));
    expect_text(ticket, text, 8);
    longest = std::max(longest, took);
  }
  EXPECT_EQ(world.count("D", Counter::kReadsPosted), 0u);  // nothing was read in vain
  EXPECT_EQ(world.count("D", Counter::kFallbacks), lost);
  EXPECT_GT(longest, kInterval / 2);  // it is the probe that tells, not luck
  world.expect_all_back();
}

// L25, L21: three intervals without an acknowledgement, then a new connection; the lease that
// nobody renewed meanwhile is saved.
TEST_P(Probe, UnheardHeartbeatsAreNoticedWithinThreeIntervalsAndHealed) {
  world.add("P", options());
  // What is lost is what was sent before the new handshake.
  world.add("D", with_faults(one_at_a_time(options()), {.drop_notif = {.count = 4}}));
  const std::string text = prompt(22, 'a');
  const std::string params = world.params_of_prefill("P", text);
  keep_busy("D", 60);
  const Ticket ticket = world.decode("D", text, params, 8);
  const Instant begun = time_of("D", EventKind::kHeartbeatSent);
  const Instant noticed = time_of("D", EventKind::kPeerSuspect);
  EXPECT_LE(noticed - begun, 3 * kInterval + kStep);
  // Each rank listens for itself.
  EXPECT_EQ(world.count("D", Counter::kHeartbeatsUnacknowledged), tp());
  EXPECT_EQ(world.count("P", Counter::kHeartbeatsReceived), 0u);
  ASSERT_TRUE(
      world.run_until([&] { return world.count("D", Counter::kHandshakesDone) == 2; }, seconds(1)));
  ASSERT_TRUE(world.run_until(
      [&] { return world.count("P", Counter::kHeartbeatsReceived) >= tp(); }, seconds(1)));
  ASSERT_TRUE(world.finishes(ticket, seconds(80)));
  expect_text(ticket, text, 8);
  EXPECT_EQ(world.count("D", Counter::kFallbacks), 0u);
  EXPECT_EQ(ended("P", LeaseEnd::kCompleted), 1u);
  world.expect_all_back();
}

}  // namespace
}  // namespace kvlease::pairs
