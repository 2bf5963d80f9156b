// Instances that stop while others read from them, in virtual time: what a drain waits for, what a
// cut means for the reader, and the tear-down itself (scenarios G; L36).
#include <gtest/gtest.h>

#include "tests/pairs/fixture.h"

namespace kvlease::pairs {
namespace {

class Drain : public PairTest {
 protected:
  // Waits as a draining instance does: until P's last lease has ended or the limit has passed, when
  // the rest is cut. Returns how many were.
  std::size_t drain_producer(Duration limit) {
    world.run_until([&] { return live("P") == 0; }, limit);
    const std::size_t cut = world.cut_leases("P");
    world.run_for(milliseconds(1));
    EXPECT_EQ(live("P"), 0u);
    return cut;
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Drain, ::testing::Values(1u, 2u));

// Renewed and read while P drains: it waits for the last read, and no longer.
TEST_P(Drain, G01_ADrainWaitsForTheLastRead) {
  add_pair();
  const std::string texts[] = {prompt(20, 'a'), prompt(20, 'b'), prompt(20, 'c')};
  std::vector<std::string> params;
  for (const std::string& text : texts) params.push_back(world.params_of_prefill("P", text));
  const Duration landings[] = {seconds(15), seconds(20), seconds(35)};
  std::vector<Ticket> tickets;
  for (std::size_t i = 0; i < 3; ++i) {
    tickets.push_back(decode_slowly(texts[i], params[i], landings[i]));
  }
  world.run_to(at(10));
  EXPECT_EQ(drain_producer(seconds(30)), 0u);
  EXPECT_GE(world.now(), at(35));
  EXPECT_LT(world.now(), at(35.1));
  EXPECT_EQ(ended("P", LeaseEnd::kCompleted), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(world.finishes(tickets[i], seconds(1)));
    expect_text(tickets[i], texts[i], 8);
  }
  world.expect_all_back();
}

// L24: a lease that is cut at the limit is over for its reader, whose bytes are dropped.
TEST_P(Drain, G01_WhatIsRenewedForEverIsCutAtTheLimit) {
  add_pair();
  const std::string text = prompt(20, 'a');
  const Ticket ticket = decode_slowly(text, world.params_of_prefill("P", text), seconds(45));
  world.run_to(at(10));
  EXPECT_EQ(drain_producer(seconds(30)), 1u);
  EXPECT_LT(world.now(), at(40.1));
  EXPECT_EQ(ended("P", LeaseEnd::kDrained), 1u);
  ASSERT_TRUE(world.finishes(ticket, seconds(20)));
  expect_text(ticket, text, 8);
  EXPECT_EQ(world.count("D", Counter::kReadsRejected), tp());
  EXPECT_EQ(world.count("D", Counter::kFallbacks), 1u);
  world.expect_all_back();
}

// One read that lands 5 s after the stop, limits of 10, 3 and 0 s.
TEST_P(Drain, G02_TheLimitIsNotWaitedForInVain) {
  add_pair();
  struct Case {
    Duration limit;
    Duration took;
    std::size_t cut;
  };
  for (const Case& expected : {Case{seconds(10), seconds(5), 0}, Case{seconds(3), seconds(3), 1},
                               Case{seconds(0), seconds(0), 1}}) {
    const std::string text =
        prompt(20, 'a') + std::to_string(expected.cut) + std::to_string(expected.limit.count());
    const Ticket ticket = decode_slowly(text, world.params_of_prefill("P", text), seconds(5));
    const Instant stopped = world.now();
    EXPECT_EQ(drain_producer(expected.limit), expected.cut);
    EXPECT_GE(world.now() - stopped, expected.took);
    EXPECT_LT(world.now() - stopped, expected.took + milliseconds(20));
    ASSERT_TRUE(world.finishes(ticket, seconds(10)));
    expect_text(ticket, text, 8);
    world.expect_all_back();
  }
}

// Torn down with everything under way: two reads, a handshake, three leases. What is left of the
// world goes on; the sanitizer runs of this test look for what was freed too early or not at all.
TEST_P(Drain, G03_TearDownWithEverythingUnderWay) {
  add_pair();
  world.add("P2", options());
  const std::string other = world.params_of_prefill("P2", prompt(20, 'o'));
  std::vector<std::string> params;
  for (const char kind : {'a', 'b', 'c'}) {
    params.push_back(world.params_of_prefill("P", prompt(20, kind)));
  }
  decode_slowly(prompt(20, 'a'), params[0], seconds(10));
  decode_slowly(prompt(20, 'b'), params[1], seconds(10));
  world.set_handshake("P2", HandshakeBehaviour::kSilent, {});
  world.decode("D", prompt(20, 'o'), other, 8);
  EXPECT_EQ(live("P"), 3u);
  world.kill("D");
  EXPECT_EQ(world.cut_leases("P"), 3u);
  EXPECT_EQ(world.cut_leases("P"), 0u);  // a second call does nothing
  world.run_for(seconds(1));
  world.engine("P").expect_all_back();
  world.kill("P");

  world.restart("P", options());
  world.restart("D", options());
  const std::string again = world.params_of_prefill("P", prompt(20, 'd'));
  const Ticket ticket = world.decode("D", prompt(20, 'd'), again, 8);
  ASSERT_TRUE(world.finishes(ticket, seconds(1)));
  expect_text(ticket, prompt(20, 'd'), 8);
  EXPECT_EQ(world.count("D", Counter::kFallbacks), 0u);
}

}  // namespace
}  // namespace kvlease::pairs
