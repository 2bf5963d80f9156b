// Behind the router, P, D or the router itself is killed, stopped or restarted at each stage of a
// request: the client gets the right text or an honest error, and no block stays away.
#include <csignal>

#include "tests/processes/router_testing.h"

namespace kvlease {
namespace {

// One sequence at a time, and slow enough to be caught at it.
const std::vector<std::string> kOneAtATime{"--max-num-seqs", "1", "--inter-token-latency", "0.01"};

class RouterDeath : public RouterTest {
 protected:
  // The answer of a request whose instance died.
  void expect_text(Cluster::PendingCompletion& pending, const std::string& prompt) {
    EXPECT_EQ(text_of(pending), expected_text(prompt));
  }
  static std::string other(const std::string& decoder) { return decoder == "D1" ? "D2" : "D1"; }
};

TEST_F(RouterDeath, PrefillKilledWhileItComputes) {
  start_stack(
      {.prefills = 2, .decodes = 1, .prefill_arguments = {"--prefill-time-per-token", "0.004"}});
  const std::string prompt = prompt_text(1);
  const auto pending = begin(prompt, true);
  const auto running = cluster_.wait_for_ledger(
      "P1", kLimit, [](const InstanceLedger& seen) { return seen.blocks_in_use > 0; });
  ASSERT_TRUE(running && running->blocks_in_use > 0);
  kill_and_wait("P1");
  expect_text(*pending, prompt);
  expect_router_works(2);  // by P2
  EXPECT_GE(count("P2", "lease_granted"), 2u);
  expect_all_quiet({"P2", "D1"}, kSlack);
}

TEST_F(RouterDeath, PrefillKilledWhileItsLeaseIsQueued) {
  start_stack({.prefills = 2, .decodes = 1, .decode_arguments = kOneAtATime});
  auto occupying = occupy("D1");
  const std::string prompt = prompt_text(1);
  const auto pending = begin(prompt, false);
  ASSERT_TRUE(wait_for("D1", "tracking_started"));
  kill_and_wait("P1");
  occupying.reset();
  expect_text(*pending, prompt);
  expect_router_works(2);
  expect_all_quiet({"P2", "D1"}, kSlack);
}

TEST_F(RouterDeath, PrefillKilledWhileItIsRead) {
  start_stack({.prefills = 2, .decodes = 1, .decode_arguments = {"--fault-post-delay", "0.3"}});
  const std::string prompt = prompt_text(1);
  const auto pending = begin(prompt, true);
  ASSERT_TRUE(wait_for("D1", "read_posted"));
  kill_and_wait("P1");
  expect_text(*pending, prompt);
  expect_router_works(2);
  expect_all_quiet({"P2", "D1"}, kSlack);
}

// The lease lives on, and another decoder reads it: nobody prefills twice.
TEST_F(RouterDeath, H12_DecoderKilledWhileItsRequestIsQueued) {
  start_stack({.decode_arguments = kOneAtATime});
  auto first = occupy("D1");
  auto second = occupy("D2");
  const std::string prompt = prompt_text(1);
  const auto pending = begin(prompt, true);
  const std::string doomed = decoder_with("tracking_started");
  kill_and_wait(doomed);
  ASSERT_TRUE(wait_for(other(doomed), "tracking_started"));
  (doomed == "D1" ? second : first).reset();
  expect_text(*pending, prompt);
  EXPECT_EQ(count("router", "decoding_elsewhere"), 1u);
  EXPECT_EQ(count("router", "retried"), 0u);
  EXPECT_EQ(count("P1", "lease_granted"), 1u);
  EXPECT_EQ(count(other(doomed), "read_validated"), 1u);
  expect_all_quiet({"P1", other(doomed)}, kSlack);
  EXPECT_EQ(ended(expect_all_blocks_back("P1", kSlack), "completed"), 1u);  // L6: freed once
}

// The router keeps the lease alive for longer than it lasts, while its decoder is replaced.
TEST_F(RouterDeath, H12_DecoderThatHangsIsGivenUpAfterItsProbes) {
  start_stack({.lease_seconds = 1});
  expect_router_works(0);
  cluster_.signal("D1", SIGSTOP);
  cluster_.signal("D2", SIGSTOP);
  const std::string prompt = prompt_text(2);
  const auto pending = begin(prompt, false);
  ASSERT_TRUE(wait_for("P1", "lease_granted", 3));
  ASSERT_TRUE(wait_for("router", "decoding_elsewhere"));
  cluster_.signal("D1", SIGCONT);
  cluster_.signal("D2", SIGCONT);
  expect_text(*pending, prompt);
  EXPECT_EQ(count("P1", "lease_granted"), 3u);
  expect_all_quiet({"P1", "D1", "D2"}, kLimit);
}

TEST_F(RouterDeath, DecoderKilledWhileItReads) {
  start_stack({.decode_arguments = {"--fault-post-delay", "0.3"}});
  const std::string prompt = prompt_text(1);
  const auto pending = begin(prompt, false);
  const std::string doomed = decoder_with("read_posted");
  kill_and_wait(doomed);
  expect_text(*pending, prompt);
  expect_all_quiet({"P1", other(doomed)}, kSlack);
}

TEST_F(RouterDeath, DecoderKilledWhileItDecodesAnAnswerInOnePiece) {
  start_stack({.decode_arguments = {"--inter-token-latency", "0.05"}});
  const std::string prompt = prompt_text(1);
  const auto pending = begin(prompt, false);
  const std::string doomed = decoder_with("completion_sent");
  kill_and_wait(doomed);
  expect_text(*pending, prompt);
  expect_all_quiet({"P1", other(doomed)}, kSlack);
}

// The client has seen bytes, so nobody may begin again: it must see that the answer is not whole.
TEST_F(RouterDeath, DecoderKilledInMidStreamCutsTheStream) {
  start_stack({.decode_arguments = {"--inter-token-latency", "0.05"}});
  const auto pending = begin(prompt_text(1), true);
  ASSERT_TRUE(wait_for("router", "first_byte"));
  const std::string doomed = decoder_with("completion_sent");
  kill_and_wait(doomed);
  ASSERT_TRUE(cluster_.wait_until([&] { return pending->result.has_value(); }, kLimit));
  EXPECT_FALSE(*pending->result);
  EXPECT_EQ(count("router", "retried"), 0u);
  expect_router_works(2);
  expect_all_quiet({"P1", other(doomed)}, kSlack);
}

TEST_F(RouterDeath, RouterKilledFreesEverything) {  // L33, L34
  const StackOptions options{.lease_seconds = 60,
                             .decode_arguments = kOneAtATime,
                             .route_arguments = {"--release-by", "decoder"}};
  start_stack(options);
  std::vector<Pending> pending;
  for (std::uint32_t i = 0; i < 6; ++i) pending.push_back(begin(prompt_text(i), i % 2 == 1));
  ASSERT_TRUE(wait_for("D1", "tracking_started", 2));
  const std::uint16_t port = cluster_.port("router");
  kill_and_wait("router");
  expect_all_quiet({"P1", "D1", "D2"}, kSlack);
  const auto again = cluster_.start(
      "router-again", {.command = "route", .arguments = route_arguments(options), .port = port});
  ASSERT_TRUE(again) << again.error().message;
  const std::string prompt = prompt_text(7);
  const auto answer = cluster_.complete(
      "router-again", {.prompt = prompt, .max_tokens = kMaxTokens, .request_id = "again"});
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->text, expected_text(prompt));
}

// L33: where the router releases, nobody else does; the heartbeats stop, and the leases end.
TEST_F(RouterDeath, RouterThatReleasesIsKilledAndItsLeasesEndByThemselves) {
  start_stack({.lease_seconds = 1, .decode_arguments = kOneAtATime});
  std::vector<Pending> pending;
  for (std::uint32_t i = 0; i < 6; ++i) pending.push_back(begin(prompt_text(i), i % 2 == 1));
  ASSERT_TRUE(wait_for("D1", "tracking_started", 2));
  kill_and_wait("router");
  expect_all_quiet({"P1", "D1", "D2"}, kLimit);
}

TEST_F(RouterDeath, RestartedOnTheirPortsWithTheirEngineIdsAllWorksAgain) {  // L31
  const StackOptions options{.decodes = 1};
  start_stack(options);
  expect_router_works(0);
  for (const char* name : {"P1", "D1"}) {
    SCOPED_TRACE(name);
    const std::uint16_t port = cluster_.port(name);
    kill_and_wait(name);
    const std::string again = std::string(name) + "-again";
    start(again, instance_arguments(name, options), {}, port);
    // Known to be back, if it was missed: else all requests would be decoded alone.
    const std::size_t ups = count("router", "backend_up");
    const std::size_t downs = count("router", "backend_down");
    if (downs > ups) {
      ASSERT_TRUE(wait_for("router", "backend_up", downs));
    }
    const std::size_t validated =
        count("D1", "read_validated") + count("D1-again", "read_validated");
    expect_router_works(2);
    EXPECT_EQ(count("D1", "read_validated") + count("D1-again", "read_validated"), validated + 2);
  }
  expect_all_quiet({"P1-again", "D1-again"}, kSlack);
}

TEST_F(RouterDeath, PrefillStoppedIsDoneWithout) {
  start_stack({.decodes = 1, .route_arguments = {"--prefill-timeout", "1"}});
  expect_router_works(0);
  cluster_.signal("P1", SIGSTOP);
  const std::string prompt = prompt_text(2);
  expect_text(*begin(prompt, false), prompt);
  EXPECT_GE(count("router", "decode_alone"), 1u);
  cluster_.signal("P1", SIGCONT);
  ASSERT_TRUE(wait_for("router", "backend_up"));
  const std::size_t granted = count("P1", "lease_granted");
  expect_router_works(3);
  EXPECT_GE(count("P1", "lease_granted"), granted + 2);
  expect_all_quiet({"P1", "D1"}, kSlack);
}

TEST_F(RouterDeath, DecoderStoppedItsRequestGoesToAnother) {
  start_stack({.route_arguments = {"--decode-timeout", "1"}});
  expect_router_works(0);
  cluster_.signal("D1", SIGSTOP);
  cluster_.signal("D2", SIGSTOP);
  const std::string prompt = prompt_text(2);
  const auto pending = begin(prompt, false);
  ASSERT_TRUE(wait_for("P1", "lease_granted", 3));
  cluster_.signal("D2", SIGCONT);
  expect_text(*pending, prompt);
  cluster_.signal("D1", SIGCONT);
  expect_all_quiet({"P1", "D1", "D2"}, kLimit);
}

TEST_F(RouterDeath, RouterStoppedGoesOnWhenItIsWoken) {
  start_stack({.decodes = 1, .decode_arguments = {"--inter-token-latency", "0.02"}});
  const std::string prompt = prompt_text(1);
  const auto pending = begin(prompt, true);
  ASSERT_TRUE(wait_for("D1", "read_validated"));
  cluster_.signal("router", SIGSTOP);
  cluster_.wait_until([&] { return count("P1", "lease_ended") > 0; }, kLimit);
  cluster_.signal("router", SIGCONT);
  expect_text(*pending, prompt);
  expect_all_quiet({"P1", "D1"}, kSlack);
}

}  // namespace
}  // namespace kvlease
