// Handshakes that fail, peers that restart or are replaced, several readers of one lease (scenarios
// D and H).
#include <gtest/gtest.h>

#include "tests/pairs/fixture.h"

namespace kvlease::pairs {
namespace {

class Peer : public PairTest {
 protected:
  // One hand-off from P to D, end to end.
  void expect_handoff(const std::string& text) {
    const std::string params = world.params_of_prefill("P", text);
    const std::uint64_t fallbacks = world.count("D", Counter::kFallbacks);
    const Ticket ticket = world.decode("D", text, params, 8);
    ASSERT_TRUE(world.finishes(ticket, seconds(20)));
    expect_text(ticket, text, 8);
    EXPECT_EQ(world.count("D", Counter::kFallbacks), fallbacks);
  }
  const std::string* failure_of(const std::string& engine) {
    const std::string* detail = nullptr;
    for (const auto& [name, event] : world.events()) {
      if (name == engine && event.kind == EventKind::kHandshakeFailed) detail = &event.detail;
    }
    return detail;
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Peer, ::testing::Values(1u, 2u));

// L27, L48
TEST_P(Peer, D01_ASilentHandshakeEndsAtItsLimit) {
  for (const LoadFailurePolicy policy : kPolicies) {
    World fresh;
    fresh.add("P", options());
    fresh.add("D", options(policy));
    const std::string text = prompt(22, 'a');
    const std::string params = fresh.params_of_prefill("P", text);
    fresh.set_handshake("P", HandshakeBehaviour::kSilent, {});
    const Ticket ticket = fresh.decode("D", text, params, 8);
    fresh.run_to(at(9.9));
    EXPECT_FALSE(fresh.finished(ticket));
    fresh.run_to(at(10.1));
    ASSERT_TRUE(fresh.finished(ticket));
    EXPECT_EQ(fresh.count("D", Counter::kHandshakesFailed), 1u);
    EXPECT_EQ(fresh.count("D", Counter::kReadsPosted), 0u);
    EXPECT_EQ(fresh.count("D", Counter::kStallGraces), 0u);  // L47: no turn was late
    expect_failed_load(fresh, ticket, text, policy);
    fresh.run_for(seconds(60));
    fresh.expect_all_back();
  }
}

// L29: failure reaches the requests that wait for this peer, and nobody else.
TEST_P(Peer, D02_AFailedHandshakeEndsOnlyWhoWaitsForIt) {
  world.add("P", options());
  world.add("P2", options());
  world.add("D", options(LoadFailurePolicy::kFail));
  const std::string one = world.params_of_prefill("P", prompt(22, 'a'));
  const std::string two = world.params_of_prefill("P", prompt(22, 'b'));
  const std::string good = world.params_of_prefill("P2", prompt(22, 'c'));
  world.set_handshake("P", HandshakeBehaviour::kRefuses, milliseconds(500));
  const Ticket first = world.decode("D", prompt(22, 'a'), one, 8);
  const Ticket second = world.decode("D", prompt(22, 'b'), two, 8);
  const Ticket third = decode_slowly(prompt(22, 'c'), good, seconds(8));
  ASSERT_TRUE(world.finishes(first, seconds(8)));
  EXPECT_EQ(world.outcome(first).finished_at, world.outcome(second).finished_at);
  EXPECT_EQ(world.outcome(first).error_message, world.outcome(second).error_message);
  EXPECT_EQ(world.outcome(second).finish_reason, FinishReason::kError);
  ASSERT_TRUE(world.finishes(third, seconds(10)));
  expect_text(third, prompt(22, 'c'), 8);
  world.run_for(seconds(40));
  world.expect_all_back();
}

// L27: six ends, all by policy.
TEST_P(Peer, D03_EveryFailureFollowsThePolicy) {
  enum class Failure : std::uint8_t { kHandshake, kTransfer, kLeaseOver };
  for (const LoadFailurePolicy policy : kPolicies) {
    for (const Failure failure : {Failure::kHandshake, Failure::kTransfer, Failure::kLeaseOver}) {
      World fresh;
      fresh.add("P", options());
      fresh.add("D", failure == Failure::kTransfer
                         ? with_faults(options(policy), {.fail_read = fabric::Strikes::nth(1)})
                         : options(policy));
      const std::string text = prompt(22, 'a');
      const std::string params = fresh.params_of_prefill("P", text);
      if (failure == Failure::kHandshake) {
        fresh.set_handshake("P", HandshakeBehaviour::kRefuses, milliseconds(1));
      }
      if (failure == Failure::kLeaseOver) fresh.run_to(at(31));
      const Ticket ticket = fresh.decode("D", text, params, 8);
      ASSERT_TRUE(fresh.finishes(ticket, seconds(12)));
      expect_failed_load(fresh, ticket, text, policy);
      EXPECT_EQ(fresh.count("D", Counter::kReadsValidated), 0u);
      fresh.run_for(seconds(60));
      fresh.expect_all_back();
    }
  }
}

// L30: another engine answers at the address.
TEST_P(Peer, D04_TheWrongEngineIsRefusedByName) {
  add_pair();
  world.add("other", options());
  const std::string params = world.params_of_prefill("P", prompt(22, 'a'));
  world.redirect("P", "other");
  const Ticket ticket = world.decode("D", prompt(22, 'a'), params, 8);
  ASSERT_TRUE(world.finishes(ticket, seconds(12)));
  expect_text(ticket, prompt(22, 'a'), 8);
  const std::string* const why = failure_of("D");
  ASSERT_NE(why, nullptr);
  EXPECT_NE(why->find("other"), std::string::npos) << *why;
  EXPECT_NE(why->find("P"), std::string::npos) << *why;
  world.redirect("P", "P");
  world.run_for(seconds(1));
  expect_handoff(prompt(22, 'b'));
  world.run_for(seconds(40));
  world.expect_all_back();
}

// L31: old references end by policy, new ones work, and D is not restarted.
TEST_P(Peer, D05_AProducerThatRestartsIsFoundAgain) {
  for (const LoadFailurePolicy policy : kPolicies) {
    World fresh;
    fresh.add("P", options());
    fresh.add("D", options(policy));
    const std::string old = fresh.params_of_prefill("P", prompt(22, 'a'));
    const std::string used = fresh.params_of_prefill("P", prompt(22, 'b'));
    ASSERT_TRUE(fresh.finishes(fresh.decode("D", prompt(22, 'b'), used, 8), seconds(1)));
    fresh.run_to(at(10));
    fresh.kill("P");
    fresh.run_to(at(12));
    fresh.restart("P", options());
    const std::string params = fresh.params_of_prefill("P", prompt(22, 'c'));
    const Ticket good = fresh.decode("D", prompt(22, 'c'), params, 8);
    ASSERT_TRUE(fresh.finishes(good, seconds(5)));
    EXPECT_EQ(fresh.outcome(good).text, reference_text(prompt(22, 'c'), 8));
    const Ticket stale = fresh.decode("D", prompt(22, 'a'), old, 8);
    ASSERT_TRUE(fresh.finishes(stale, seconds(12)));
    expect_failed_load(fresh, stale, prompt(22, 'a'), policy);
    EXPECT_EQ(fresh.count("D", Counter::kStaleReferences), 1u);
    EXPECT_EQ(fresh.count("D", Counter::kReadsValidated), 2u * tp());
    fresh.run_for(seconds(40));
    fresh.expect_all_back();
  }
}

// L21, L31: a read that was under way when P died fails by policy.
TEST_P(Peer, D05_AReadOfTheOldStartIsNoReadOfTheNewOne) {
  add_pair();
  const std::string params = world.params_of_prefill("P", prompt(22, 'a'));
  const Ticket reading = decode_slowly(prompt(22, 'a'), params, seconds(4));
  world.run_to(at(1));
  world.kill("P");
  world.restart("P", options());
  ASSERT_TRUE(world.finishes(reading, seconds(10)));
  expect_text(reading, prompt(22, 'a'), 8);
  EXPECT_EQ(world.count("D", Counter::kReadsValidated), 0u);
  expect_handoff(prompt(22, 'b'));
  world.expect_all_back();
}

// L7, L31: decoders that die and come back at the same address.
TEST_P(Peer, D06_KilledDecodersLeaveNothingBehindInTheProducers) {
  const auto p_name = [](int i) { return "P" + std::to_string(i); };
  const auto d_name = [](int i) { return "D" + std::to_string(i); };
  for (int i = 0; i < 4; ++i) {
    world.add(p_name(i), options());
    world.add(d_name(i), options());
  }
  const auto hand_over_all = [&](char kind) {
    for (int p = 0; p < 4; ++p) {
      for (int d = 0; d < 4; ++d) {
        const std::string text = prompt(18, kind) + std::to_string(10 * p + d);
        const std::string params = world.params_of_prefill(p_name(p), text);
        const Ticket ticket = world.decode(d_name(d), text, params, 4);
        ASSERT_TRUE(world.finishes(ticket, seconds(5)));
        expect_text(ticket, text, 4);
      }
    }
  };
  hand_over_all('a');
  world.run_to(at(95));
  world.network().set_read_latency(seconds(20));
  for (const int dead : {1, 2}) {
    const std::string text = prompt(18, 'b') + std::to_string(dead);
    world.decode(d_name(dead), text, world.params_of_prefill(p_name(0), text), 4);
  }
  world.run_to(at(100));
  world.network().set_read_latency(std::chrono::microseconds(20));
  for (const int dead : {1, 2}) world.kill(d_name(dead));
  world.run_to(at(118));
  EXPECT_EQ(live("P0"), 2u);
  world.run_to(at(126));  // granted and renewed at 95: the deadline is 125
  EXPECT_EQ(ended("P0", LeaseEnd::kExpired), 2u);
  world.run_to(at(140));
  for (const int dead : {1, 2}) world.restart(d_name(dead), options());
  world.run_to(at(145));
  hand_over_all('c');
  world.run_for(milliseconds(10));
  for (int p = 0; p < 4; ++p) {
    EXPECT_EQ(ended(p_name(p), LeaseEnd::kCompleted), 8u) << p_name(p);
    EXPECT_EQ(live(p_name(p)), 0u) << p_name(p);
    EXPECT_EQ(world.count(p_name(p), Counter::kFallbacks), 0u);
  }
  world.expect_all_back();
}

// L32
TEST_P(Peer, D07_AnIdlePeerIsForgottenByTheNormalTurn) {
  InstanceOptions consumer = options();
  consumer.lease.engine_ttl = seconds(60);
  world.add("P", options());
  world.add("D", consumer);
  expect_handoff(prompt(22, 'a'));
  world.run_to(at(59));
  EXPECT_EQ(world.count("D", Counter::kPeersForgotten), 0u);
  world.run_to(at(62));
  EXPECT_EQ(world.count("D", Counter::kPeersForgotten), 1u);
  expect_handoff(prompt(22, 'b'));
  EXPECT_EQ(world.count("D", Counter::kHandshakesDone), 2u);
  world.expect_all_back();
}

// L32: heartbeats are activity.
TEST_P(Peer, D10_APeerThatIsOnlyRenewedIsKept) {
  InstanceOptions consumer = one_at_a_time(options());
  consumer.lease.engine_ttl = seconds(60);
  world.add("P", options());
  world.add("D", consumer);
  const std::string params = world.params_of_prefill("P", prompt(22, 'a'));
  keep_busy("D", 120);
  const Ticket ticket = world.decode("D", prompt(22, 'a'), params, 2);
  ASSERT_TRUE(world.finishes(ticket, seconds(130)));
  expect_text(ticket, prompt(22, 'a'), 2);
  EXPECT_EQ(world.count("D", Counter::kHandshakesDone), 1u);
  EXPECT_EQ(ended("P", LeaseEnd::kCompleted), 1u);
}

// L21: only the peer whose read failed is made anew.
TEST_P(Peer, D08_AFailedReadRenewsThatConnectionAlone) {
  world.add("P", options());
  world.add("P2", options());
  world.add("D", with_faults(options(), {.fail_read = fabric::Strikes::nth(3)}));
  const std::string other = world.params_of_prefill("P2", prompt(22, 'o'));
  ASSERT_TRUE(world.finishes(world.decode("D", prompt(22, 'o'), other, 8), seconds(1)));
  const std::string params = world.params_of_prefill("P", prompt(22, 'a'));
  const Ticket failed = world.decode("D", prompt(22, 'a'), params, 8);
  ASSERT_TRUE(world.finishes(failed, seconds(1)));
  expect_text(failed, prompt(22, 'a'), 8);
  EXPECT_EQ(world.count("D", Counter::kFallbacks), 1u);
  world.run_for(seconds(1));
  expect_handoff(prompt(22, 'b'));
  EXPECT_EQ(world.count("D", Counter::kHandshakesDone), 3u);  // P twice, P2 once
  world.run_for(milliseconds(10));
  EXPECT_EQ(ended("P", LeaseEnd::kCompleted), 2u);  // L33: the failed one is released as well
  world.expect_all_back();
}

// L31
TEST_P(Peer, D09_AReplacedProducerIsNoticedWithoutADeath) {
  fabric::NetworkConfig config;
  config.death_notice = kForever;
  World fresh(config);
  fresh.add("P", options());
  fresh.add("D", options());
  const std::string first = fresh.params_of_prefill("P", prompt(22, 'a'));
  ASSERT_TRUE(fresh.finishes(fresh.decode("D", prompt(22, 'a'), first, 8), seconds(1)));
  fresh.run_to(at(12));
  fresh.kill("P");
  fresh.restart("P", options());
  fresh.run_to(at(17));
  const std::string params = fresh.params_of_prefill("P", prompt(22, 'b'));
  const Ticket ticket = fresh.decode("D", prompt(22, 'b'), params, 8);
  ASSERT_TRUE(fresh.finishes(ticket, seconds(2)));
  EXPECT_EQ(fresh.outcome(ticket).text, reference_text(prompt(22, 'b'), 8));
  EXPECT_EQ(fresh.count("D", Counter::kFallbacks), 0u);
  fresh.expect_all_back();
}

// L18, L29: one slow peer delays nobody else; what waited for it goes out when it is there.
TEST_P(Peer, D17_HandshakesRunInTheBackground) {
  world.add("P", options());
  world.add("P2", options());
  world.add("D", options());
  const std::string warm = world.params_of_prefill("P2", prompt(22, 'w'));
  ASSERT_TRUE(world.finishes(world.decode("D", prompt(22, 'w'), warm, 8), seconds(1)));
  world.set_handshake("P", HandshakeBehaviour::kAnswers, seconds(2));
  std::vector<Ticket> waiting;
  for (const char kind : {'a', 'b', 'c'}) {
    const std::string params = world.params_of_prefill("P", prompt(22, kind));
    waiting.push_back(world.decode("D", prompt(22, kind), params, 8));
  }
  const std::string ready = world.params_of_prefill("P2", prompt(22, 'r'));
  ASSERT_TRUE(world.finishes(world.decode("D", prompt(22, 'r'), ready, 8), milliseconds(10)));
  EXPECT_EQ(world.count("P", Counter::kHeartbeatsReceived), 0u);
  world.run_to(at(1.9));
  EXPECT_FALSE(world.finished(waiting[0]));
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(world.finishes(waiting[i], milliseconds(200)));
    expect_text(waiting[i], prompt(22, "abc"[i]), 8);
  }
  EXPECT_EQ(world.count("D", Counter::kHandshakesDone), 2u);
  world.run_for(milliseconds(10));
  EXPECT_EQ(world.count("P", Counter::kHeartbeatsReceived), tp());
  world.expect_all_back();
}

TEST_P(Peer, D17_ALeaseThatEndsDuringTheHandshakeIsOver) {
  InstanceOptions consumer = options(LoadFailurePolicy::kFail);
  consumer.lease.handshake_timeout = seconds(60);
  world.add("P", options());
  world.add("D", consumer);
  const std::string params = world.params_of_prefill("P", prompt(22, 'a'));
  world.set_handshake("P", HandshakeBehaviour::kAnswers, seconds(35));
  const Ticket ticket = world.decode("D", prompt(22, 'a'), params, 8);
  ASSERT_TRUE(world.finishes(ticket, seconds(36)));
  EXPECT_NE(world.outcome(ticket).error_message.find("lease"), std::string::npos)
      << world.outcome(ticket).error_message;
  EXPECT_EQ(world.outcome(ticket).text, "");
  world.expect_all_back();
}

// L24: what waited behind a slow handshake is not read once its lease is over; the blocks' next
// owner keeps its bytes to itself.
TEST_P(Peer, C13_AReadBehindASlowHandshakeIsNotMadeAfterTheLease) {
  InstanceOptions producer = options();
  producer.scheduler.num_blocks = 12;
  InstanceOptions consumer = options();
  consumer.lease.handshake_timeout = seconds(60);
  world.add("P", producer);
  world.add("D", consumer);
  const std::string text = prompt(40, 'a');
  const std::string params = world.params_of_prefill("P", text);
  world.set_handshake("P", HandshakeBehaviour::kAnswers, seconds(33));
  const Ticket ticket = world.decode("D", text, params, 8);
  world.run_to(at(31));
  EXPECT_EQ(ended("P", LeaseEnd::kExpired), 1u);
  const std::string others = world.params_of_prefill("P", prompt(40, 's'));
  ASSERT_TRUE(world.finishes(ticket, seconds(3)));
  EXPECT_GE(world.now(), at(33));
  expect_text(ticket, text, 8);
  EXPECT_EQ(world.outcome(ticket).num_cached_tokens, 0u);
  EXPECT_EQ(world.count("D", Counter::kReadsValidated), 0u);
  EXPECT_EQ(live("P"), 1u);  // that of the next owner
  const Ticket next = world.decode("D", prompt(40, 's'), others, 8);
  ASSERT_TRUE(world.finishes(next, seconds(1)));
  expect_text(next, prompt(40, 's'), 8);
  world.expect_all_back();
}

// L29, L31: however many need the missing peer, one handshake is made and one connection.
TEST_P(Peer, D12_EightRequestsMakeOneConnection) {
  add_pair();
  for (std::size_t round = 1; round <= 20; ++round) {
    std::vector<Ticket> tickets;
    std::vector<std::string> texts;
    for (int i = 0; i < 8; ++i) {
      texts.push_back(prompt(6, 'a') + std::to_string(100 * round + static_cast<std::size_t>(i)));
      const std::string params = world.params_of_prefill("P", texts.back());
      tickets.push_back(world.decode("D", texts.back(), params, 4));
    }
    for (std::size_t i = 0; i < tickets.size(); ++i) {
      ASSERT_TRUE(world.finishes(tickets[i], seconds(1)));
      expect_text(tickets[i], texts[i], 4);
    }
    EXPECT_EQ(world.count("D", Counter::kHandshakesStarted), round);
    EXPECT_EQ(world.count("D", Counter::kHandshakesDone), round);
    world.run_for(seconds(1));
    world.kill("P");
    world.run_for(seconds(20));
    world.restart("P", options());
  }
  EXPECT_EQ(world.count("D", Counter::kFallbacks), 0u);
}

// L2, L7: another decoder takes over a lease.
TEST_P(Peer, H12_AnotherDecoderFetchesTheSamePrefill) {
  world.add("P", options());
  world.add("D", one_at_a_time(options()));
  world.add("D2", options());
  const std::string text = prompt(22, 'a');
  const std::string params = world.params_of_prefill("P", text);
  keep_busy("D", 60);
  world.decode("D", text, params, 8);
  world.run_to(at(11));
  world.kill("D");
  world.run_to(at(20));
  EXPECT_EQ(live("P"), 1u);
  const Ticket ticket = world.decode("D2", text, params, 8);
  ASSERT_TRUE(world.finishes(ticket, seconds(1)));
  expect_text(ticket, text, 8);
  EXPECT_EQ(world.count("D2", Counter::kFallbacks), 0u);
  world.run_for(milliseconds(10));
  EXPECT_EQ(ended("P", LeaseEnd::kCompleted), 1u);
  world.expect_all_back();
}

TEST_P(Peer, H12_ADecoderThatComesTooLateComputes) {
  add_pair();
  const std::string text = prompt(22, 'a');
  const std::string params = world.params_of_prefill("P", text);
  world.run_to(at(31));
  const Ticket ticket = world.decode("D", text, params, 8);
  ASSERT_TRUE(world.finishes(ticket, seconds(1)));
  expect_text(ticket, text, 8);
  EXPECT_EQ(world.count("D", Counter::kFallbacks), 1u);
  EXPECT_EQ(ended("P", LeaseEnd::kExpired), 1u);
  world.expect_all_back();
}

// L51
TEST_P(Peer, OnlyAllowedHostsAreConnectedTo) {
  InstanceOptions consumer = options();
  consumer.allow_peers = {"10.0.0.1"};
  world.add("P", options());
  world.add("D", consumer);
  const std::string params = world.params_of_prefill("P", prompt(22, 'a'));
  const Ticket ticket = world.decode("D", prompt(22, 'a'), params, 8);
  ASSERT_TRUE(world.finishes(ticket, seconds(1)));
  expect_text(ticket, prompt(22, 'a'), 8);
  EXPECT_EQ(world.count("D", Counter::kHandshakesStarted), 0u);
  EXPECT_EQ(world.count("D", Counter::kInvalidReferences), 1u);
}

}  // namespace
}  // namespace kvlease::pairs
