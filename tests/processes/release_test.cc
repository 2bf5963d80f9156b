// Ends that somebody asks for: clients that hang up (L33, L34), DELETE (L10), SIGTERM (L36).
#include <algorithm>
#include <csignal>

#include "tests/processes/handoff_testing.h"

namespace kvlease {
namespace {

class Release : public ProcessTest {};

TEST_F(Release, AClientThatLeavesTheQueueOfDFreesTheLeaseAtOnce) {  // L33
  start_pair(60);
  const auto occupying = occupy("D");
  const std::string prompt = prompt_text(1);
  auto decoding = begin_decode("D", prompt, prefill("P", prompt));
  ASSERT_TRUE(wait_for("P", "leases_renewed"));
  decoding.reset();
  EXPECT_EQ(ended(expect_all_blocks_back("P", kSlack), "completed"), 1u);
  EXPECT_EQ(count("D", "read_posted"), 0u);
}

TEST_F(Release, AClientThatLeavesDuringThePrefillLeavesNoLease) {  // L34
  start("P", joined(transfer_config("kv_producer", R"("kv_lease_duration":60)"),
                    {"--prefill-time-per-token", "0.002"}));
  auto prefilling =
      cluster_.begin_completion("P", {.prompt = prompt_text(2),
                                      .max_tokens = 1,
                                      .request_id = "leaves",
                                      .kv_transfer_params = std::string(kAskForHandOff)});
  const auto running = cluster_.wait_for_ledger(
      "P", kLimit, [](const InstanceLedger& seen) { return seen.blocks_in_use > 0; });
  ASSERT_TRUE(running && running->blocks_in_use > 0);
  prefilling.reset();
  EXPECT_EQ(expect_all_blocks_back("P", kLimit).granted, 0u);  // after the forward (L26)
}

// L34: the prefill ends while P is stopped, so the answer is ready when its reader is gone.
TEST_F(Release, AnAnswerThatNobodyReadsLeavesNoLease) {
  start("P", joined(transfer_config("kv_producer", R"("kv_lease_duration":60)"),
                    {"--prefill-time-per-token", "0.001"}));
  auto prefilling =
      cluster_.begin_completion("P", {.prompt = prompt_text(3),
                                      .max_tokens = 1,
                                      .request_id = "leaves",
                                      .kv_transfer_params = std::string(kAskForHandOff)});
  const auto running = cluster_.wait_for_ledger(
      "P", kLimit, [](const InstanceLedger& seen) { return seen.blocks_in_use > 0; });
  ASSERT_TRUE(running && running->blocks_in_use > 0);
  cluster_.signal("P", SIGSTOP);
  prefilling.reset();
  cluster_.wait_until([] { return false; }, std::chrono::seconds{1});  // the modelled time passes
  cluster_.signal("P", SIGCONT);
  expect_all_blocks_back("P", kSlack);
}

TEST_F(Release, DeleteEndsALeaseOnce) {  // L10
  start_pair(60);
  const std::string prompt = prompt_text(4);
  const std::string params = prefill("P", prompt);
  ASSERT_TRUE(wait_for("P", "lease_granted"));
  const std::string path = "/kvlease/v1/leases/" + last("P", "lease_granted").lease;
  const auto released = cluster_.call("P", {.method = "DELETE", .target = path});
  ASSERT_TRUE(released);
  EXPECT_EQ(released->status, 200);
  EXPECT_EQ(released->body, R"({"result":"released"})");
  EXPECT_EQ(ended(expect_all_blocks_back("P", kSlack), "released"), 1u);
  const auto again = cluster_.call("P", {.method = "DELETE", .target = path});
  ASSERT_TRUE(again);
  EXPECT_EQ(again->status, 404);
  EXPECT_EQ(again->body, R"({"result":"not found"})");
  EXPECT_EQ(decode("D", prompt, params), expected_text(prompt));  // L24: rejected
  EXPECT_EQ(count("D", "read_validated"), 0u);
}

TEST_F(Release, DrainWaitsForTheLastLease) {  // L36
  start_pair(60);
  const std::string prompt = prompt_text(5);
  const std::string params = prefill("P", prompt);
  cluster_.signal("P", SIGTERM);
  const auto health = [&] {
    const auto answer = cluster_.call("P", {.target = "/health"});
    return answer ? answer->body : answer.error().message;
  };
  const Instant limit = cluster_.now() + kLimit;
  while (health() != R"({"status":"draining"})" && cluster_.now() < limit) {
  }
  const auto refused = cluster_.complete("P", {.prompt = prompt, .request_id = "late"});
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().message.starts_with("HTTP 503: ")) << refused.error().message;
  EXPECT_EQ(decode("D", prompt, params), expected_text(prompt));
  EXPECT_EQ(count("D", "read_validated"), 1u);
  ASSERT_TRUE(cluster_.wait_until([&] { return !cluster_.running("P"); }, kSlack));
  EXPECT_EQ(last("P", "lease_ended").detail, "completed");
  const Result<void> stopped = cluster_.stop("P");
  EXPECT_TRUE(stopped) << stopped.error().message;
}

TEST_F(Release, DrainReportsWhatItCuts) {  // L36, L23
  start("P", joined(transfer_config("kv_producer", R"("kv_lease_duration":60)"),
                    {"--drain-timeout", "0.3"}));
  prefill("P", prompt_text(6));
  const Result<void> stopped = cluster_.stop("P");
  EXPECT_TRUE(stopped) << stopped.error().message;
  EXPECT_EQ(last("P", "lease_ended").detail, "drained");
  const auto& lines = cluster_.last_lines("P");
  EXPECT_TRUE(std::ranges::any_of(lines, [](const std::string& line) {
    return line.find("1 leases cut at the drain limit") != std::string::npos;
  })) << (lines.empty() ? "" : lines.back());
}

TEST_F(Release, DrainWithoutLeasesEndsAtOnce) {  // L36
  start("P", transfer_config("kv_producer", ""));
  const Instant begin = cluster_.now();
  const Result<void> stopped = cluster_.stop("P");
  EXPECT_TRUE(stopped) << stopped.error().message;
  EXPECT_LE(cluster_.now() - begin, std::chrono::seconds{5});  // NIXL takes its time to end
}

// L2: an operator or router renews by HTTP, on every rank; L10 ends it.
TEST_F(Release, ALeaseIsRenewedByHttpUntilItIsReleased) {
  start("P", joined(transfer_config("kv_producer", R"("kv_lease_duration":1)"),
                    {"--tensor-parallel-size", "2"}));
  prefill("P", prompt_text(1));
  ASSERT_TRUE(wait_for("P", "lease_granted"));
  const std::string lease = last("P", "lease_granted").lease;
  const Instant begun = cluster_.now();
  while (cluster_.now() - begun < std::chrono::seconds{3}) {
    const auto renewed =
        cluster_.call("P", {.method = "POST",
                            .target = "/kvlease/v1/leases/renew",
                            .body = R"({"request_ids":[")" + lease + R"(","nobody"]})"});
    ASSERT_TRUE(renewed) << renewed.error().message;
    EXPECT_EQ(renewed->body, R"({"renewed":1,"unknown":["nobody"]})");
    cluster_.wait_until([&] { return count("P", "lease_ended") > 0; },
                        std::chrono::milliseconds{200});
  }
  EXPECT_EQ(count("P", "lease_ended"), 0u);
  const auto ended_by =
      cluster_.call("P", {.method = "DELETE", .target = "/kvlease/v1/leases/" + lease});
  ASSERT_TRUE(ended_by) << ended_by.error().message;
  EXPECT_EQ(ended_by->body, R"({"result":"released"})");
  EXPECT_EQ(ended(expect_all_blocks_back("P", kSlack), "released"), 1u);
}

}  // namespace
}  // namespace kvlease
