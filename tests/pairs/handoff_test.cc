// The plain hand-off: the text is that of a single instance, what is read is what is missing, and
// everything comes back.
#include <gtest/gtest.h>

#include "tests/pairs/world.h"

namespace kvlease::pairs {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// One P and one D with equally many ranks.
class Handoff : public ::testing::TestWithParam<std::uint32_t> {
 protected:
  Handoff() {
    world.add("P", {.tp = GetParam()});
    world.add("D", {.tp = GetParam()});
  }
  World world;
};
INSTANTIATE_TEST_SUITE_P(Ranks, Handoff, ::testing::Values(1u, 2u));

TEST_P(Handoff, TheTextIsThatOfASingleInstance) {
  const std::string text = prompt(22, 'a');
  const std::string params = world.params_of_prefill("P", text);
  const Ticket ticket = world.decode("D", text, params, 12);
  ASSERT_TRUE(world.finishes(ticket, seconds(5)));
  EXPECT_EQ(world.outcome(ticket).text, reference_text(text, 12));
  EXPECT_EQ(world.outcome(ticket).num_cached_tokens, 21u);  // H10: one token is computed
  EXPECT_EQ(world.count("D", Counter::kReadsValidated), GetParam());
  EXPECT_EQ(world.count("P", Counter::kCompletionUnknown), 0u);  // C04
  EXPECT_EQ(world.count("P", Counter::kHeartbeatUnknown), 0u);
  world.expect_all_back();
}

// A hand-off of 1,024 tokens is used: one of them is computed, and the numbers say so.
TEST(Reuse, H10_WhatIsReceivedIsNotComputedAgain) {
  World world;
  InstanceOptions options;
  options.scheduler.num_blocks = 300;
  world.add("P", options);
  world.add("D", options);
  const std::string text = prompt(1024, 'a');
  const Ticket ticket = world.decode("D", text, world.params_of_prefill("P", text), 4);
  ASSERT_TRUE(world.finishes(ticket, seconds(1)));
  EXPECT_EQ(world.outcome(ticket).num_cached_tokens, 1023u);
  const EngineStats stats = world.engine("D").core().stats();
  EXPECT_EQ(stats.prompt_tokens, 1024u);
  EXPECT_EQ(stats.cached_tokens, 1023u);
  EXPECT_EQ(world.count("D", Counter::kFallbacks), 0u);
}

// L24, L33: reads that land at once and reads that land after many turns; each
// makes one completion, none is lost and none is doubled.
TEST_P(Handoff, C08_EveryReadMakesOneCompletion) {
  std::uint64_t completions = 0;
  for (const Duration landing : {Duration(0), Duration(milliseconds(50))}) {
    world.network().set_read_latency(landing);
    for (int i = 0; i < 100; ++i) {
      const std::string text = prompt(9, 'a') + std::to_string(1000 * (landing.count() > 0) + i);
      const Ticket ticket = world.decode("D", text, world.params_of_prefill("P", text), 1);
      ASSERT_TRUE(world.finishes(ticket, seconds(1)));
      EXPECT_EQ(world.outcome(ticket).num_cached_tokens, text.size() - 1);
      world.run_for(milliseconds(1));
    }
    completions += 100 * GetParam();
    EXPECT_EQ(world.count("P", Counter::kCompletionsReceived), completions);
  }
  EXPECT_EQ(world.count("P", Counter::kCompletionUnknown), 0u);
  EXPECT_EQ(world.count("P", Counter::kCompletionDuplicate), 0u);
  world.expect_all_back();
}

// H08, L1: the end of a prefill is told once to the part that leases, whatever else keeps blocks
// (here the prefix cache, and with two-way transfer the holds), and its hand-off is there and used.
TEST_P(Handoff, H08_APrefillsEndYieldsItsHandOffOnce) {
  for (const bool two_way : {false, true}) {
    World other;
    InstanceOptions options{.tp = GetParam()};
    options.lease.bidirectional = two_way;
    other.add("P", options);
    other.add("D", options);
    const std::string text = prompt(39, 'a');
    const std::string params = other.params_of_prefill("P", text);
    ASSERT_NE(params, "");
    EXPECT_EQ(other.count_events("P", EventKind::kLeaseGranted), 1u);
    EXPECT_EQ(other.engine("P").connector().holds(), 0u);
    const Ticket ticket = other.decode("D", text, params, 8);
    ASSERT_TRUE(other.finishes(ticket, seconds(5)));
    EXPECT_EQ(other.outcome(ticket).text, reference_text(text, 8));
    EXPECT_EQ(other.outcome(ticket).num_cached_tokens, 38u);
  }
}

// H09, L33: of two engines that could be read from, only the one that the request names is renewed,
// read and told; it is told, too, when nothing of it was needed.
TEST_P(Handoff, H09_OnlyTheNamedPeerIsToldOfARequest) {
  world.add("Q", {.tp = GetParam()});
  const std::string text = prompt(22, 'a');
  const std::string other = prompt(22, 'b');
  const std::string params = world.params_of_prefill("P", text);
  const Ticket known = world.decode("D", other, world.params_of_prefill("Q", other), 8);
  ASSERT_TRUE(world.finishes(known, seconds(5)));  // so that Q is a peer of D's, too
  world.run_for(milliseconds(100));
  const std::string unread = world.params_of_prefill("Q", prompt(22, 'c'));
  const std::uint64_t told = world.count("Q", Counter::kCompletionsReceived);
  const std::uint64_t renewed = world.count("Q", Counter::kHeartbeatsReceived);
  const Ticket ticket = world.decode("D", text, params, 8);
  ASSERT_TRUE(world.finishes(ticket, seconds(5)));
  world.run_for(milliseconds(100));
  EXPECT_EQ(world.count("P", Counter::kCompletionsReceived), GetParam());
  EXPECT_EQ(world.count_events("P", EventKind::kLeaseEnded), 1u);

  // A full local hit.
  const std::string again = world.params_of_prefill("P", text);
  const Ticket local = world.decode("D", text, again, 8);
  ASSERT_TRUE(world.finishes(local, seconds(5)));
  world.run_for(milliseconds(100));
  EXPECT_EQ(world.count("P", Counter::kCompletionsReceived), 2 * GetParam());
  EXPECT_EQ(world.count_events("P", EventKind::kLeaseEnded), 2u);
  EXPECT_EQ(world.count("Q", Counter::kCompletionsReceived), told);
  EXPECT_EQ(world.count("Q", Counter::kHeartbeatsReceived), renewed);
  EXPECT_EQ(world.engine("Q").connector().leases().live(), 1u);
}

// H13, L1: blocks that were the next to be evicted are protected by the first request that finds
// them and leases them, for as long as the lease lives, against all that others need.
TEST_P(Handoff, H13_WhatIsFoundInTheCacheAndLeasedIsNotEvicted) {
  World small;
  InstanceOptions options{.tp = GetParam()};
  options.lease.times = derive_lease_times(seconds(5));
  options.scheduler.num_blocks = 16;  // of 4 tokens
  small.add("P", options);
  small.add("D", {.tp = GetParam()});
  const std::string text = prompt(24, 'a');
  ASSERT_TRUE(small.finishes(small.complete("P", text, 1), seconds(1)));  // cached, nobody's
  small.run_for(seconds(1));
  const std::string params = small.params_of_prefill("P", text);  // found
  const Instant granted = small.now();
  for (char kind = 'b'; kind < 'n'; ++kind) {  // each needs more than half of what is not leased
    ASSERT_TRUE(small.finishes(small.complete("P", prompt(30, kind), 1), seconds(1)));
  }
  small.run_to(granted + milliseconds(4900));
  EXPECT_GE(small.engine("P").blocks().leased, 6u);
  const Ticket ticket = small.decode("D", text, params, 8);
  ASSERT_TRUE(small.finishes(ticket, seconds(5)));
  EXPECT_EQ(small.outcome(ticket).text, reference_text(text, 8));
  EXPECT_EQ(small.count("D", Counter::kReadsValidated), GetParam());
  small.expect_all_back();
}

}  // namespace
}  // namespace kvlease::pairs
