// Reads that come too late: the lease has ended and P has given the blocks to others. Validation
// finds it (L24); without validation the text is wrong, which shows that these tests could fail.
#include <csignal>

#include "tests/processes/handoff_testing.h"

namespace kvlease {
namespace {

class StaleRead : public ProcessTest {
 protected:
  // D's heartbeats are lost, and its read starts after the lease has ended. Returns D's text.
  std::string read_late(const std::string& prompt, const std::vector<std::string>& more) {
    start_pair(0.6, joined({"--fault-drop-heartbeats", "--fault-post-delay", "1.2"}, more));
    const auto decoding = begin_decode("D", prompt, prefill("P", prompt));
    EXPECT_TRUE(wait_for("P", "lease_ended"));
    EXPECT_EQ(last("P", "lease_ended").detail, "expired");
    EXPECT_GE(last("P", "lease_ended").length_seconds, 0.6);  // L3: never early
    overwrite_freed_blocks("P");
    return text_of(*decoding);
  }
};

TEST_F(StaleRead, ValidatedIsRejectedAndComputedAgain) {  // L24, L27
  const std::string prompt = prompt_text(1);
  EXPECT_EQ(read_late(prompt, {}), expected_text(prompt));
  EXPECT_EQ(count("D", "read_rejected"), 1u);
  EXPECT_EQ(count("D", "read_validated"), 0u);
  EXPECT_EQ(count("D", "completion_sent"), 0u);
}

TEST_F(StaleRead, UnvalidatedGivesAnotherText) {  // L24: what it is for
  const std::string prompt = prompt_text(2);
  EXPECT_NE(read_late(prompt, {"--fault-accept-unvalidated"}), expected_text(prompt));
  EXPECT_EQ(count("D", "read_rejected"), 0u);
}

// L24: D is stopped while it reads, and wakes after P has used the blocks again.
TEST_F(StaleRead, AStoppedReaderThatWakesTooLateComputesAgain) {
  start_pair(0.6, {"--fault-post-delay", "0.3"});
  const std::string prompt = prompt_text(3);
  const auto decoding = begin_decode("D", prompt, prefill("P", prompt));
  ASSERT_TRUE(wait_for("D", "read_posted"));
  cluster_.signal("D", SIGSTOP);
  ASSERT_TRUE(wait_for("P", "lease_ended"));
  EXPECT_EQ(last("P", "lease_ended").detail, "expired");
  overwrite_freed_blocks("P");
  cluster_.signal("D", SIGCONT);
  EXPECT_EQ(text_of(*decoding), expected_text(prompt));
  EXPECT_EQ(count("D", "read_validated"), 0u);
  EXPECT_EQ(count("D", "load_failed"), 1u);
  expect_all_blocks_back("P", kSlack);
}

// L25: the same while its request waits in the queue: the probe finds the lease lost.
TEST_F(StaleRead, AStoppedDecoderFindsTheLeaseOfAQueuedRequestLost) {
  start_pair(0.6);
  const std::string prompt = prompt_text(4);
  auto occupying = occupy("D");
  const auto decoding = begin_decode("D", prompt, prefill("P", prompt));
  ASSERT_TRUE(wait_for("D", "heartbeat_sent"));
  cluster_.signal("D", SIGSTOP);
  ASSERT_TRUE(wait_for("P", "lease_ended"));
  overwrite_freed_blocks("P");
  cluster_.signal("D", SIGCONT);
  ASSERT_TRUE(wait_for("D", "lease_lost"));
  occupying.reset();
  EXPECT_EQ(text_of(*decoding), expected_text(prompt));
  EXPECT_EQ(count("D", "read_validated"), 0u);
}

}  // namespace
}  // namespace kvlease
