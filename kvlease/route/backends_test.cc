// The pool against literal times: turns, health, probes.
#include "kvlease/route/backends.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace kvlease {
namespace {

using namespace std::chrono_literals;
using enum BackendState;
using testing::ElementsAre;
using testing::IsEmpty;
using Probe = BackendPool::Probe;

constexpr Instant at(Duration since_start) { return kTimeZero + since_start; }

// A pool whose backends answered their first probe at 0 s with these statuses.
BackendPool probed(std::initializer_list<std::optional<int>> statuses,
                   RoutePolicy policy = RoutePolicy::kRoundRobin) {
  BackendPool pool(statuses.size(), policy, 1);
  pool.take_probes(at(0s));
  std::size_t backend = 0;
  for (const auto status : statuses) pool.on_probe(backend++, status, {}, at(0s));
  return pool;
}

TEST(BackendsTest, EveryStateTakesEveryEvent) {
  EXPECT_EQ(
      describe_transitions(backend_transitions(), 4, 4, backend_state_name, backend_event_name),
      "unprobed probe_passed -> ready\n"
      "unprobed probe_refused -> busy\n"
      "unprobed probe_failed -> down\n"
      "unprobed call_died -> down\n"
      "ready probe_passed -> ready\n"
      "ready probe_refused -> busy\n"
      "ready probe_failed -> down\n"
      "ready call_died -> down\n"
      "busy probe_passed -> ready\n"
      "busy probe_refused -> busy\n"
      "busy probe_failed -> down\n"
      "busy call_died -> down\n"
      "down probe_passed -> ready\n"
      "down probe_refused -> busy\n"
      "down probe_failed -> down\n"
      "down call_died -> down\n");
}

TEST(BackendsTest, TakesTurns) {
  BackendPool pool(3, RoutePolicy::kRoundRobin, 1);
  for (const std::size_t expected : {0u, 1u, 2u, 0u, 1u}) EXPECT_EQ(pool.pick({}), expected);
}

TEST(BackendsTest, TakesTurnsOverReadyOnes) {
  BackendPool pool = probed({200, std::nullopt, 200, 503});
  for (const std::size_t expected : {0u, 2u, 0u, 2u}) EXPECT_EQ(pool.pick({}), expected);
}

TEST(BackendsTest, WrongOpinionRefusesNothing) {
  BackendPool down = probed({std::nullopt, std::nullopt});
  EXPECT_FALSE(down.any_ready());
  for (const std::size_t expected : {0u, 1u, 0u}) EXPECT_EQ(down.pick({}), expected);
  BackendPool busy = probed({std::nullopt, 503});
  for (const std::size_t expected : {1u, 1u}) EXPECT_EQ(busy.pick({}), expected);
}

TEST(BackendsTest, TakesTheOneWithTheFewestRequests) {
  BackendPool pool(3, RoutePolicy::kLeastOutstanding, 1);
  std::vector<BackendPool::Use> uses;
  for (const std::size_t expected : {0u, 1u, 2u, 0u}) {  // in turn, while they have equally many
    EXPECT_EQ(pool.pick({}), expected);
    uses.emplace_back(pool, expected);
  }
  uses.erase(uses.begin() + 1);  // of the second one
  EXPECT_EQ(pool.outstanding(1), 0u);
  EXPECT_EQ(pool.pick({}), 1u);
  EXPECT_EQ(pool.pick({.avoid = 1}), 2u);
  EXPECT_EQ(pool.pick({.may_take = [](std::size_t backend) { return backend == 0; }}), 0u);
  EXPECT_EQ(pool.pick({.may_take = [](std::size_t) { return false; }}), std::nullopt);
}

// The same beginning goes to the same one, until that has over 5/4 of the mean.
TEST(BackendsTest, KeepsPrefixesTogetherWithinABoundOnTheLoad) {
  BackendPool pool(4, RoutePolicy::kPrefixAffine, 1);
  std::set<std::size_t> taken;
  for (std::uint64_t prefix = 0; prefix < 64; ++prefix) {
    const auto first = pool.pick({.prefix = prefix});
    for (int again = 0; again < 3; ++again) EXPECT_EQ(pool.pick({.prefix = prefix}), first);
    taken.insert(first.value());
  }
  EXPECT_EQ(taken.size(), 4u);
  std::vector<BackendPool::Use> uses;
  std::size_t most = 0;
  for (int request = 0; request < 64; ++request) {  // all begin alike
    uses.emplace_back(pool, pool.pick({.prefix = 7}).value());
  }
  for (std::size_t backend = 0; backend < 4; ++backend) {
    most = std::max(most, pool.outstanding(backend));
  }
  EXPECT_EQ(most, 20u);  // 5/4 of 16
}

// Only those that remain move when an instance goes away.
TEST(BackendsTest, ALostInstanceMovesOnlyItsOwnPrefixes) {
  BackendPool all = probed({200, 200, 200}, RoutePolicy::kPrefixAffine);
  BackendPool fewer = probed({200, std::nullopt, 200}, RoutePolicy::kPrefixAffine);
  for (std::uint64_t prefix = 0; prefix < 64; ++prefix) {
    const auto before = all.pick({.prefix = prefix});
    const auto after = fewer.pick({.prefix = prefix});
    EXPECT_NE(after, 1u);
    if (before != 1u) {
      EXPECT_EQ(after, before);
    }
  }
}

// L43: one that says it is full is taken only when there is no other.
TEST(BackendsTest, PrefersHeadroom) {
  BackendPool pool(2, RoutePolicy::kRoundRobin, 1);
  pool.take_probes(at(0s));
  pool.on_probe(0, 200, Headroom{0, 10, 90, 100}, at(0s));
  pool.on_probe(1, 200, Headroom{0, 10, 50, 100}, at(0s));
  EXPECT_EQ(pool.pick({.blocks = 10}), 0u);
  EXPECT_EQ(pool.pick({.blocks = 11}), 1u);
  EXPECT_EQ(pool.pick({.blocks = 11}), 1u);
  EXPECT_EQ(pool.pick({.blocks = 51}), 0u);  // neither has it: P itself will say
  pool.take_probes(at(10s));
  pool.on_probe(1, 200, Headroom{10, 10, 0, 100}, at(10s));  // its queue is full
  EXPECT_EQ(pool.pick({.blocks = 1}), 0u);
  EXPECT_EQ(pool.pick({.blocks = 1}), 0u);
}

TEST(BackendsTest, ReadsWhatAnInstanceSaysOfItself) {
  EXPECT_EQ(parse_headroom(R"({"status":"ready","waiting":1,"max_num_waiting":2,)"
                           R"("blocks_leased":3,"blocks_leased_max":4,"new":[]})"),
            (Headroom{1, 2, 3, 4}));
  for (const std::string_view other :
       {"", "ok", "{}", R"({"waiting":1})",
        R"({"waiting":-1,"max_num_waiting":2,"blocks_leased":3,"blocks_leased_max":4})"}) {
    EXPECT_EQ(parse_headroom(other), std::nullopt) << other;
  }
}

TEST(BackendsTest, AvoidsWhatFailedUnlessThereIsNoOther) {
  BackendPool pool = probed({200, std::nullopt});
  EXPECT_EQ(pool.pick({.avoid = 0}), 1U);
  BackendPool single = probed({200});
  EXPECT_EQ(single.pick({.avoid = 0}), 0U);
}

TEST(BackendsTest, ProbesEachAboutEveryTwoSeconds) {
  BackendPool pool(2, RoutePolicy::kRoundRobin, 7);
  EXPECT_EQ(pool.next_deadline(), at(0s));
  EXPECT_THAT(pool.take_probes(at(0s)),
              ElementsAre(Probe{0, "/health/ready"}, Probe{1, "/health/ready"}));
  EXPECT_EQ(pool.next_deadline(), kNever);
  EXPECT_TRUE(pool.on_probe(0, 200, {}, at(1s)));
  EXPECT_GE(pool.next_deadline(), at(1s + 1800ms));
  EXPECT_LE(pool.next_deadline(), at(1s + 2200ms));
  EXPECT_THAT(pool.take_probes(pool.next_deadline() - 1ns), IsEmpty());
  EXPECT_THAT(pool.take_probes(pool.next_deadline()), ElementsAre(Probe{0, "/health/ready"}));
}

TEST(BackendsTest, JitterIsTheSeeds) {
  std::set<Instant> due;
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    Instant first{};
    for (int run = 0; run < 2; ++run) {
      BackendPool pool(1, RoutePolicy::kRoundRobin, seed);
      pool.take_probes(at(0s));
      pool.on_probe(0, 200, {}, at(0s));
      if (run == 0) first = pool.next_deadline();
      EXPECT_EQ(pool.next_deadline(), first) << "seed " << seed;
    }
    due.insert(first);
  }
  EXPECT_EQ(due, (std::set{at(1800ms), at(2s), at(2200ms)}));
}

TEST(BackendsTest, AsksHealthWhereThereIsNoReady) {
  BackendPool pool(1, RoutePolicy::kRoundRobin, 1);
  pool.take_probes(at(0s));
  EXPECT_FALSE(pool.on_probe(0, 404, {}, at(1s)));
  EXPECT_EQ(pool.next_deadline(), at(1s));
  EXPECT_THAT(pool.take_probes(at(1s)), ElementsAre(Probe{0, "/health"}));
  EXPECT_TRUE(pool.on_probe(0, 200, {}, at(1s)));
  EXPECT_EQ(pool.state(0), kReady);
  EXPECT_THAT(pool.take_probes(at(10s)), ElementsAre(Probe{0, "/health"}));
  EXPECT_TRUE(pool.on_probe(0, 404, {}, at(10s)));
  EXPECT_EQ(pool.state(0), kBusy);
}

TEST(BackendsTest, DeadCallMarksAtOnceAndAProbeBringsBack) {
  BackendPool pool = probed({200});
  EXPECT_TRUE(pool.on_call_died(0));
  EXPECT_FALSE(pool.on_call_died(0));
  EXPECT_EQ(pool.state(0), kDown);
  EXPECT_EQ(pool.failures(0), 2U);
  pool.take_probes(at(3s));
  EXPECT_TRUE(pool.on_probe(0, 200, {}, at(3s)));
  EXPECT_EQ(pool.state(0), kReady);
  EXPECT_EQ(pool.failures(0), 0U);
}

// A probe that was under way when the call died may have been answered before.
TEST(BackendsTest, ProbeOfThePastBringsNothingBack) {
  BackendPool pool = probed({200});
  pool.take_probes(at(3s));
  pool.on_call_died(0);
  EXPECT_FALSE(pool.on_probe(0, 200, {}, at(3s)));
  EXPECT_EQ(pool.state(0), kDown);
}

}  // namespace
}  // namespace kvlease
