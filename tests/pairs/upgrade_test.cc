// Two versions of the protocol side by side, as while instances are upgraded one after the other:
// the highest common version is used; without one nothing is handed over, and texts stay right
// (L30).
#include <gtest/gtest.h>

#include <string>

#include "tests/pairs/fixture.h"

namespace kvlease::pairs {
namespace {

class Upgrade : public PairTest {
 protected:
  InstanceOptions speaking(ProtocolRange protocol, InstanceOptions options) const {
    options.protocol = protocol;
    return options;
  }
  // What the latest event of a kind says.
  std::string detail(const std::string& name, EventKind kind) const {
    std::string last;
    for (const auto& [engine, event] : world.events()) {
      if (engine == name && event.kind == kind) last = event.detail;
    }
    return last;
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Upgrade, ::testing::Values(1u, 2u));

// A17, L30
TEST_P(Upgrade, TheHighestCommonVersionIsUsed) {
  const struct {
    ProtocolRange prefill;
    ProtocolRange decode;
    std::string version;
  } rows[] = {
      {{.min = 1, .max = 1}, {.min = 1, .max = 2}, "protocol 1"},  // D first
      {{.min = 1, .max = 2}, {.min = 1, .max = 1}, "protocol 1"},  // P first
      {{.min = 1, .max = 3}, {.min = 2, .max = 4}, "protocol 3"},
  };
  char kind = 'a';
  for (const auto& row : rows) {
    const std::string p = std::string("P") + kind;
    const std::string d = std::string("D") + kind;
    world.add(p, speaking(row.prefill, options()));
    world.add(d, speaking(row.decode, options()));
    const std::string text = prompt(22, kind++);
    const Ticket ticket = world.decode(d, text, world.params_of_prefill(p, text), 8);
    ASSERT_TRUE(world.finishes(ticket, seconds(5)));
    expect_text(ticket, text, 8);
    EXPECT_EQ(world.count(d, Counter::kReadsValidated), tp());
    EXPECT_EQ(detail(d, EventKind::kHandshakeDone), row.version);
  }
  world.expect_all_back();
}

// L27, L30: both values are said, nothing is kept of the refusal, and no lease outlives its
// deadline.
TEST_P(Upgrade, WithoutACommonVersionTheRequestTakesItsPolicy) {
  for (const LoadFailurePolicy policy : kPolicies) {
    World apart;
    apart.add("P", speaking({.min = 3, .max = 4}, options()));
    apart.add("D", speaking({.min = 1, .max = 2}, options(policy)));
    const std::string text = prompt(22, 'a');
    const Ticket ticket = apart.decode("D", text, apart.params_of_prefill("P", text), 8);
    ASSERT_TRUE(apart.finishes(ticket, seconds(60)));
    expect_failed_load(apart, ticket, text, policy);
    std::string said;
    for (const auto& [engine, event] : apart.events()) {
      if (event.kind == EventKind::kHandshakeFailed) said = event.detail;
    }
    EXPECT_NE(said.find("1 to 2"), std::string::npos) << said;
    EXPECT_NE(said.find("3 to 4"), std::string::npos) << said;
    EXPECT_EQ(apart.count("D", Counter::kReadsPosted), 0u);
    EXPECT_EQ(apart.count("P", Counter::kHeartbeatsReceived), 0u);
    apart.run_for(seconds(31));
    apart.expect_all_back();
  }
}

// L31: the side that was refused is upgraded, behind the same address; the other one goes on
// running.
TEST_P(Upgrade, AfterTheUpgradeNewRequestsAreHandedOver) {
  world.add("P", speaking({.min = 3, .max = 3}, options()));
  world.add("D", speaking({.min = 1, .max = 2}, options()));
  const std::string first = prompt(22, 'a');
  const Ticket refused = world.decode("D", first, world.params_of_prefill("P", first), 8);
  ASSERT_TRUE(world.finishes(refused, seconds(60)));
  expect_text(refused, first, 8);
  EXPECT_EQ(world.count("D", Counter::kReadsPosted), 0u);

  world.kill("P");
  world.restart("P", speaking({.min = 2, .max = 3}, options()));
  world.run_for(seconds(30));  // the back-off after the refusals
  const std::string second = prompt(22, 'b');
  const Ticket ticket = world.decode("D", second, world.params_of_prefill("P", second), 8);
  ASSERT_TRUE(world.finishes(ticket, seconds(60)));
  expect_text(ticket, second, 8);
  EXPECT_EQ(world.count("D", Counter::kReadsValidated), tp());
  EXPECT_EQ(detail("D", EventKind::kHandshakeDone), "protocol 2");
}

}  // namespace
}  // namespace kvlease::pairs
