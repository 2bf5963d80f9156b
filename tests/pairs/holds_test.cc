// Two-way transfer for the next turn: D holds what it has computed, P reads what it lacks of it, or
// declines; a wrong clock costs time and never truth (L36, L39–L42, L49).
#include <gtest/gtest.h>

#include <string>

#include "tests/pairs/fixture.h"

namespace kvlease::pairs {
namespace {

constexpr std::uint32_t kAnswerTokens = 40;

class Holds : public PairTest {
 protected:
  InstanceOptions two_way() const {
    InstanceOptions options{.tp = tp()};
    options.scheduler.num_blocks = 128;
    options.lease.bidirectional = true;
    options.lease.recompute_threshold = 8;
    return options;
  }

  void add_two_way_pair() {
    world.add("P", two_way());
    world.add("D", two_way());
  }

  // One turn of a conversation: P prefills the whole of it with what D has held, D goes on.
  // Returns the conversation with the answer; `held` is then what D holds.
  std::string take_turn(const std::string& conversation, std::string& held) {
    const Ticket prefilled = world.prefill_with("P", conversation, held);
    EXPECT_TRUE(world.finishes(prefilled, seconds(30)));
    EXPECT_EQ(world.outcome(prefilled).error_message, "");
    const Ticket decoded =
        world.decode("D", conversation, world.outcome(prefilled).params, kAnswerTokens);
    EXPECT_TRUE(world.finishes(decoded, seconds(30)));
    EXPECT_EQ(world.outcome(decoded).text, reference_text(conversation, kAnswerTokens));
    held = world.outcome(decoded).params;
    EXPECT_NE(held, "");
    return conversation + world.outcome(decoded).text;
  }

  std::string first_turn(std::string& held) {
    held.clear();
    return take_turn(prompt(24, 'a'), held);
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Holds, ::testing::Values(1u, 2u));

TEST_P(Holds, PReadsTheAnswerOfTheTurnBefore) {  // L39, L42
  add_two_way_pair();
  std::string held;
  std::string conversation = first_turn(held);
  EXPECT_EQ(world.engine("D").connector().holds(), 1u);
  conversation = take_turn(conversation + prompt(5, 'b'), held);
  world.run_for(seconds(1));
  // P had the first prompt: only what D has added was read.
  EXPECT_EQ(world.count("P", Counter::kReadsValidated), tp());
  EXPECT_EQ(world.count("P", Counter::kFallbacks), 0u);
  EXPECT_EQ(ended("D", LeaseEnd::kCompleted), 1u);  // P's completion has ended the hold
  take_turn(conversation + prompt(5, 'c'), held);
  EXPECT_EQ(world.count("P", Counter::kReadsValidated), 2 * tp());
  EXPECT_EQ(world.count("D", Counter::kHeartbeatHold), 0u);  // holds are not renewed
  world.run_for(seconds(481));                               // the last one's ttl
  EXPECT_EQ(ended("D", LeaseEnd::kExpired), 1u);
  world.expect_all_back();
}

// B01, L39: D keeps blocks for a reader that never comes, for as long as it has said and no longer;
// what the reader says after that ends nothing.
TEST_P(Holds, B01_BlocksOfAReaderThatNeverComesAreBackAtTheTtl) {
  InstanceOptions decode = two_way();
  decode.lease.hold_ttl = seconds(45);
  decode.scheduler.enable_prefix_caching = false;
  world.add("P", two_way());
  world.add("D", decode);
  std::string held;
  const std::string conversation = first_turn(held);
  const Instant held_since = world.now();
  world.run_for(seconds(10));
  const Ticket aborted = world.prefill_with("P", conversation + prompt(5, 'b'), "");
  world.abort(aborted);  // before it has seen what D holds
  world.run_to(held_since + seconds(44));
  EXPECT_EQ(world.engine("D").connector().holds(), 1u);
  EXPECT_GT(world.engine("D").blocks().leased, 0u);
  world.run_to(held_since + seconds(46));
  EXPECT_EQ(world.engine("D").connector().holds(), 0u);
  EXPECT_EQ(world.engine("D").blocks().leased, 0u);
  EXPECT_EQ(ended("D", LeaseEnd::kExpired), 1u);
  // The reader comes after all: too late, and it computes the turn itself (L41).
  const Ticket late = world.prefill_with("P", conversation + prompt(5, 'c'), held);
  ASSERT_TRUE(world.finishes(late, seconds(30)));
  EXPECT_EQ(world.outcome(late).text, reference_text(conversation + prompt(5, 'c'), 1));
  EXPECT_EQ(world.count("P", Counter::kReadsValidated), 0u);
  world.run_for(seconds(31));  // P's own leases
  EXPECT_EQ(ended("D", LeaseEnd::kExpired), 1u);
  world.expect_all_back();
}

// B01: the same, and the reader has begun. Its destination is quiet only when the read is (L26).
TEST_P(Holds, B01_AnAbortedReadersBlocksWaitForItsReadAndNothingElse) {
  add_two_way_pair();
  std::string held;
  const std::string conversation = first_turn(held);
  world.run_for(seconds(31));
  const std::size_t posted = world.count("P", Counter::kReadsPosted);
  world.network().set_read_latency(seconds(3));
  const Ticket reading = world.prefill_with("P", conversation + prompt(5, 'b'), held);
  ASSERT_TRUE(world.run_until(
      [&] { return world.count("P", Counter::kReadsPosted) == posted + tp(); }, seconds(1)));
  world.network().set_read_latency(std::chrono::microseconds(20));  // of the entries
  world.abort(reading);
  world.run_for(seconds(2));
  EXPECT_GT(world.engine("P").blocks().quarantined, 0u);
  world.run_for(seconds(2));
  EXPECT_EQ(world.engine("P").blocks().quarantined, 0u);
  world.run_for(seconds(481));
  world.expect_all_back();
}

// C09, L24: a read is done when its bytes have landed here, not when they were asked for; until
// then the request waits, and the side that is read keeps its blocks.
TEST_P(Holds, C09_AskedForIsNotArrived) {
  add_two_way_pair();
  std::string held;
  const std::string conversation = first_turn(held);
  world.run_for(seconds(31));
  const std::string next = conversation + prompt(5, 'b');
  world.network().set_read_latency(milliseconds(1900));
  const Ticket ticket = world.prefill_with("P", next, held);
  world.run_for(milliseconds(1800));
  EXPECT_EQ(world.count("P", Counter::kReadsPosted), tp());
  EXPECT_FALSE(world.finished(ticket));
  EXPECT_EQ(world.engine("D").connector().holds(), 1u);
  EXPECT_GT(world.engine("D").blocks().leased, 0u);
  world.network().set_read_latency(std::chrono::microseconds(20));  // of the entries
  ASSERT_TRUE(world.finishes(ticket, seconds(1)));
  EXPECT_EQ(world.outcome(ticket).text, reference_text(next, 1));
  world.run_for(seconds(1));
  EXPECT_EQ(world.engine("D").connector().holds(), 0u);
  EXPECT_EQ(ended("D", LeaseEnd::kCompleted), 1u);
}

TEST_P(Holds, NoHoldWithoutTheOption) {  // L39
  add_pair();
  const std::string text = prompt(24, 'a');
  const Ticket decoded = world.decode("D", text, world.params_of_prefill("P", text), 8);
  ASSERT_TRUE(world.finishes(decoded, seconds(5)));
  EXPECT_EQ(world.outcome(decoded).params, "");
  world.expect_all_back();
}

TEST_P(Holds, AShortRemainderIsComputedAndTheHoldReleased) {  // L42
  InstanceOptions options = two_way();
  options.lease.recompute_threshold = 64;  // more than an answer
  world.add("P", options);
  world.add("D", options);
  std::string held;
  const std::string conversation = first_turn(held);
  take_turn(conversation + prompt(5, 'b'), held);
  EXPECT_EQ(world.count("P", Counter::kReadsPosted), 0u);
  EXPECT_EQ(world.count("P", Counter::kHoldsTooShort), 1u);
  world.run_for(seconds(1));
  EXPECT_EQ(ended("D", LeaseEnd::kCompleted), 1u);  // released by its reader's word
}

// P's clock and D's differ by days; what counts is the time that is left.
TEST_P(Holds, AHoldIsReadInTimeAndDeclinedWhenItIsAboutToEnd) {  // L40, L41
  InstanceOptions decode = two_way();
  decode.clock_epoch = std::chrono::hours(100);
  decode.lease.hold_ttl = seconds(60);
  for (const std::int64_t wait : {50, 56}) {  // of 60, with a margin of 5
    World fresh;
    fresh.add("P", two_way());
    fresh.add("D", decode);
    const std::string text = prompt(24, 'a');
    const Ticket first = fresh.decode("D", text, fresh.params_of_prefill("P", text), kAnswerTokens);
    ASSERT_TRUE(fresh.finishes(first, seconds(5)));
    // The handshake of P with D comes with an earlier turn.
    const std::string next = text + fresh.outcome(first).text + prompt(3, 'b');
    fresh.run_for(seconds(wait));
    const Ticket second = fresh.prefill_with("P", next, fresh.outcome(first).params);
    ASSERT_TRUE(fresh.finishes(second, seconds(20)));
    EXPECT_EQ(fresh.outcome(second).text, reference_text(next, 1));
    const bool read = wait < 55;
    EXPECT_EQ(fresh.count("P", Counter::kReadsValidated), read ? tp() : 0u) << wait;
    EXPECT_EQ(fresh.count("P", Counter::kReadsPosted), read ? tp() : 0u) << wait;
    EXPECT_EQ(fresh.count("P", Counter::kHoldsDeclined), read ? 0u : 1u) << wait;
    EXPECT_EQ(fresh.count("P", Counter::kFallbacks), 0u) << wait;
  }
}

// A13: a router that drops or invents the expiry makes P too bold, and L24 makes that harmless.
TEST_P(Holds, A13_AWrongOrMissingExpiryCostsARecomputeAndNoWrongText) {
  for (const auto& expiry : {std::optional<double>{}, std::optional<double>{1e9}}) {
    World fresh;
    InstanceOptions decode = two_way();
    decode.lease.hold_ttl = seconds(2);
    fresh.add("P", two_way());
    fresh.add("D", decode);
    const std::string text = prompt(24, 'a');
    const Ticket first = fresh.decode("D", text, fresh.params_of_prefill("P", text), kAnswerTokens);
    ASSERT_TRUE(fresh.finishes(first, seconds(5)));
    const std::string next = text + fresh.outcome(first).text + prompt(3, 'b');
    const std::string params = edited(fresh.outcome(first).params, [&](KvTransferParams& held) {
      held.remote_blocks_expiry_time = expiry;
    });
    fresh.run_for(seconds(3));                      // it has expired
    for (char other = 'c'; other < 'j'; ++other) {  // and its blocks are others' by now
      const Ticket used = fresh.complete("D", prompt(60, other), 2);
      ASSERT_TRUE(fresh.finishes(used, seconds(5)));
    }
    const Ticket second = fresh.prefill_with("P", next, params);
    ASSERT_TRUE(fresh.finishes(second, seconds(20)));
    EXPECT_EQ(fresh.outcome(second).text, reference_text(next, 1));
    EXPECT_EQ(fresh.count("P", Counter::kReadsRejected), tp());
    EXPECT_EQ(fresh.count("P", Counter::kReadsValidated), 0u);
  }
}

TEST_P(Holds, TheOldestHoldGivesWayToOthersAndToRequests) {  // L49
  InstanceOptions decode = two_way();
  decode.scheduler.num_blocks = 64;  // a budget of 32
  world.add("P", two_way());
  world.add("D", decode);
  for (char turn = 'a'; turn < 'e'; ++turn) {
    const std::string text = prompt(24, turn);
    const Ticket ticket =
        world.decode("D", text, world.params_of_prefill("P", text), kAnswerTokens);
    ASSERT_TRUE(world.finishes(ticket, seconds(5)));
  }
  world.run_for(seconds(1));
  EXPECT_EQ(world.engine("D").connector().holds(), 2u);  // of 16 blocks each
  EXPECT_EQ(ended("D", LeaseEnd::kRecalled), 2u);
  // A request that needs more than what is free.
  const Ticket large = world.complete("D", prompt(200, 'z'), 2);
  ASSERT_TRUE(world.finishes(large, seconds(5)));
  EXPECT_EQ(world.outcome(large).text, reference_text(prompt(200, 'z'), 2));
  EXPECT_GT(ended("D", LeaseEnd::kRecalled), 2u);
}

TEST_P(Holds, AHoldIsNotRenewedUnlessItIsRenewable) {  // L39
  add_two_way_pair();
  std::string held;
  first_turn(held);
  const auto& live = world.engine("D").connector().leases().live_leases();
  ASSERT_EQ(live.size(), 1u);
  const LeaseId hold = live.begin()->first;
  world.run_for(seconds(470));
  EXPECT_EQ(world.engine("D").connector().renew(std::vector{hold}), std::vector{hold});
  world.run_for(seconds(11));
  EXPECT_EQ(ended("D", LeaseEnd::kExpired), 1u);
}

TEST_P(Holds, ARenewableHoldLivesOnWithinItsMaximum) {  // L2, L39
  InstanceOptions decode = two_way();
  decode.lease.hold_ttl = seconds(60);
  decode.lease.hold_max_lifetime = seconds(150);
  world.add("P", two_way());
  world.add("D", decode);
  std::string held;
  const std::string conversation = first_turn(held);
  const LeaseId hold = world.engine("D").connector().leases().live_leases().begin()->first;
  for (int beat = 0; beat < 4; ++beat) {
    world.run_for(seconds(35));
    EXPECT_EQ(live("D"), 1u) << beat;
    world.engine("D").connector().renew(std::vector{hold});
  }
  world.run_for(seconds(20));  // 160 s
  EXPECT_EQ(ended("D", LeaseEnd::kExpired), 1u);
}

TEST_P(Holds, ADrainRecallsThemAndMakesNoMore) {  // L36
  add_two_way_pair();
  std::string held;
  const std::string conversation = first_turn(held);
  const std::string text = prompt(24, 'x');
  const Ticket under_way = world.decode("D", text, world.params_of_prefill("P", text), 8);
  world.engine("D").connector().begin_drain();
  ASSERT_TRUE(world.finishes(under_way, seconds(5)));
  EXPECT_EQ(world.outcome(under_way).params, "");
  EXPECT_EQ(ended("D", LeaseEnd::kRecalled), 1u);
  world.expect_all_back();
}

}  // namespace
}  // namespace kvlease::pairs
