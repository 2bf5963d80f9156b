// Aborts, rejections and hits between whole engines: nothing leaks, nothing is freed too early
// (scenarios B).
#include <gtest/gtest.h>

#include "kvlease/synthetic/tokenizer.h"
#include "tests/pairs/fixture.h"

namespace kvlease::pairs {
namespace {

class Abort : public PairTest {};
INSTANTIATE_TEST_SUITE_P(Ranks, Abort, ::testing::Values(1u, 2u));

// L26: the destination of an aborted read is nobody's until the read is over.
TEST_P(Abort, B02_BlocksAreFreeWhenTheReadHasLanded) {
  add_pair();
  const std::string text = prompt(32, 'a');
  const std::string params = world.params_of_prefill("P", text);
  world.run_to(at(1));
  const Ticket ticket = decode_slowly(text, params, seconds(4));
  world.run_to(at(3));
  world.abort(ticket);
  world.abort(ticket);  // a second call changes nothing
  EXPECT_EQ(world.engine("D").blocks().quarantined, 8u);
  world.run_to(at(4.9));
  EXPECT_EQ(world.engine("D").blocks().quarantined, 8u);
  EXPECT_EQ(live("P"), 1u);
  world.run_to(at(5.1));
  EXPECT_EQ(world.engine("D").blocks().quarantined, 0u);
  EXPECT_EQ(ended("P", LeaseEnd::kCompleted), 1u);
  world.expect_all_back();
}

TEST_P(Abort, B02_AfterTheLoadTheBlocksAreFreeAtOnce) {
  world.add("P", options());
  world.add("D", one_at_a_time(options()));
  const std::string params = world.params_of_prefill("P", prompt(32, 'a'));
  const Ticket ticket = decode_slowly(prompt(32, 'a'), params, milliseconds(100));
  const Ticket busy = keep_busy("D", 10);  // begins while the load is under way
  ASSERT_TRUE(
      world.run_until([&] { return world.engine("D").core().stats().loaded == 1; }, seconds(1)));
  world.abort(ticket);
  EXPECT_EQ(world.engine("D").blocks().quarantined, 0u);
  EXPECT_EQ(world.engine("D").blocks().in_use, 2u);  // the busy one's
  ASSERT_TRUE(world.finishes(busy, seconds(20)));
  world.expect_all_back();
}

// L33: nothing to read, and P is told in the same step.
TEST_P(Abort, B05_AFullLocalHitReadsNothingAndReleases) {
  add_pair();
  const std::string text = prompt(64, 'a');
  ASSERT_TRUE(world.finishes(world.complete("D", text, 1), seconds(1)));
  const std::string params = world.params_of_prefill("P", text);
  const Instant asked = world.now();
  const Ticket ticket = world.decode("D", text, params, 8);
  ASSERT_TRUE(world.run_until([&] { return live("P") == 0; }, seconds(1)));
  EXPECT_LT(world.now() - asked, milliseconds(10));
  ASSERT_TRUE(world.finishes(ticket, seconds(1)));
  expect_text(ticket, text, 8);
  EXPECT_EQ(world.count("D", Counter::kReadsPosted), 0u);
  EXPECT_EQ(ended("P", LeaseEnd::kCompleted), 1u);
  world.expect_all_back();
}

// L33, L52: an unreachable P holds nobody up who needs nothing of it; it is told when it is there.
TEST_P(Abort, AFullLocalHitDoesNotWaitForTheHandshake) {
  const std::string text = prompt(64, 'a');
  for (const bool reachable : {true, false}) {
    World fresh;
    fresh.add("P", options());
    fresh.add("D", options(LoadFailurePolicy::kFail));
    ASSERT_TRUE(fresh.finishes(fresh.complete("D", text, 1), seconds(1)));
    const std::string params = fresh.params_of_prefill("P", text);
    if (reachable) {
      fresh.set_handshake("P", HandshakeBehaviour::kAnswers, seconds(2));
    } else {
      fresh.set_handshake("P", HandshakeBehaviour::kSilent, {});
    }
    const Ticket ticket = fresh.decode("D", text, params, 8);
    ASSERT_TRUE(fresh.finishes(ticket, milliseconds(10)));
    EXPECT_EQ(fresh.outcome(ticket).text, reference_text(text, 8));
    EXPECT_EQ(fresh.count("D", Counter::kReadsPosted), 0u);
    fresh.run_to(at(1.9));
    EXPECT_EQ(fresh.engine("P").connector().leases().live(), 1u);
    fresh.run_to(at(2.1));
    EXPECT_EQ(fresh.engine("P").connector().leases().live(), reachable ? 0u : 1u);
    fresh.run_to(at(31));
    EXPECT_EQ(fresh.count("D", Counter::kFallbacks), 0u);
    fresh.expect_all_back();
  }
}

// The request may still be running, or over, when the peer is there.
TEST_P(Abort, AFullLocalHitThatRunsLongReleasesWhenThePeerIsThere) {
  world.add("P", options());
  InstanceOptions consumer = options();
  consumer.inter_token_latency = seconds(1);
  world.add("D", consumer);
  const std::string text = prompt(64, 'a');
  ASSERT_TRUE(world.finishes(world.complete("D", text, 1), seconds(5)));
  const std::string params = world.params_of_prefill("P", text);
  world.set_handshake("P", HandshakeBehaviour::kAnswers, seconds(2));
  const Ticket ticket = world.decode("D", text, params, 8);
  world.run_for(seconds(3));
  EXPECT_FALSE(world.finished(ticket));
  EXPECT_EQ(ended("P", LeaseEnd::kCompleted), 1u);
  ASSERT_TRUE(world.finishes(ticket, seconds(20)));
  expect_text(ticket, text, 8);
  world.expect_all_back();
}

// L16, L33
TEST_P(Abort, B06_AbortedInTheQueueItIsReleasedAtOnce) {
  world.add("P", options());
  world.add("D", one_at_a_time(options()));
  const std::string text = prompt(32, 'a');
  const std::string params = world.params_of_prefill("P", text);
  keep_busy("D", 20);
  const Ticket ticket = world.decode("D", text, params, 8);
  world.run_to(at(1));
  const std::uint64_t heartbeats = world.count("D", Counter::kHeartbeatsSent);
  world.abort(ticket);
  world.run_to(at(1.01));
  EXPECT_EQ(ended("P", LeaseEnd::kCompleted), 1u);
  world.run_to(at(15));
  EXPECT_EQ(world.count("D", Counter::kHeartbeatsSent), heartbeats);
  world.run_to(at(25));
  world.expect_all_back();
}

// L33, L52: the release of a request that ended before the handshake waits for it, and no longer.
TEST_P(Abort, B06_AbortedBeforeTheHandshakeTheReleaseWaitsForIt) {
  add_pair();
  const std::string params = world.params_of_prefill("P", prompt(32, 'a'));
  world.set_handshake("P", HandshakeBehaviour::kAnswers, seconds(2));
  const Ticket ticket = world.decode("D", prompt(32, 'a'), params, 8);
  world.abort(ticket);
  world.run_to(at(1.9));
  EXPECT_EQ(live("P"), 1u);
  world.run_to(at(2.1));
  EXPECT_EQ(live("P"), 0u);
  world.expect_all_back();
}

// L33
TEST_P(Abort, B07_RejectedRequestsReleaseTheirLeases) {
  add_pair();
  for (const char kind : {'a', 'b', 'c', 'd', 'e'}) {
    const std::string text = prompt(12, kind);
    const auto params = parse_kv_transfer_params(world.params_of_prefill("P", text), 1 << 20);
    NewRequest request{.client_id = "client",
                       .prompt_token_ids = tokenize(text),
                       .sampling = {.max_tokens = 0},
                       .kv_transfer_params = *params};
    if (kind == 'e') {  // by the host itself: an unknown model, an unsupported option
      world.refuse_request("D", std::move(request));
      world.run_for(milliseconds(1));
    } else {
      EXPECT_EQ(world.outcome(world.add_request("D", std::move(request))).finish_reason,
                FinishReason::kError);
    }
  }
  world.run_to(at(2));
  EXPECT_EQ(ended("P", LeaseEnd::kCompleted), 5u);
  EXPECT_EQ(world.engine("D").connector().tracked_requests(), 0u);
  const std::uint64_t sent = world.count("D", Counter::kCompletionsSent);
  world.add_request(
      "D",
      {.client_id = "client", .prompt_token_ids = tokenize("x"), .sampling = {.max_tokens = 0}});
  world.expect_all_back();
  EXPECT_EQ(world.count("D", Counter::kCompletionsSent), sent);
}

TEST_P(Abort, B09_CancelledTransfersLeakNothing) {
  InstanceOptions large = options();
  large.scheduler.num_blocks = 200;
  world.add("P", large);
  world.add("D", large);
  for (int i = 0; i < 40; ++i) {
    const std::string text = prompt(32, static_cast<char>('A' + i));
    const Ticket ticket = decode_slowly(text, world.params_of_prefill("P", text), seconds(1));
    world.run_for(milliseconds(100));
    world.abort(ticket);
  }
  world.run_for(milliseconds(1000));
  EXPECT_EQ(ended("P", LeaseEnd::kCompleted), 40u);
  world.expect_all_back();
  const std::string params = world.params_of_prefill("P", prompt(32, 'a'));
  const Ticket last = world.decode("D", prompt(32, 'a'), params, 8);
  ASSERT_TRUE(world.finishes(last, seconds(1)));
  expect_text(last, prompt(32, 'a'), 8);
}

// L16, L26, L48: the request is over at once, its blocks never come back before the read is over,
// and P gets its own back when the renewal has stopped.
TEST_P(Abort, B10_AReadThatNeverEndsHoldsOnlyItsDestination) {
  world.add("P", options());
  world.add("D", with_faults(options(), {.hang_read = fabric::Strikes::nth(1)}));
  const std::string params = world.params_of_prefill("P", prompt(32, 'a'));
  const Ticket ticket = world.decode("D", prompt(32, 'a'), params, 8);
  world.run_to(at(2));
  world.abort(ticket);
  EXPECT_EQ(world.outcome(ticket).finish_reason, FinishReason::kAbort);
  const std::string other = world.params_of_prefill("P", prompt(32, 'b'));
  const Ticket next = world.decode("D", prompt(32, 'b'), other, 8);
  ASSERT_TRUE(world.finishes(next, seconds(1)));
  expect_text(next, prompt(32, 'b'), 8);
  world.run_to(at(59));
  EXPECT_EQ(live("P"), 1u);
  world.run_to(at(85));
  EXPECT_EQ(ended("P", LeaseEnd::kExpired), 1u);
  world.engine("P").expect_all_back();
  EXPECT_EQ(world.engine("D").blocks().quarantined, 8u);
}

// L26: who waits for these very blocks gets them when the write is over.
TEST_P(Abort, B11_TheNextRequestWaitsForBlocksThatAreStillWritten) {
  InstanceOptions consumer = options();
  consumer.scheduler.num_blocks = 8;
  world.add("P", options());
  world.add("D", consumer);
  const std::string params = world.params_of_prefill("P", prompt(30, 'a'));
  world.run_to(at(1));
  const Ticket aborted = decode_slowly(prompt(30, 'a'), params, seconds(5));
  world.run_to(at(2));
  world.abort(aborted);
  world.run_to(at(3));
  const Ticket next = world.complete("D", prompt(28, 'b'), 4);
  world.run_to(at(5.9));
  EXPECT_FALSE(world.finished(next));
  ASSERT_TRUE(world.finishes(next, seconds(1)));
  expect_text(next, prompt(28, 'b'), 4);
  world.expect_all_back();
}

TEST_P(Abort, B14_NoPinIsLeftAfterAnyEnd) {
  add_pair();
  for (int i = 0; i < 100; ++i) {
    const std::string text = prompt(20, static_cast<char>('!' + i % 80)) + std::to_string(i);
    const std::string params = world.params_of_prefill("P", text);
    if (i % 4 == 1) {
      ASSERT_TRUE(world.finishes(world.complete("D", text, 1), seconds(1)));
    }
    const Ticket ticket = world.decode("D", text, params, 8);
    if (i % 4 == 2) world.abort(ticket);
    ASSERT_TRUE(world.finishes(ticket, seconds(1)));
    if (i % 4 != 2) expect_text(ticket, text, 8);
  }
  world.run_for(seconds(1));
  EXPECT_EQ(ended("P", LeaseEnd::kCompleted), 100u);
  world.expect_all_back();
}

// L11
TEST_P(Abort, B16_AnIdleProducerStillSeesCompletionsAndDeadlines) {
  add_pair();
  const std::string read = world.params_of_prefill("P", prompt(32, 'a'));
  world.params_of_prefill("P", prompt(32, 'b'));
  world.run_to(at(3));
  ASSERT_TRUE(world.finishes(world.decode("D", prompt(32, 'a'), read, 2), seconds(1)));
  world.run_to(at(4));
  EXPECT_EQ(live("P"), 1u);
  EXPECT_TRUE(world.engine("P").core().has_work());
  world.run_to(at(31));
  EXPECT_EQ(ended("P", LeaseEnd::kExpired), 1u);
  EXPECT_FALSE(world.engine("P").core().has_work());
  world.expect_all_back();
}

// L48: a P that goes silent costs kv_load_timeout and no more; the others run on.
TEST_P(Abort, B17_ASilentProducerEndsTheWaitAtTheLimit) {
  for (const LoadFailurePolicy policy : kPolicies) {
    World fresh;
    InstanceOptions consumer = options(policy);
    fresh.add("P", options());
    fresh.add("D", consumer);
    const std::string text = prompt(45, 'a');
    const std::string params = fresh.params_of_prefill("P", text);
    fresh.network().set_read_latency(seconds(2));
    const Ticket ticket = fresh.decode("D", text, params, 8);
    fresh.run_to(at(1));
    fresh.stop("P");
    ASSERT_TRUE(fresh.finishes(fresh.complete("D", prompt(9, 'b'), 8), seconds(1)));
    fresh.run_to(at(59));
    EXPECT_FALSE(fresh.finished(ticket));
    fresh.run_to(at(61));
    ASSERT_TRUE(fresh.finished(ticket));
    EXPECT_EQ(fresh.count("D", Counter::kReadsTimedOut), tp());
    if (policy == LoadFailurePolicy::kRecompute) {
      EXPECT_EQ(fresh.outcome(ticket).text, reference_text(text, 8));
    } else {
      EXPECT_EQ(fresh.outcome(ticket).text, "");
    }
    EXPECT_EQ(fresh.engine("D").blocks().quarantined, 12u);
    fresh.cont("P");
    fresh.run_for(seconds(40));
    fresh.expect_all_back();
  }
}

// L16: several users of one lease; P is told after the last one, once.
TEST_P(Abort, B19_SeveralSamplesShareOneLease) {
  add_pair();
  const std::string text = prompt(24, 'a');
  const std::string params = world.params_of_prefill("P", text);
  world.network().set_read_latency(seconds(1));
  std::vector<Ticket> samples;
  for (int i = 0; i < 4; ++i) {
    samples.push_back(world.decode("D", text, params, 8));
    world.run_for(milliseconds(100));
  }
  world.abort(samples[1]);
  for (const int i : {0, 2, 3}) {
    EXPECT_EQ(live("P"), 1u);
    ASSERT_TRUE(world.finishes(samples[static_cast<std::size_t>(i)], seconds(5)));
    expect_text(samples[static_cast<std::size_t>(i)], text, 8);
  }
  world.run_for(milliseconds(10));
  EXPECT_EQ(ended("P", LeaseEnd::kCompleted), 1u);
  EXPECT_EQ(world.count("P", Counter::kCompletionUnknown), 0u);
  EXPECT_EQ(world.count("P", Counter::kCompletionsReceived), tp());
  world.expect_all_back();
}

// L10, L33, L34
TEST_P(Abort, B20_InEveryStateACancelGivesTheBlocksBackAtOnce) {
  InstanceOptions producer = options();
  producer.prefill_time_per_token = milliseconds(100);
  world.add("P", producer);
  world.add("D", options());
  const Ticket early = world.prefill("P", prompt(20, 'a'));  // (a) before the prefill has ended
  world.run_to(at(1));
  world.abort(early);
  world.run_to(at(2.1));
  EXPECT_EQ(world.outcome(early).params, "");
  EXPECT_EQ(world.engine("P").connector().leases().ledger().granted, 0u);
  EXPECT_EQ(world.engine("P").blocks().in_use, 0u);

  const std::string granted = world.params_of_prefill("P", prompt(20, 'b'));  // (b) D not asked yet
  const LeaseId lease = world.engine("P").connector().leases().live_leases().begin()->first;
  EXPECT_TRUE(world.release("P", lease));
  EXPECT_FALSE(world.release("P", lease));
  world.run_for(milliseconds(1));
  EXPECT_EQ(ended("P", LeaseEnd::kReleased), 1u);

  const std::string read = world.params_of_prefill("P", prompt(20, 'c'));  // (c) while D reads
  const Ticket reading = decode_slowly(prompt(20, 'c'), read, seconds(2));
  world.abort(reading);
  world.run_for(seconds(3));
  EXPECT_EQ(ended("P", LeaseEnd::kCompleted), 1u);
  world.expect_all_back();
}

// L11, L34: no other traffic is needed for the late result of an aborted forward.
TEST_P(Abort, B15_AnAbortedForwardIsCleanedUpByTheNormalTurn) {
  InstanceOptions producer = options();
  producer.prefill_time_per_token = milliseconds(50);
  world.add("P", producer);
  const Ticket ticket = world.prefill("P", prompt(20, 'a'));
  world.abort(ticket);
  world.run_to(at(0.9));
  EXPECT_EQ(world.engine("P").blocks().in_use, 5u);  // L26: the forward still writes them
  world.run_to(at(1.1));
  EXPECT_EQ(world.engine("P").blocks().in_use, 0u);
  EXPECT_EQ(world.engine("P").connector().leases().ledger().granted, 0u);
  world.expect_all_back();
}

// L33: whom the reference names tells P of an end without a read.
TEST_P(Abort, TheRouterReleasesWhereTheReferenceSaysSo) {
  world.add("P", options());
  world.add("D", one_at_a_time(options()));
  const auto by_router = [](KvTransferParams& params) {
    params.kvlease->release_by = ReleaseBy::kRouter;
  };
  const std::string queued = edited(world.params_of_prefill("P", prompt(20, 'a')), by_router);
  const std::string loaded = edited(world.params_of_prefill("P", prompt(20, 'b')), by_router);
  const Ticket good = world.decode("D", prompt(20, 'b'), loaded, 1);
  ASSERT_TRUE(world.finishes(good, seconds(3)));
  expect_text(good, prompt(20, 'b'), 1);
  world.run_for(milliseconds(10));
  EXPECT_EQ(ended("P", LeaseEnd::kCompleted), 1u);  // a validated load is D's to report

  keep_busy("D", 5);
  const Ticket aborted = world.decode("D", prompt(20, 'a'), queued, 1);
  world.run_for(milliseconds(10));
  world.abort(aborted);
  world.run_for(seconds(10));
  EXPECT_EQ(live("P"), 1u);
  const LeaseId lease = world.engine("P").connector().leases().live_leases().begin()->first;
  EXPECT_TRUE(world.release("P", lease));
  world.run_for(milliseconds(10));
  EXPECT_EQ(ended("P", LeaseEnd::kReleased), 1u);
  world.expect_all_back();
}

}  // namespace
}  // namespace kvlease::pairs
