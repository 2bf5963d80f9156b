// Loads that fail, and what is read when part of it is here already, between whole engines
// (scenarios C, F and H).
#include <gtest/gtest.h>

#include "tests/pairs/fixture.h"

namespace kvlease::pairs {
namespace {

class Failure : public PairTest {
 protected:
  // Of all validated reads of D, on all ranks.
  std::uint64_t bytes_read() const {
    std::uint64_t bytes = 0;
    for (const auto& [name, event] : world.events()) {
      if (name == "D" && event.kind == EventKind::kReadValidated) bytes += event.count;
    }
    return bytes;
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Failure, ::testing::Values(1u, 2u));

// Two layers, two heads, K and V, four bytes each: 32 bytes a token, whatever the ranks.
constexpr std::uint64_t kBlockBytes = 32 * kBlockSize;

// L42: only what is missing.
TEST_P(Failure, OnlyTheMissingSuffixIsRead) {
  add_pair();
  const std::string text = prompt(40, 'a');
  ASSERT_TRUE(world.finishes(world.complete("D", text.substr(0, 28), 1), seconds(1)));
  const Ticket ticket = world.decode("D", text, world.params_of_prefill("P", text), 8);
  ASSERT_TRUE(world.finishes(ticket, seconds(1)));
  expect_text(ticket, text, 8);
  EXPECT_EQ(bytes_read(), 3 * kBlockBytes);
  EXPECT_EQ(world.outcome(ticket).num_cached_tokens, 39u);
  world.run_for(milliseconds(10));
  EXPECT_EQ(ended("P", LeaseEnd::kCompleted), 1u);
  world.expect_all_back();
}

// Paired by position; what D's prompt has beyond P's is computed.
TEST_P(Failure, H06_APromptThatIsOneTokenLongerOnD) {
  add_pair();
  const std::string text = prompt(33, 'a');
  ASSERT_TRUE(world.finishes(world.complete("D", text.substr(0, 28), 1), seconds(1)));
  const Ticket ticket =
      world.decode("D", text, world.params_of_prefill("P", text.substr(0, 32)), 8);
  ASSERT_TRUE(world.finishes(ticket, seconds(1)));
  expect_text(ticket, text, 8);
  EXPECT_EQ(bytes_read(), kBlockBytes);
  EXPECT_EQ(world.outcome(ticket).num_cached_tokens, 32u);
  world.expect_all_back();
}

TEST_P(Failure, H06_MoreLocalThanRemoteIsAFullHit) {
  add_pair();
  const std::string text = prompt(41, 'a');
  ASSERT_TRUE(world.finishes(world.complete("D", text, 1), seconds(1)));
  const Ticket ticket =
      world.decode("D", text, world.params_of_prefill("P", text.substr(0, 32)), 8);
  ASSERT_TRUE(world.finishes(ticket, seconds(1)));
  expect_text(ticket, text, 8);
  EXPECT_EQ(bytes_read(), 0u);
  world.run_for(milliseconds(10));
  EXPECT_EQ(ended("P", LeaseEnd::kCompleted), 1u);
  world.expect_all_back();
}

// L24: whatever lands when, P reuses its blocks only after D has all of it.
TEST_P(Failure, C07_TheCompletionLeavesAfterTheLastByte) {
  fabric::NetworkConfig config;
  config.chunk_bytes = 16;
  config.chunk_jitter_max = milliseconds(3);
  World fresh(config);
  InstanceOptions small = options();
  small.scheduler.num_blocks = 12;
  fresh.add("P", small);
  fresh.add("D", options());
  std::vector<std::pair<Ticket, std::string>> tickets;
  for (int i = 0; i < 200; ++i) {
    const std::string text = std::to_string(i) + prompt(36, 'a');
    const Ticket prefill = fresh.prefill("P", text);  // as soon as the last one's blocks are back
    ASSERT_TRUE(fresh.finishes(prefill, seconds(1)));
    tickets.emplace_back(fresh.decode("D", text, fresh.outcome(prefill).params, 4), text);
    ASSERT_TRUE(fresh.run_until([&] { return fresh.engine("P").connector().leases().live() == 0; },
                                seconds(1)));
  }
  fresh.expect_all_back();
  for (const auto& [ticket, text] : tickets) {
    EXPECT_EQ(fresh.outcome(ticket).text, reference_text(text, 4));
  }
  EXPECT_EQ(fresh.count("D", Counter::kFallbacks), 0u);
}

// Nobody goes on with blocks of a load that failed.
TEST_P(Failure, F02_TwoRequestsThatShareAPrefixSurviveOnesFailedLoad) {
  world.add("P", options());
  world.add("D", with_faults(options(), {.fail_read = fabric::Strikes::nth(1)}));
  const std::string one = prompt(16, 'a') + "first";
  const std::string two = prompt(16, 'a') + "second";
  const std::string params = world.params_of_prefill("P", one);
  const Ticket failing = decode_slowly(one, params, seconds(1));
  const Ticket sharing = world.decode("D", two, world.params_of_prefill("P", two), 8);
  ASSERT_TRUE(world.finishes(failing, seconds(5)));
  ASSERT_TRUE(world.finishes(sharing, seconds(5)));
  expect_text(failing, one, 8);
  expect_text(sharing, two, 8);
  EXPECT_GE(world.count("D", Counter::kFallbacks), 1u);
  world.run_for(seconds(40));
  world.expect_all_back();
}

// L24: nothing of a failed load is found later.
TEST_P(Failure, F03_AFailedLoadLeavesNothingInThePrefixCache) {
  world.add("P", options());
  world.add("D",
            with_faults(options(LoadFailurePolicy::kFail), {.fail_read = fabric::Strikes::nth(1)}));
  const std::string text = prompt(32, 'a');
  const Ticket failed = world.decode("D", text, world.params_of_prefill("P", text), 8);
  ASSERT_TRUE(world.finishes(failed, seconds(1)));
  expect_failed_load(world, failed, text, LoadFailurePolicy::kFail);
  world.run_for(seconds(1));
  const Ticket again = world.complete("D", text, 8);
  ASSERT_TRUE(world.finishes(again, seconds(1)));
  expect_text(again, text, 8);
  EXPECT_EQ(world.outcome(again).num_cached_tokens, 0u);
  world.run_for(seconds(40));
  world.expect_all_back();
}

// L48
TEST_P(Failure, F08_OneReadThatNeverEndsHoldsUpNobody) {
  InstanceOptions consumer = options();
  consumer.lease.load_timeout = seconds(20);
  world.add("P", options());
  world.add("D", with_faults(consumer, {.hang_read = fabric::Strikes::nth(1)}));
  std::vector<Ticket> tickets;
  for (int i = 0; i < 8; ++i) {
    const std::string text = prompt(20, static_cast<char>('a' + i));
    tickets.push_back(world.decode("D", text, world.params_of_prefill("P", text), 8));
  }
  for (int i = 1; i < 8; ++i) {
    const auto index = static_cast<std::size_t>(i);
    ASSERT_TRUE(world.finishes(tickets[index], milliseconds(100)));
    expect_text(tickets[index], prompt(20, static_cast<char>('a' + i)), 8);
  }
  world.run_to(at(19.9));
  EXPECT_FALSE(world.finished(tickets[0]));
  ASSERT_TRUE(world.finishes(tickets[0], milliseconds(200)));
  expect_text(tickets[0], prompt(20, 'a'), 8);
  EXPECT_EQ(world.count("D", Counter::kReadsTimedOut), tp());
}

// L26: failed at 5, quiet at 9; the client has its one answer at 5 (F11).
TEST_P(Failure, F10_FailedIsNotQuiet) {
  InstanceOptions consumer = options(LoadFailurePolicy::kFail);
  consumer.lease.load_timeout = seconds(5);
  consumer.scheduler.num_blocks = 10;
  world.add("P", options());
  world.add("D", consumer);
  const std::string text = prompt(32, 'a');
  const Ticket failed = decode_slowly(text, world.params_of_prefill("P", text), seconds(9));
  ASSERT_TRUE(world.finishes(failed, milliseconds(5010)));
  expect_failed_load(world, failed, text, LoadFailurePolicy::kFail);
  EXPECT_FALSE(world.outcome(failed).error_message.empty());
  EXPECT_EQ(world.engine("D").blocks().quarantined, 8u);
  const Ticket next = world.complete("D", prompt(32, 'b'), 4);
  world.run_to(at(8.9));
  EXPECT_EQ(world.engine("D").blocks().quarantined, 8u);
  EXPECT_FALSE(world.finished(next));
  ASSERT_TRUE(world.finishes(next, milliseconds(200)));
  expect_text(next, prompt(32, 'b'), 4);
  world.run_for(seconds(40));
  world.expect_all_back();
}

// L48: one limit, that of the worker, decides: a read that lands before it is good, one that lands
// after it has failed, is quarantined until it has landed, and is nothing else any more.
TEST_P(Failure, C14_AReadIsGoodOrTimedOutAndNeverBoth) {
  for (const bool in_time : {true, false}) {
    World fresh;
    fresh.add("P", options());
    fresh.add("D", options());
    const std::string text = prompt(32, 'a');
    const std::string params = fresh.params_of_prefill("P", text);
    fresh.network().set_read_latency(in_time ? milliseconds(59'900) : milliseconds(60'100));
    const Ticket ticket = fresh.decode("D", text, params, 8);
    fresh.run_to(at(1));
    fresh.network().set_read_latency(std::chrono::microseconds(20));
    fresh.run_to(at(60.05));
    EXPECT_EQ(fresh.finished(ticket), true);
    EXPECT_EQ(fresh.engine("D").blocks().quarantined, in_time ? 0u : 8u);
    fresh.run_to(at(60.2));
    EXPECT_EQ(fresh.engine("D").blocks().quarantined, 0u);
    EXPECT_EQ(fresh.outcome(ticket).text, reference_text(text, 8));
    EXPECT_EQ(fresh.count("D", Counter::kReadsValidated), in_time ? tp() : 0u);
    EXPECT_EQ(fresh.count("D", Counter::kReadsTimedOut), in_time ? 0u : tp());
    EXPECT_EQ(fresh.count("D", Counter::kFallbacks), in_time ? 0u : 1u);
    fresh.run_for(seconds(30));
    fresh.expect_all_back();
  }
}

// L26, L48: the client has its one answer, with a reason, while the memory is still taken. (The
// world fails a test in which a request gets a second one.)
TEST_P(Failure, F11_ARequestThatRanOutOfTimeIsAnsweredOnce) {
  InstanceOptions consumer = options(LoadFailurePolicy::kFail);
  consumer.lease.load_timeout = seconds(20);
  world.add("P", options());
  world.add("D", consumer);
  const std::string text = prompt(32, 'a');
  const Ticket ticket = decode_slowly(text, world.params_of_prefill("P", text), seconds(25));
  ASSERT_TRUE(world.finishes(ticket, milliseconds(20'010)));
  EXPECT_GE(world.now(), at(20));
  EXPECT_EQ(world.outcome(ticket).finish_reason, FinishReason::kError);
  EXPECT_NE(world.outcome(ticket).error_message.find("timed_out"), std::string::npos)
      << world.outcome(ticket).error_message;
  EXPECT_EQ(world.engine("D").blocks().quarantined, 8u);
  world.run_for(seconds(30));
  world.expect_all_back();
}

// L27: the prefill node is lost in the middle of the read, or the client cancels then.
TEST_P(Failure, H11_LostOrCancelledInMidRead) {
  for (const bool lost : {true, false}) {
    fabric::NetworkConfig config;
    config.chunk_bytes = 64;
    config.bandwidth_bytes_per_us = 1;
    World fresh(config);
    fresh.add("P", options());
    fresh.add("D", options());
    const std::string text = prompt(64, 'a');
    const std::string params = fresh.params_of_prefill("P", text);
    const Ticket ticket = fresh.decode("D", text, params, 8);
    ASSERT_TRUE(fresh.run_until([&] { return fresh.count("D", Counter::kReadsPosted) == tp(); },
                                seconds(1)));
    fresh.run_for(std::chrono::microseconds(300));  // some pieces are here, others are not
    EXPECT_FALSE(fresh.finished(ticket));
    if (lost) {
      fresh.kill("P");
    } else {
      fresh.abort(ticket);
    }
    ASSERT_TRUE(fresh.finishes(ticket, seconds(1)));
    if (lost) {
      EXPECT_EQ(fresh.outcome(ticket).text, reference_text(text, 8));
      EXPECT_EQ(fresh.outcome(ticket).num_cached_tokens, 0u);
    }
    EXPECT_EQ(fresh.count("D", Counter::kReadsValidated), 0u);
    fresh.run_for(seconds(30));
    fresh.expect_all_back();
  }
}

class FailureOfARank : public PairTest {};
INSTANTIATE_TEST_SUITE_P(Ranks, FailureOfARank, ::testing::Values(2u));

// L38: one rank cannot post its read; nobody waits for what cannot come, and what the other rank
// has read is not used.
TEST_P(FailureOfARank, C12_OneReadThatCannotBePostedFailsTheLoad) {
  for (const LoadFailurePolicy policy : kPolicies) {
    World fresh;
    InstanceOptions consumer = options(policy);
    consumer.faults = {{}, {.refuse_post = fabric::Strikes::nth(1)}};
    fresh.add("P", options());
    fresh.add("D", consumer);
    const std::string text = prompt(32, 'a');
    const Ticket ticket = fresh.decode("D", text, fresh.params_of_prefill("P", text), 8);
    ASSERT_TRUE(fresh.finishes(ticket, milliseconds(10)));
    expect_failed_load(fresh, ticket, text, policy);
    EXPECT_EQ(fresh.outcome(ticket).num_cached_tokens, 0u);
    EXPECT_EQ(fresh.count("D", Counter::kReadsPosted), 1u);
    EXPECT_EQ(fresh.count_events("D", EventKind::kLoadFailed), 1u);
    fresh.run_for(seconds(40));
    fresh.expect_all_back();
  }
}

}  // namespace
}  // namespace kvlease::pairs
