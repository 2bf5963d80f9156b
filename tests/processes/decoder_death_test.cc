// D dies at every stage of a hand-over: P's blocks come back by the lease's end or one extension
// after the last heartbeat, whichever is later, and P works on.
#include <algorithm>
#include <csignal>

#include "tests/processes/handoff_testing.h"

namespace kvlease {
namespace {

constexpr double kLeaseSeconds = 1.2;
constexpr double kExtensionSeconds = 0.8;  // L12: two thirds

class DecoderDeath : public ProcessTest {
 protected:
  // L2, L3, L6. Also when the completion was on its way already.
  void expect_blocks_back_in_time() {
    ASSERT_TRUE(wait_for("P", "lease_ended"));
    const InstanceEvent& end = last("P", "lease_ended");
    Duration latest = to_duration(kLeaseSeconds);
    if (count("P", "leases_renewed") > 0) {
      latest = std::max(latest, last("P", "leases_renewed").at - last("P", "lease_granted").at +
                                    to_duration(kExtensionSeconds));
    }
    EXPECT_LE(end.length_seconds, to_seconds(latest + kSlack));
    if (end.detail == "expired") {
      EXPECT_GE(end.length_seconds, kLeaseSeconds);
    }
    expect_all_blocks_back("P", kSlack);
    EXPECT_EQ(count("P", "lease_granted"), count("P", "lease_ended"));
    const std::string prompt = prompt_text(9);
    const auto local =
        cluster_.complete("P", {.prompt = prompt, .max_tokens = kMaxTokens, .request_id = "local"});
    ASSERT_TRUE(local) << local.error().message;
    EXPECT_EQ(local->text, expected_text(prompt));
  }

  static Duration to_duration(double seconds) {
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  }
};

TEST_F(DecoderDeath, WhileQueued) {
  start_pair(kLeaseSeconds);
  const auto occupying = occupy("D");
  const std::string prompt = prompt_text(1);
  const auto decoding = begin_decode("D", prompt, prefill("P", prompt));
  ASSERT_TRUE(wait_for("P", "leases_renewed", 8));  // well beyond the first lease's end
  EXPECT_EQ(count("P", "lease_ended"), 0u);         // L2, L15
  cluster_.signal("D", SIGKILL);
  expect_blocks_back_in_time();
  EXPECT_EQ(last("P", "lease_ended").detail, "expired");
  EXPECT_GT(last("P", "lease_ended").length_seconds, kLeaseSeconds + 0.2);
}

TEST_F(DecoderDeath, WhileReading) {
  start_pair(kLeaseSeconds, {"--fault-post-delay", "30"});
  const std::string prompt = prompt_text(2);
  const auto decoding = begin_decode("D", prompt, prefill("P", prompt));
  ASSERT_TRUE(wait_for("D", "read_posted"));
  cluster_.signal("D", SIGKILL);
  expect_blocks_back_in_time();
  EXPECT_EQ(last("P", "lease_ended").detail, "expired");
}

TEST_F(DecoderDeath, AfterReading) {
  start_pair(kLeaseSeconds);
  const std::string prompt = prompt_text(3);
  const auto decoding = begin_decode("D", prompt, prefill("P", prompt));
  ASSERT_TRUE(wait_for("D", "read_validated"));
  cluster_.signal("D", SIGKILL);
  expect_blocks_back_in_time();
}

// L7: the successor of a dead decoder is served, and its completion is its own.
TEST_F(DecoderDeath, ItsSuccessorTakesOver) {
  start_pair(kLeaseSeconds);
  auto occupying = occupy("D");
  const std::string prompt = prompt_text(4);
  const std::string params = prefill("P", prompt);
  const auto decoding = begin_decode("D", prompt, params);
  ASSERT_TRUE(wait_for("P", "leases_renewed"));
  cluster_.signal("D", SIGKILL);
  start("D2", transfer_config("kv_consumer", ""));
  EXPECT_EQ(decode("D2", prompt, params), expected_text(prompt));  // read or computed, never wrong
  const std::string next = prompt_text(5);
  EXPECT_EQ(decode("D2", next, prefill("P", next)), expected_text(next));
  EXPECT_GE(count("D2", "read_validated"), 1u);
  expect_all_blocks_back("P", to_duration(kLeaseSeconds) + kSlack);
}

}  // namespace
}  // namespace kvlease
