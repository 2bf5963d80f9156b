// Bad, mixed and used references never give a token from somebody else's bytes (F01, L28, L31,
// L52).
#include <gtest/gtest.h>

#include "tests/pairs/fixture.h"

namespace kvlease::pairs {
namespace {

enum class Bad : std::uint8_t { kUnknownId, kOutOfRange, kConsumed, kReused, kOver };

std::string name_of(Bad bad) {
  switch (bad) {
    case Bad::kUnknownId:
      return "UnknownId";
    case Bad::kOutOfRange:
      return "OutOfRange";
    case Bad::kConsumed:
      return "Consumed";
    case Bad::kReused:
      return "Reused";
    case Bad::kOver:
      return "Over";
  }
  return {};
}

using Row = std::tuple<Bad, LoadFailurePolicy, std::uint32_t>;
class BadReference : public ::testing::TestWithParam<Row> {};
INSTANTIATE_TEST_SUITE_P(Rows, BadReference,
                         ::testing::Combine(::testing::Values(Bad::kUnknownId, Bad::kOutOfRange,
                                                              Bad::kConsumed, Bad::kReused,
                                                              Bad::kOver),
                                            ::testing::ValuesIn(kPolicies),
                                            ::testing::Values(1u, 2u)),
                         [](const auto& row) {
                           return name_of(std::get<0>(row.param)) + "_" +
                                  std::string(load_failure_policy_name(std::get<1>(row.param))) +
                                  "_tp" + std::to_string(std::get<2>(row.param));
                         });

// L24, L27, L52: each is found before any token, and counted once.
TEST_P(BadReference, F01_FailsBeforeAnyToken) {
  const auto [bad, policy, tp] = GetParam();
  World world;
  InstanceOptions producer{.tp = tp};
  producer.scheduler.num_blocks = 12;
  InstanceOptions consumer{.tp = tp};
  consumer.lease.load_failure_policy = policy;
  world.add("P", producer);
  world.add("D", consumer);
  world.add("D2", consumer);
  const std::string text = prompt(38, 'a');
  std::string params = world.params_of_prefill("P", text);
  if (bad == Bad::kUnknownId) {
    params = edited(params, [](auto& p) { p.remote_request_id = LeaseId("client-00000000"); });
  }
  if (bad == Bad::kOutOfRange) {
    params = edited(params, [](auto& p) { p.remote_block_ids->front().back() = BlockId(12); });
  }
  if (bad == Bad::kConsumed || bad == Bad::kReused) {
    ASSERT_TRUE(world.finishes(world.decode("D2", text, params, 8), seconds(1)));
    world.run_for(seconds(1));
  }
  if (bad == Bad::kReused) {
    ASSERT_TRUE(world.finishes(world.complete("P", prompt(40, 'b'), 8), seconds(1)));
  }
  if (bad == Bad::kOver) world.run_to(at(45));
  const Ticket ticket = world.decode("D", text, params, 8);
  ASSERT_TRUE(world.finishes(ticket, seconds(5)));
  EXPECT_EQ(world.count("D", Counter::kReadsValidated), 0u);
  EXPECT_EQ(world.count("D", Counter::kInvalidReferences) +
                world.count("D", Counter::kReadsRejected) / tp,
            1u);
  EXPECT_EQ(world.count("D", Counter::kFallbacks), policy == LoadFailurePolicy::kFail ? 0u : 1u);
  EXPECT_EQ(world.count("D", Counter::kPeersSuspect), 0u);
  if (policy == LoadFailurePolicy::kFail) {
    EXPECT_EQ(world.outcome(ticket).finish_reason, FinishReason::kError);
    EXPECT_EQ(world.outcome(ticket).text, "");
  } else {
    EXPECT_EQ(world.outcome(ticket).text, reference_text(text, 8));
  }
  world.run_for(seconds(31));
  world.expect_all_back();
}

class Reference : public PairTest {};
INSTANTIATE_TEST_SUITE_P(Ranks, Reference, ::testing::Values(1u, 2u));

// L52: one lease's word, seal, blocks, id or prompt with another's: rejected before a byte is read,
// and nobody's lease ends.
TEST_P(Reference, MixedReferencesAreRejectedAndEndNothing) {
  add_pair();
  const std::string a = prompt(22, 'a');
  const std::string b = prompt(22, 'b');
  const std::string params_a = world.params_of_prefill("P", a);
  const std::string params_b = world.params_of_prefill("P", b);
  const auto other = parse_kv_transfer_params(params_b, 1 << 20).value();
  const std::function<void(KvTransferParams&)> mixes[] = {
      [&](auto& p) { p.remote_block_ids = other.remote_block_ids; },
      [&](auto& p) { std::swap(p.remote_block_ids->front()[0], p.remote_block_ids->front()[1]); },
      [&](auto& p) { p.remote_block_ids->front().pop_back(); },
      [&](auto& p) { p.remote_request_id = other.remote_request_id; },
      [&](auto& p) { p.kvlease->seal = other.kvlease->seal; },
      [&](auto& p) { p.kvlease->word = other.kvlease->word + 1; },
      [&](auto& p) { p.kvlease->slot = other.kvlease->slot; },
      [&](auto& p) { p.kvlease->digest = other.kvlease->digest; },
      [&](auto& p) { p.kvlease->digest_tokens = 4; },
      [&](auto& p) { p.kvlease->heartbeat_interval_ms = 1; },
      [&](auto& p) { p.kvlease->lease_duration_ms *= 2; },
      [&](auto& p) { p.remote_num_tokens = 21; },
      [&](auto& p) { p.tp_size = tp() + 1; },
      [&](auto& p) { p.kvlease.reset(); },  // L28: P has announced entries
      [&](auto& p) { p = other; },          // b's reference with a's prompt
  };
  std::uint64_t rejected = 0;
  for (const auto& mix : mixes) {
    const Ticket ticket = world.decode("D", a, edited(params_a, mix), 8);
    ASSERT_TRUE(world.finishes(ticket, seconds(1)));
    expect_text(ticket, a, 8);
    EXPECT_EQ(world.count("D", Counter::kInvalidReferences), ++rejected);
  }
  const Ticket shorter = world.decode("D", a.substr(0, 21), params_a, 8);
  ASSERT_TRUE(world.finishes(shorter, seconds(1)));
  EXPECT_EQ(world.count("D", Counter::kInvalidReferences), ++rejected);
  EXPECT_EQ(world.count("D", Counter::kReadsPosted), 0u);
  EXPECT_EQ(world.count("D", Counter::kHeartbeatsSent), 0u);
  EXPECT_EQ(world.count("D", Counter::kCompletionsSent), 0u);
  EXPECT_EQ(world.count("D", Counter::kPeersSuspect), 0u);
  EXPECT_EQ(live("P"), 2u);
  const Ticket good = world.decode("D", b, params_b, 8);
  ASSERT_TRUE(world.finishes(good, seconds(1)));
  expect_text(good, b, 8);
  EXPECT_EQ(world.count("D", Counter::kReadsValidated), tp());
  world.run_for(seconds(31));
  world.expect_all_back();
}

// L45: a retry's lease is another one; the first attempt's late end does not touch it.
TEST_P(Reference, C06_ARetryIsNotEndedByTheFirstAttempt) {
  add_pair();
  const std::string text = prompt(22, 'a');
  const std::string first = world.params_of_prefill("P", text);
  world.run_to(at(3));
  const std::string second = world.params_of_prefill("P", text);
  world.run_to(at(5));
  world.abort(decode_slowly(text, first, seconds(1)));
  world.run_to(at(7));
  EXPECT_EQ(ended("P", LeaseEnd::kCompleted), 1u);
  EXPECT_EQ(live("P"), 1u);
  const Ticket ticket = world.decode("D", text, second, 8);
  ASSERT_TRUE(world.finishes(ticket, seconds(1)));
  expect_text(ticket, text, 8);
  EXPECT_EQ(world.count("D", Counter::kFallbacks), 0u);
  world.expect_all_back();
}

// L25: the probe tells a queued request that its lease is gone, within an interval.
TEST_P(Reference, C11_AQueuedRequestLearnsThatItsLeaseIsLost) {
  world.add("P", options());
  world.add("D", one_at_a_time(options(LoadFailurePolicy::kFail)));
  const std::string params = world.params_of_prefill("P", prompt(22, 'a'));
  keep_busy("D", 60);
  const Ticket ticket = world.decode("D", prompt(22, 'a'), params, 8);
  world.run_to(at(7));
  const LeaseId lease = world.engine("P").connector().leases().live_leases().begin()->first;
  EXPECT_TRUE(world.release("P", lease));
  ASSERT_TRUE(world.finishes(ticket, milliseconds(5100)));
  EXPECT_EQ(world.outcome(ticket).finish_reason, FinishReason::kError);
  EXPECT_GE(world.count("D", Counter::kLeasesLost), 1u);
  EXPECT_EQ(world.count("D", Counter::kReadsPosted), 0u);
  world.run_to(at(70));
  world.expect_all_back();
}

// Both legs of a request on one engine: its prefix cache has the prompt, the lease ends at once,
// and a stranger who shows the reference with another prompt ends nothing (L10, L52).
TEST(OwnReference, IsServedFromThePrefixCacheAndEndsItsLease) {
  for (const LoadFailurePolicy policy : kPolicies) {
    World world;
    InstanceOptions options;
    options.lease.load_failure_policy = policy;
    world.add("both", options);
    const std::string text = prompt(22, 'a');
    const std::string params = world.params_of_prefill("both", text);
    const Ticket stranger = world.decode("both", prompt(22, 'b'), params, 8);
    ASSERT_TRUE(world.finishes(stranger, seconds(5)));
    EXPECT_EQ(world.engine("both").connector().leases().live(), 1u);
    const Ticket own = world.decode("both", text, params, 8);
    ASSERT_TRUE(world.finishes(own, seconds(5)));
    EXPECT_EQ(world.outcome(own).error_message, "");
    EXPECT_EQ(world.outcome(own).text, reference_text(text, 8));
    EXPECT_GE(world.outcome(own).num_cached_tokens, 20u);
    const auto& ledger = world.engine("both").connector().leases().ledger();
    EXPECT_EQ(ledger.ended[static_cast<std::size_t>(LeaseEnd::kReleased)], 1u);
    world.expect_all_back();
  }
}

}  // namespace
}  // namespace kvlease::pairs
