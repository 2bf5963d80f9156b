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

}  // namespace
}  // namespace kvlease::pairs
