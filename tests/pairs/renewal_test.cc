// Leases that are renewed, that lapse, and reads that come too late, between whole engines
// (scenarios A).
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/pairs/fixture.h"

namespace kvlease::pairs {
namespace {

class Renewal : public PairTest {};
INSTANTIATE_TEST_SUITE_P(Ranks, Renewal, ::testing::Values(1u, 2u));

// L15, L18: renewed from the queue on, whenever it is scheduled.
TEST_P(Renewal, A04_RenewalStartsWhenTheRequestIsEnqueued) {
  world.add("P", options());
  world.add("D", one_at_a_time(options()));
  const std::string text = prompt(22, 'a');
  const std::string params = world.params_of_prefill("P", text);
  world.run_to(at(2));
  keep_busy("D", 93);
  const Ticket ticket = world.decode("D", text, params, 8);
  world.run_to(at(94.9));
  EXPECT_EQ(world.count("D", Counter::kReadsPosted), 0u);
  EXPECT_EQ(live("P"), 1u);
  EXPECT_EQ(world.count("P", Counter::kHeartbeatsReceived), 19u * tp());
  ASSERT_TRUE(world.finishes(ticket, seconds(20)));
  expect_text(ticket, text, 8);
  EXPECT_EQ(ended("P", LeaseEnd::kCompleted), 1u);
  EXPECT_EQ(world.count("D", Counter::kFallbacks), 0u);
  world.expect_all_back();
}

// L17: one message an interval, however many requests wait.
TEST_P(Renewal, A05_ABacklogIsKeptByOneMessageAnInterval) {
  constexpr std::size_t kRequests = 400;
  InstanceOptions producer = options();
  producer.scheduler.num_blocks = 500;
  producer.lease.lease_slots = 512;
  InstanceOptions consumer = one_at_a_time(options());
  consumer.scheduler.num_blocks = 1;  // one request of one block a second
  world.add("P", producer);
  world.add("D", consumer);
  std::vector<std::string> texts;
  std::vector<Ticket> prefills;
  for (std::size_t i = 0; i < kRequests; ++i) {
    texts.push_back(std::to_string(1000 + i));
    prefills.push_back(world.prefill("P", texts.back()));
  }
  world.run_for(milliseconds(10));
  std::vector<Ticket> tickets;
  for (std::size_t i = 0; i < kRequests; ++i) {
    tickets.push_back(world.decode("D", texts[i], world.outcome(prefills[i]).params, 1));
  }
  ASSERT_TRUE(world.finishes(tickets.back(), seconds(410)));
  EXPECT_EQ(ended("P", LeaseEnd::kCompleted), kRequests);
  EXPECT_LE(world.count("P", Counter::kHeartbeatsReceived), 81u * tp());
  EXPECT_EQ(world.count("P", Counter::kHeartbeatUnknown), 0u);
  EXPECT_EQ(world.count("D", Counter::kFallbacks), 0u);
  for (const std::size_t i : {std::size_t{0}, kRequests / 2, kRequests - 1}) {
    expect_text(tickets[i], texts[i], 1);
  }
  world.expect_all_back();
}

// Lease at 0, freed at 30, its blocks another request's at 32, the read lands at 51.
struct LateRead {
  std::string text = prompt(40, 'a');
  Ticket ticket = 0;
};

class Late : public PairTest {
 protected:
  LateRead read_late(const InstanceOptions& consumer) {
    InstanceOptions producer = options();
    producer.scheduler.num_blocks = 12;
    world.add("P", producer);
    world.add("D", with_faults(consumer, {.drop_notifs_with_prefix = "HB:"}));
    LateRead late;
    const std::string params = world.params_of_prefill("P", late.text);
    world.run_to(at(28));
    late.ticket = decode_slowly(late.text, params, seconds(23));
    world.run_to(at(32));
    EXPECT_EQ(ended("P", LeaseEnd::kExpired), 1u);
    EXPECT_TRUE(world.finishes(world.complete("P", prompt(40, 'b'), 8), seconds(1)));
    EXPECT_FALSE(world.finished(late.ticket));
    EXPECT_TRUE(world.finishes(late.ticket, seconds(30)));
    EXPECT_GE(world.now(), at(50));
    return late;
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Late, ::testing::Values(1u, 2u));

// L24
TEST_P(Late, A06_BytesReadAfterTheEndAreNeverUsed) {
  const LateRead late = read_late(options());
  expect_text(late.ticket, late.text, 8);
  EXPECT_EQ(world.outcome(late.ticket).num_cached_tokens, 0u);
  EXPECT_EQ(world.count("D", Counter::kReadsRejected), tp());
  EXPECT_EQ(world.count("D", Counter::kFallbacks), 1u);
  world.expect_all_back();
}

TEST_P(Late, A06_PolicyFailEndsTheRequestWithoutAToken) {
  const LateRead late = read_late(options(LoadFailurePolicy::kFail));
  expect_failed_load(world, late.ticket, late.text, LoadFailurePolicy::kFail);
  EXPECT_EQ(world.count("D", Counter::kFallbacks), 0u);
  world.expect_all_back();
}

// The counter-proof: without validation the same read gives a wrong text and no error.
TEST_P(Late, A06_WithoutValidationTheTextIsWrong) {
  InstanceOptions consumer = options();
  consumer.validate_reads = false;
  const LateRead late = read_late(consumer);
  EXPECT_EQ(world.outcome(late.ticket).finish_reason, FinishReason::kLength);
  EXPECT_NE(world.outcome(late.ticket).text, reference_text(late.text, 8));
}

// L21: three sends in a row fail, the connection is made anew, nothing lapses.
TEST_P(Renewal, A08_FailedSendsHealByANewHandshake) {
  world.add("P", options());
  world.add("D", with_faults(one_at_a_time(options()), {.refuse_notif = {.skip = 2, .count = 3}}));
  std::vector<std::string> texts{prompt(22, 'a'), prompt(17, 'b'), prompt(8, 'c')};
  std::vector<std::string> params;
  for (const std::string& text : texts) params.push_back(world.params_of_prefill("P", text));
  keep_busy("D", 60);
  std::vector<Ticket> tickets;
  for (std::size_t i = 0; i < 3; ++i) tickets.push_back(world.decode("D", texts[i], params[i], 2));
  world.run_to(at(19));
  EXPECT_EQ(world.count("D", Counter::kPeersSuspect), 0u);
  world.run_to(at(21));
  EXPECT_EQ(world.count("D", Counter::kSendFailures), 3u * tp());
  EXPECT_EQ(world.count("D", Counter::kPeersSuspect), 1u);
  EXPECT_EQ(world.count("D", Counter::kHandshakesDone), 2u);
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(world.finishes(tickets[i], seconds(70)));
    expect_text(tickets[i], texts[i], 2);
  }
  EXPECT_EQ(ended("P", LeaseEnd::kCompleted), 3u);
  world.expect_all_back();
}

TEST_P(Renewal, A08_WhenTheHandshakeFailsTooTheRequestsEndByPolicy) {
  world.add("P", options());
  world.add("D", with_faults(one_at_a_time(options(LoadFailurePolicy::kFail)),
                             {.refuse_notif = fabric::Strikes::after(2)}));
  std::vector<Ticket> tickets;
  std::vector<std::string> params;
  for (const char kind : {'a', 'b', 'c'})
    params.push_back(world.params_of_prefill("P", prompt(22, kind)));
  keep_busy("D", 60);
  for (std::size_t i = 0; i < 3; ++i) {
    tickets.push_back(world.decode("D", prompt(22, "abc"[i]), params[i], 2));
  }
  world.run_to(at(6));
  world.set_handshake("P", HandshakeBehaviour::kRefuses, milliseconds(1));
  world.run_to(at(35));
  for (const Ticket ticket : tickets) {
    EXPECT_EQ(world.outcome(ticket).finish_reason, FinishReason::kError);
  }
  world.run_to(at(70));
  EXPECT_EQ(ended("P", LeaseEnd::kExpired), 3u);
  world.expect_all_back();
}

// L24: a read that begins inside the lease and lands after its end is no good; a renewed one is.
TEST_P(Renewal, A10_AReadThatEndsAfterTheLeaseIsDropped) {
  world.add("P", options());
  world.add("D", with_faults(options(), {.drop_notifs_with_prefix = "HB:"}));
  const std::string text = prompt(22, 'a');
  const std::string params = world.params_of_prefill("P", text);
  world.run_to(at(28));
  const Ticket ticket = decode_slowly(text, params, seconds(5));
  ASSERT_TRUE(world.finishes(ticket, seconds(10)));
  expect_text(ticket, text, 8);
  EXPECT_EQ(world.count("D", Counter::kReadsRejected), tp());
  world.expect_all_back();
}

TEST_P(Renewal, A10_TheSameReadOfARenewedLeaseIsGood) {
  add_pair();
  const std::string text = prompt(22, 'a');
  const std::string params = world.params_of_prefill("P", text);
  world.run_to(at(28));
  const Ticket ticket = decode_slowly(text, params, seconds(5));
  ASSERT_TRUE(world.finishes(ticket, seconds(10)));
  expect_text(ticket, text, 8);
  EXPECT_EQ(world.count("D", Counter::kReadsRejected), 0u);
  world.run_for(milliseconds(10));
  EXPECT_EQ(ended("P", LeaseEnd::kCompleted), 1u);
  world.expect_all_back();
}

// L24: one batch, four verdicts: over, good, good, and one that failed for a reason of its own and
// keeps it.
TEST_P(Renewal, A11_EachReadOfABatchHasItsOwnVerdict) {
  world.add("P", options());
  world.add("D", with_faults(options(), {.fail_read = fabric::Strikes::nth(4)}));
  std::vector<std::string> params;
  for (const char kind : {'a', 'b', 'c', 'd'}) {
    params.push_back(world.params_of_prefill("P", prompt(22, kind)));
  }
  const auto lease_of = [](const std::string& text) {
    return *parse_kv_transfer_params(text, 1 << 20)->remote_request_id;
  };
  world.network().set_read_latency(seconds(12));
  std::vector<Ticket> tickets;
  for (std::size_t i = 0; i < 4; ++i) {
    tickets.push_back(world.decode("D", prompt(22, "abcd"[i]), params[i], 8));
  }
  ASSERT_TRUE(world.run_until([&] { return world.count("D", Counter::kReadsPosted) == 4u * tp(); },
                              seconds(1)));
  world.network().set_read_latency(std::chrono::microseconds(20));
  world.run_to(at(10));
  for (const std::size_t over : {0u, 3u}) EXPECT_TRUE(world.release("P", lease_of(params[over])));
  for (std::size_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(world.finishes(tickets[i], seconds(5)));
    expect_text(tickets[i], prompt(22, "abcd"[i]), 8);
    EXPECT_EQ(world.outcome(tickets[i]).num_cached_tokens, i == 1 || i == 2 ? 21u : 0u);
  }
  std::vector<std::string> causes;
  for (const auto& [name, event] : world.events()) {
    if (event.kind != EventKind::kLoadFailed) continue;
    causes.push_back(event.detail.substr(0, event.detail.find(':')));
  }
  std::ranges::sort(causes);
  EXPECT_EQ(causes, (std::vector<std::string>{"lease_lost", "transfer_failed"}));
  world.expect_all_back();
}

// L14: the reader's own setting does not matter.
TEST_P(Renewal, TheIntervalIsTheLeases) {
  InstanceOptions producer = options();
  producer.lease.times = derive_lease_times(seconds(6));
  InstanceOptions consumer = one_at_a_time(options());
  consumer.lease.times = derive_lease_times(seconds(60));
  world.add("P", producer);
  world.add("D", consumer);
  const std::string text = prompt(22, 'a');
  const std::string params = world.params_of_prefill("P", text);
  keep_busy("D", 50);
  const Ticket ticket = world.decode("D", text, params, 4);
  ASSERT_TRUE(world.finishes(ticket, seconds(60)));
  expect_text(ticket, text, 4);
  EXPECT_EQ(ended("P", LeaseEnd::kCompleted), 1u);
  EXPECT_EQ(world.count("D", Counter::kFallbacks), 0u);
  world.expect_all_back();
}

// L16: a read that runs on after an abort keeps its lease.
TEST_P(Renewal, AnAbortedReadIsRenewedUntilItIsOver) {
  add_pair();
  const std::string text = prompt(22, 'a');
  const std::string params = world.params_of_prefill("P", text);
  const Ticket ticket = decode_slowly(text, params, seconds(50));
  world.run_to(at(5));
  world.abort(ticket);
  EXPECT_EQ(world.outcome(ticket).finish_reason, FinishReason::kAbort);
  world.run_to(at(49.9));
  EXPECT_EQ(live("P"), 1u);
  world.run_to(at(50.1));
  EXPECT_EQ(live("P"), 0u);
  EXPECT_EQ(ended("P", LeaseEnd::kCompleted), 1u);
  world.expect_all_back();
}

// L47: heartbeats that waited in the sockets of a stopped P count when it goes on.
TEST_P(Renewal, AStoppedProducerExpiresNothingThatWasRenewedMeanwhile) {
  world.add("P", options());
  world.add("D", one_at_a_time(options()));
  const std::string text = prompt(22, 'a');
  const std::string params = world.params_of_prefill("P", text);
  keep_busy("D", 60);
  const Ticket ticket = world.decode("D", text, params, 4);
  world.run_to(at(7));
  world.stop("P");
  world.run_to(at(45));
  world.cont("P");
  world.run_to(at(47));
  EXPECT_EQ(live("P"), 1u);
  EXPECT_EQ(world.count("P", Counter::kStallGraces), tp());
  ASSERT_TRUE(world.finishes(ticket, seconds(30)));
  expect_text(ticket, text, 4);
  EXPECT_EQ(ended("P", LeaseEnd::kCompleted), 1u);
  EXPECT_EQ(world.count("D", Counter::kFallbacks), 0u);
  world.expect_all_back();
}

// L24: a reader that stood still while the lease ended and the blocks were reused gets nothing.
TEST_P(Renewal, AStoppedReaderWakesUpTooLate) {
  InstanceOptions producer = options();
  producer.scheduler.num_blocks = 12;
  world.add("P", producer);
  world.add("D", options());
  const std::string text = prompt(40, 'a');
  const std::string params = world.params_of_prefill("P", text);
  const Ticket ticket = decode_slowly(text, params, seconds(2));
  world.run_to(at(1));
  world.stop("D");
  world.run_to(at(40));
  EXPECT_EQ(ended("P", LeaseEnd::kExpired), 1u);
  ASSERT_TRUE(world.finishes(world.complete("P", prompt(40, 'b'), 8), seconds(1)));
  world.cont("D");
  ASSERT_TRUE(world.finishes(ticket, seconds(10)));
  expect_text(ticket, text, 8);
  EXPECT_EQ(world.count("D", Counter::kReadsRejected), tp());
  world.expect_all_back();
}

}  // namespace
}  // namespace kvlease::pairs
