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

}  // namespace
}  // namespace kvlease::pairs
