// Leases whose length follows what P observes (kv_lease_adaptive), between whole engines: a fast
// decoder, a slow way to it, one that stalls, one that dies, and one that keeps its own interval.
#include <gtest/gtest.h>

#include <algorithm>

#include "kvlease/core/adaptive_lease.h"
#include "tests/pairs/fixture.h"

namespace kvlease::pairs {
namespace {

class Adaptive : public PairTest {
 protected:
  InstanceOptions adaptive() const {
    InstanceOptions producer = options();
    producer.lease.lease_adaptive = true;
    producer.lease.lease_duration_min = seconds(3);
    return producer;
  }

  // One hand-over a second for so long; the prompt reaches D so much after P's answer.
  void hand_over(Duration length, Duration way) {
    for (const Instant end = world.now() + length; world.now() < end;) {
      const std::string text = prompt(9, static_cast<char>('a' + handed_over_++ % 20));
      const std::string params = world.params_of_prefill("P", text);
      const Instant next = world.now() + std::max<Duration>(seconds(1), way);
      world.run_for(way);
      const Ticket ticket = world.decode("D", text, params, 2);
      ASSERT_TRUE(world.finishes(ticket, seconds(5)));
      expect_text(ticket, text, 2);
      world.run_to(std::max(next, world.now()));
    }
  }

  Duration lease_duration() { return world.engine("P").connector().lease_duration(); }
  std::uint64_t late_signs() { return world.count("P", Counter::kSignsLate); }
  LeaseReference reference(const std::string& params) {
    return *parse_kv_transfer_params(params, 1 << 20)->kvlease;
  }

  int handed_over_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Ranks, Adaptive, ::testing::Values(1u, 2u));

// L14: a grant carries its own duration and interval, the reader follows it, and P renews it by its
// own extension.
TEST_P(Adaptive, AFastDecoderMakesLeasesShortAndTheyAreKept) {
  world.add("P", adaptive());
  world.add("D", one_at_a_time(options()));
  EXPECT_EQ(lease_duration(), seconds(30));
  hand_over(seconds(400), Duration::zero());
  EXPECT_EQ(lease_duration(), seconds(3));

  const std::string text = prompt(22, 'y');
  const std::string params = world.params_of_prefill("P", text);
  EXPECT_EQ(reference(params).lease_duration_ms, 3000u);
  EXPECT_EQ(reference(params).heartbeat_interval_ms, 500u);
  keep_busy("D", 60);
  const std::uint64_t heartbeats = world.count("P", Counter::kHeartbeatsReceived);
  const Ticket ticket = world.decode("D", text, params, 4);
  world.run_for(seconds(50));
  EXPECT_EQ(live("P"), 1u);
  EXPECT_EQ(world.count("P", Counter::kHeartbeatsReceived), heartbeats + 100 * tp());
  ASSERT_TRUE(world.finishes(ticket, seconds(20)));
  expect_text(ticket, text, 4);
  EXPECT_EQ(ended("P", LeaseEnd::kExpired), 0u);
  EXPECT_EQ(world.count("D", Counter::kFallbacks), 0u);
  world.expect_all_back();
}

// L14: D's interval for a P is the smallest that its leases there need, so that a short lease among
// long ones is kept.
TEST_P(Adaptive, LongAndShortLeasesWaitTogether) {
  world.add("P", adaptive());
  world.add("D", one_at_a_time(options()));
  const std::string before = world.params_of_prefill("P", prompt(22, 'x'));
  EXPECT_EQ(reference(before).lease_duration_ms, 30'000u);
  const std::size_t granted = world.count_events("P", EventKind::kLeaseGranted);
  EXPECT_EQ(granted, 1u);
  world.release("P", *parse_kv_transfer_params(before, 1 << 20)->remote_request_id);
  hand_over(seconds(300), Duration::zero());
  const std::string longer = world.params_of_prefill("P", prompt(22, 'y'));
  keep_busy("D", 40);
  const Ticket first = world.decode("D", prompt(22, 'y'), longer, 4);
  world.run_for(seconds(10));
  const std::string shorter = world.params_of_prefill("P", prompt(22, 'z'));
  EXPECT_LE(reference(shorter).lease_duration_ms, reference(longer).lease_duration_ms);
  const Ticket second = world.decode("D", prompt(22, 'z'), shorter, 4);
  ASSERT_TRUE(world.finishes(first, seconds(60)));
  ASSERT_TRUE(world.finishes(second, seconds(60)));
  expect_text(first, prompt(22, 'y'), 4);
  expect_text(second, prompt(22, 'z'), 4);
  EXPECT_EQ(ended("P", LeaseEnd::kExpired), 0u);
  EXPECT_EQ(world.count("D", Counter::kFallbacks), 0u);
  world.expect_all_back();
}

TEST_P(Adaptive, ASlowWayKeepsLeasesLong) {
  world.add("P", adaptive());
  world.add("D", options());
  hand_over(seconds(900), seconds(4));
  EXPECT_GE(lease_duration(), seconds(8));
  EXPECT_LE(lease_duration(), seconds(10));
  EXPECT_EQ(ended("P", LeaseEnd::kExpired), 0u);
  EXPECT_EQ(late_signs(), 0u);
  EXPECT_EQ(world.count("D", Counter::kFallbacks), 0u);
  world.expect_all_back();
}

// A stall that was never seen may break the leases of its time; the next ones are long enough, and
// no text is wrong.
TEST_P(Adaptive, AStallBreaksLeasesOnce) {
  world.add("P", adaptive());
  world.add("D", one_at_a_time(options()));
  hand_over(seconds(400), Duration::zero());
  ASSERT_EQ(lease_duration(), seconds(3));
  for (int round = 0; round < 3; ++round) {
    const std::string text = prompt(22, static_cast<char>('w' + round));
    const std::string params = world.params_of_prefill("P", text);
    keep_busy("D", 10);
    const Ticket ticket = world.decode("D", text, params, 4);
    world.run_for(seconds(2));
    world.stop("D");
    world.run_for(seconds(4));
    world.cont("D");
    ASSERT_TRUE(world.finishes(ticket, seconds(40)));
    expect_text(ticket, text, 4);
    EXPECT_EQ(ended("P", LeaseEnd::kExpired), 1u) << "round " << round;
    EXPECT_EQ(late_signs(), tp());
    EXPECT_GE(lease_duration(), seconds(7)) << "round " << round;
    hand_over(seconds(100), Duration::zero());
  }
  EXPECT_EQ(world.count("D", Counter::kFallbacks), 1u);
  world.expect_all_back();
}

// Leases of a decoder that died come back soon; that they expired is a reason for longer ones only
// as long as it may have been late.
TEST_P(Adaptive, ADeadDecodersLeasesComeBackSoon) {
  world.add("P", adaptive());
  world.add("D", options());
  world.add("D2", one_at_a_time(options()));
  hand_over(seconds(400), Duration::zero());
  ASSERT_EQ(lease_duration(), seconds(3));
  keep_busy("D2", 100);
  for (const char kind : {'x', 'y'}) {
    world.decode("D2", prompt(22, kind), world.params_of_prefill("P", prompt(22, kind)), 4);
  }
  world.run_for(seconds(10));
  EXPECT_EQ(live("P"), 2u);
  world.kill("D2");
  world.run_for(milliseconds(2010));  // the extension of 3 s
  EXPECT_EQ(live("P"), 0u);
  EXPECT_EQ(ended("P", LeaseEnd::kExpired), 2u);
  EXPECT_EQ(lease_duration(), seconds(6));
  EXPECT_EQ(late_signs(), 0u);
  hand_over(seconds(30), Duration::zero());
  EXPECT_LT(lease_duration(), seconds(6));
  hand_over(seconds(30), Duration::zero());
  EXPECT_EQ(lease_duration(), seconds(3));
  world.expect_all_back();
}

}  // namespace
}  // namespace kvlease::pairs
