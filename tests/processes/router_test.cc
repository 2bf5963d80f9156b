// `kvlease route` before real instances over real NIXL, as clients see it: many at once, streamed
// or not; clients that hang up; requests that fit nowhere; an ordinary OpenAI client.
#include <csignal>
#include <optional>

#include "kvlease/runtime/process.h"
#include "tests/processes/router_testing.h"

namespace kvlease {
namespace {

class Router : public RouterTest {};

TEST_F(Router, ThirtyTwoClientsAtOnceGetTheirTexts) {
  start_stack({.prefills = 2, .decodes = 2});
  std::vector<Pending> pending;
  for (std::uint32_t i = 0; i < 32; ++i) pending.push_back(begin(prompt_text(i), i % 2 == 1));
  for (std::uint32_t i = 0; i < 32; ++i) {
    EXPECT_EQ(text_of(*pending[i]), expected_text(prompt_text(i))) << "client " << i;
  }
  std::uint64_t granted = 0;
  for (const char* name : {"P1", "P2"}) {
    const InstanceLedger ledger = expect_all_blocks_back(name, kSlack);
    EXPECT_EQ(ledger.granted, 16u) << name;  // round robin
    EXPECT_EQ(ended(ledger, "completed"), ledger.granted) << name;
    granted += ledger.granted;
  }
  EXPECT_EQ(granted, 32u);
  EXPECT_EQ(count("D1", "read_validated"), 16u);
  EXPECT_EQ(count("D2", "read_validated"), 16u);
  expect_all_quiet({"D1", "D2"}, kSlack);
}

TEST_F(Router, AClientThatHangsUpDuringThePrefillLeavesNoLease) {  // L34
  start_stack({.decodes = 1,
               .lease_seconds = 60,
               .prefill_arguments = {"--prefill-time-per-token", "0.002"}});
  auto pending = begin(prompt_text(1), true);
  const auto running = cluster_.wait_for_ledger(
      "P1", kLimit, [](const InstanceLedger& seen) { return seen.blocks_in_use > 0; });
  ASSERT_TRUE(running && running->blocks_in_use > 0);
  pending.reset();
  EXPECT_EQ(expect_all_blocks_back("P1", kLimit).granted, 0u);
  expect_router_works(2);
}

TEST_F(Router, AClientThatHangsUpWhileQueuedFreesTheLeaseAtOnce) {  // L33
  start_stack({.decodes = 1,
               .lease_seconds = 60,
               .decode_arguments = {"--max-num-seqs", "1", "--inter-token-latency", "0.005"}});
  auto occupying = occupy("D1");
  auto pending = begin(prompt_text(1), false);
  ASSERT_TRUE(wait_for("P1", "lease_granted"));
  ASSERT_TRUE(wait_for("D1", "tracking_started"));
  pending.reset();
  expect_all_quiet({"P1"}, kSlack);
  EXPECT_EQ(count("P1", "lease_ended"), 1u);
  occupying.reset();
  expect_router_works(2);
}

TEST_F(Router, AClientThatHangsUpInMidStreamStopsTheDecoder) {
  start_stack(
      {.decodes = 1, .lease_seconds = 60, .decode_arguments = {"--inter-token-latency", "0.05"}});
  auto pending = begin(prompt_text(1), true);
  ASSERT_TRUE(wait_for("router", "first_byte"));
  pending.reset();
  expect_all_quiet({"P1", "D1"}, kSlack);
}

TEST_F(Router, ARequestThatFitsNowhereIsRefusedAndNamed) {  // L43
  start_stack({.prefill_arguments = {"--num-gpu-blocks", "16"}});
  const std::string prompt(16 * 16 + 1, 'x');
  const auto pending = begin(prompt, false);
  ASSERT_TRUE(cluster_.wait_until([&] { return pending->result.has_value(); }, kLimit));
  ASSERT_FALSE(*pending->result);
  EXPECT_TRUE(pending->result->error().message.starts_with("HTTP 400: "))
      << pending->result->error().message;
  expect_all_quiet({"P1", "D1", "D2"}, kSlack);
}

// Exit code 0 from the client library's own view of the answers.
TEST_F(Router, AnOrdinaryOpenAiClientIsServed) {
  start_stack({.route_arguments = {"--api-key", "the-key"},
               .environment = {{"KVLEASE_API_KEY", "the-key"}}});
  const std::string prompt = prompt_text(1);
  const std::string library = std::string(KVL_SOURCE_DIR) + "/.deps/openai";
  std::string words;
  std::optional<ExitStatus> exit;
  EventLoop loop;
  const auto client = ChildProcess::spawn(
      loop,
      {.argv = {library + "/python",
                std::string(KVL_SOURCE_DIR) + "/tests/processes/openai_client.py",
                "http://127.0.0.1:" + std::to_string(cluster_.port("router")) + "/v1", "the-key",
                prompt, expected_text(prompt)},
       .environment = {{"PYTHONPATH", library}},
       .on_line = [&](OutputStream, std::string_view line) { words += "\n  " + std::string(line); },
       .on_exit =
           [&](ExitStatus status) {
             exit = status;
             loop.stop();
           }});
  ASSERT_TRUE(client) << client.error().message << " (./dev test installs the client library)";
  const Instant end = loop.now() + kLimit;
  loop.run([&](Instant now) {
    if (now >= end) loop.stop();
    return end;
  });
  ASSERT_TRUE(exit) << "no end in time:" << words;
  EXPECT_TRUE(exit->success()) << to_string(*exit) << words;
  expect_all_quiet({"P1"}, kSlack);
}

}  // namespace
}  // namespace kvlease
