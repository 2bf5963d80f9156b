// Whose name is on a message, whose clock on a deadline, and reports about what is gone, between
// whole engines.
#include <gtest/gtest.h>

#include <array>

#include "kvlease/core/lease_table.h"
#include "tests/pairs/fixture.h"

namespace kvlease::pairs {
namespace {

class Identity : public PairTest {};
INSTANTIATE_TEST_SUITE_P(Ranks, Identity, ::testing::Values(1u, 2u));

// L20, L45: P and D each add a suffix of their own to the client's id; every message to P carries
// P's.
TEST_P(Identity, C04_EveryMessageToPCarriesPsOwnId) {
  world.add("P", options());
  world.add("D", one_at_a_time(options()));
  const std::string text = prompt(22, 'a');
  const std::string params = world.params_of_prefill("P", text);
  keep_busy("D", 20);  // so that heartbeats are needed
  const Ticket ticket = world.decode("D", text, params, 8);
  ASSERT_TRUE(world.finishes(ticket, seconds(60)));
  EXPECT_GT(world.count("P", Counter::kLeasesRenewed), 0u);
  EXPECT_EQ(world.count("P", Counter::kHeartbeatUnknown), 0u);
  EXPECT_EQ(world.count("P", Counter::kCompletionUnknown), 0u);
  EXPECT_EQ(ended("P", LeaseEnd::kCompleted), 1u);
  world.expect_all_back();
}

// L20: two leases of one client id are two leases; only exact ids match (the rules' list on A02).
TEST_P(Identity, A02_OnlyExactIdsAreMatched) {
  add_pair();
  const std::string first = prompt(22, 'a');
  const std::string second = prompt(22, 'b');
  const std::string params = world.params_of_prefill("P", first);
  world.params_of_prefill("P", second);  // the same client id, another suffix
  const Ticket ticket = world.decode("D", first, params, 8);
  ASSERT_TRUE(world.finishes(ticket, seconds(5)));
  world.run_for(seconds(1));
  EXPECT_EQ(ended("P", LeaseEnd::kCompleted), 1u);
  EXPECT_EQ(live("P"), 1u);
  world.run_for(seconds(31));
  EXPECT_EQ(ended("P", LeaseEnd::kExpired), 1u);
  world.expect_all_back();
}

// L7, L43: blocks of requests that nobody reads are back after one lease, or at once when released.
TEST_P(Identity, B04_AbandonedRequestsGiveTheirBlocksBack) {
  InstanceOptions producer = options();
  producer.scheduler.num_blocks = 800;
  producer.scheduler.enable_prefix_caching = false;
  world.add("P", producer);
  const auto prefill_60 = [&](char kind) {
    std::vector<Ticket> tickets;
    for (int i = 0; i < 60; ++i) {
      const std::string number = std::to_string(100 + i);
      tickets.push_back(world.prefill("P", number + prompt(37, kind)));  // 10 blocks of 4
    }
    world.run_for(milliseconds(100));
    return tickets;
  };
  prefill_60('a');
  EXPECT_EQ(world.engine("P").core().pool().counts().free, 200u);
  world.run_for(seconds(29));
  EXPECT_EQ(world.engine("P").core().pool().counts().free, 200u);
  world.run_for(seconds(1));
  EXPECT_EQ(world.engine("P").core().pool().counts().free, 800u);
  EXPECT_EQ(ended("P", LeaseEnd::kExpired), 60u);

  for (const Ticket ticket : prefill_60('b')) {
    const auto params = parse_kv_transfer_params(world.outcome(ticket).params, 1 << 20);
    EXPECT_TRUE(world.release("P", *params->remote_request_id));  // L10
  }
  world.run_for(milliseconds(10));
  EXPECT_EQ(world.engine("P").core().pool().counts().free, 800u);
  EXPECT_EQ(ended("P", LeaseEnd::kReleased), 60u);
  EXPECT_EQ(ended("P", LeaseEnd::kExpired), 60u);
  world.expect_all_back();
}

// L46: what crosses to a rank is the time that is left; the rank's own clock makes the deadline of
// it.
TEST(RemainingTime, A14_ARankKeepsRemainingTimeNotAnInstant) {
  for (const double rank_clock : {9000.0, 120.0}) {
    std::array<LeaseEntry, 4> memory;
    LeaseEntries entries(memory, 7);
    LeaseTable leases(LeaseTableLimits{}, entries);
    const LeaseId id("l");
    leases.grant({.id = id,
                  .slot = kFirstLeaseSlot,
                  .word = entries.word(kFirstLeaseSlot),
                  .remaining = seconds(30),
                  .extension = seconds(20)},
                 at(rank_clock + 0.2));
    EXPECT_EQ(leases.expires_at(id), at(rank_clock + 30.2));
  }
}

// L5, L43: ids that nobody granted leave nothing behind.
TEST(UnknownIds, B18_UnknownIdsTakeNoRoom) {
  std::array<LeaseEntry, 4> memory;
  LeaseEntries entries(memory, 7);
  LeaseTable leases(LeaseTableLimits{}, entries);
  const AgentName reader("d/0/00000000000000aa.0");
  for (int i = 0; i < 10'000; ++i) {
    const std::string id = "unknown-" + std::to_string(i);
    const std::array<std::string_view, 1> heartbeat{id};
    leases.renew(heartbeat, at(i));
    leases.complete({.id = id, .readers_expected = 1}, reader, at(i));
  }
  EXPECT_EQ(leases.counters().value(Counter::kHeartbeatUnknown), 10'000u);
  EXPECT_EQ(leases.counters().value(Counter::kCompletionUnknown), 10'000u);
  EXPECT_EQ(leases.live() + leases.in_batch(), 0u);
  EXPECT_EQ(leases.next_deadline(), kNever);
}

}  // namespace
}  // namespace kvlease::pairs
