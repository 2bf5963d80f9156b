// P is stopped, dies or is restarted while D waits for it or reads from it: D answers all the same,
// with the same text or by policy, and works with the next P.
#include <csignal>

#include "tests/processes/handoff_testing.h"

namespace kvlease {
namespace {

class PrefillDeath : public ProcessTest {
 protected:
  void expect_next_prefill_works(const std::string& name) {
    const std::string prompt = prompt_text(8);
    const std::size_t validated = count("D", "read_validated");
    EXPECT_EQ(decode("D", prompt, prefill(name, prompt)), expected_text(prompt));
    EXPECT_EQ(count("D", "read_validated"), validated + 1);
  }
};

// L47: heartbeats that came while P was stopped are applied before anything expires.
TEST_F(PrefillDeath, AStoppedPrefillLosesNoLeaseThatWasRenewed) {
  start_pair(2);
  auto occupying = occupy("D");
  const std::string prompt = prompt_text(1);
  const auto decoding = begin_decode("D", prompt, prefill("P", prompt));
  ASSERT_TRUE(wait_for("P", "leases_renewed"));
  cluster_.signal("P", SIGSTOP);
  const Instant woken = cluster_.now() + std::chrono::milliseconds{2500};
  ASSERT_FALSE(cluster_.wait_until([&] { return count("D", "load_failed") > 0; },
                                   woken - cluster_.now()));  // L25: a stall is no loss
  cluster_.signal("P", SIGCONT);
  ASSERT_TRUE(wait_for("P", "stall_grace"));
  const std::size_t renewed = count("P", "leases_renewed");
  ASSERT_TRUE(wait_for("P", "leases_renewed", renewed + 2));
  EXPECT_EQ(count("P", "lease_ended"), 0u);
  occupying.reset();
  EXPECT_EQ(text_of(*decoding), expected_text(prompt));
  EXPECT_EQ(count("D", "read_validated"), 1u);
  EXPECT_EQ(ended(expect_all_blocks_back("P", kSlack), "completed"), 1u);
}

TEST_F(PrefillDeath, KilledWhileQueuedIsComputedHere) {  // L21, L27
  start_pair(2);
  auto occupying = occupy("D");
  const std::string prompt = prompt_text(2);
  const auto decoding = begin_decode("D", prompt, prefill("P", prompt));
  ASSERT_TRUE(wait_for("D", "heartbeat_sent"));
  cluster_.signal("P", SIGKILL);
  occupying.reset();
  EXPECT_EQ(text_of(*decoding), expected_text(prompt));
  start("P2", transfer_config("kv_producer", ""));
  expect_next_prefill_works("P2");
  expect_all_blocks_back("D", kSlack);
}

TEST_F(PrefillDeath, KilledWhileReadingIsComputedHere) {  // L21, L26, L27
  start_pair(2, {"--fault-post-delay", "0.3"});
  const std::string prompt = prompt_text(3);
  const auto decoding = begin_decode("D", prompt, prefill("P", prompt));
  ASSERT_TRUE(wait_for("D", "read_posted"));
  cluster_.signal("P", SIGKILL);
  EXPECT_EQ(text_of(*decoding), expected_text(prompt));
  EXPECT_EQ(count("D", "read_validated"), 0u);
  start("P2", transfer_config("kv_producer", ""));
  expect_next_prefill_works("P2");
}

TEST_F(PrefillDeath, WithPolicyFailTheAnswerIsAnError) {  // L27
  start("P", transfer_config("kv_producer", ""));
  start("D",
        transfer_config("kv_consumer", R"("kv_load_timeout":3,"kv_load_failure_policy":"fail")"));
  const std::string prompt = prompt_text(4);
  const std::string params = prefill("P", prompt);
  cluster_.signal("P", SIGKILL);
  ASSERT_TRUE(cluster_.wait_until([&] { return !cluster_.running("P"); }, kLimit));
  const auto decoding = begin_decode("D", prompt, params);
  ASSERT_TRUE(cluster_.wait_until([&] { return decoding->result.has_value(); }, kLimit));
  ASSERT_FALSE(*decoding->result);
  const std::string& message = decoding->result->error().message;
  EXPECT_TRUE(message.starts_with("HTTP 500: ")) << message;
  EXPECT_NE(message.find("handshake_failed"), std::string::npos) << message;
  start("P2", transfer_config("kv_producer", ""));
  expect_next_prefill_works("P2");
}

// L31: the same address and engine id, another incarnation.
TEST_F(PrefillDeath, RestartedItsOldReferencesAreStaleAndNewOnesWork) {
  const auto config = transfer_config("kv_producer", "", "prefill-1");
  start("P", config);
  start("D", transfer_config("kv_consumer", R"("kv_load_timeout":3)"));
  const std::string prompt = prompt_text(5);
  EXPECT_EQ(decode("D", prompt, prefill("P", prompt)), expected_text(prompt));
  const std::string old_prompt = prompt_text(6);
  const std::string old_params = prefill("P", old_prompt);
  const std::uint16_t port = cluster_.port("P");
  cluster_.signal("P", SIGKILL);
  ASSERT_TRUE(cluster_.wait_until([&] { return !cluster_.running("P"); }, kLimit));
  start("P2", config, {}, port);
  expect_next_prefill_works("P2");
  EXPECT_EQ(decode("D", old_prompt, old_params), expected_text(old_prompt));
  EXPECT_NE(last("D", "load_failed").detail.find("stale_reference"), std::string::npos)
      << last("D", "load_failed").detail;
  expect_next_prefill_works("P2");
  EXPECT_EQ(ended(expect_all_blocks_back("P2", kSlack), "completed"), 2u);
}

}  // namespace
}  // namespace kvlease
