// Answers in pieces: as server-sent events, for completions and chats, to clients that read them,
// leave, or never read.
#include <csignal>
#include <optional>

#include "kvlease/wire/json_fields.h"
#include "tests/processes/handoff_testing.h"

namespace kvlease {
namespace {

class Stream : public ProcessTest {
 protected:
  std::string ask(const std::string& target, const std::string& body) {
    const auto answer = cluster_.call("P", {.method = "POST", .target = target, .body = body});
    EXPECT_TRUE(answer) << answer.error().message;
    return answer ? answer->body : "";
  }
};

TEST_F(Stream, ItsPiecesAreTheWholeAnswer) {
  start("P", transfer_config("kv_both", ""));
  const std::string prompt = prompt_text(1);
  const auto streamed = cluster_.complete("P", {.prompt = prompt,
                                                .max_tokens = kMaxTokens,
                                                .request_id = "s",
                                                .kv_transfer_params = "",
                                                .stream = true});
  ASSERT_TRUE(streamed) << streamed.error().message;
  EXPECT_EQ(streamed->text, expected_text(prompt));
}

TEST_F(Stream, AChatBeginsWithItsRoleAndEndsWithTheUsageThatWasAskedFor) {
  start("P", transfer_config("kv_both", ""));
  const std::string messages = R"("messages":[{"role":"user","content":"hello"}],"max_tokens":3)";
  const std::string events =
      ask("/v1/chat/completions", "{" + messages +
                                      R"(,"stream":true,)"
                                      R"("stream_options":{"include_usage":true}})");
  EXPECT_NE(events.find(R"("object":"chat.completion.chunk")"), std::string::npos) << events;
  EXPECT_NE(events.find(R"("delta":{"role":"assistant","content":""})"), std::string::npos);
  EXPECT_NE(events.find(R"("finish_reason":"length")"), std::string::npos) << events;
  EXPECT_NE(events.find(R"("choices":[],"usage":{"prompt_tokens":)"), std::string::npos) << events;
  EXPECT_TRUE(events.ends_with("data: [DONE]\n\n")) << events;
  const std::string whole = ask("/v1/chat/completions", "{" + messages + "}");
  EXPECT_NE(whole.find(R"("message":{"role":"assistant","content":")"), std::string::npos) << whole;
}

// With kv_load_failure_policy fail: what fails before the first token has a status of its own.
TEST_F(Stream, WhatFailsBeforeTheFirstTokenIsNoStream) {  // L27
  start("P", transfer_config("kv_producer", ""));
  start("D", transfer_config("kv_consumer", R"("kv_load_failure_policy":"fail")"));
  const std::string prompt = prompt_text(2);
  const std::string params = prefill("P", prompt);
  cluster_.signal("P", SIGKILL);
  const auto answer = cluster_.complete("D", {.prompt = prompt,
                                              .max_tokens = kMaxTokens,
                                              .request_id = "s",
                                              .kv_transfer_params = params,
                                              .stream = true});
  ASSERT_FALSE(answer);
  EXPECT_TRUE(answer.error().message.starts_with("HTTP 500: ")) << answer.error().message;
}

TEST_F(Stream, AClientThatLeavesInMidStreamStopsTheRequest) {
  start("P", joined(transfer_config("kv_both", ""), {"--inter-token-latency", "0.02"}));
  bool begun = false;
  {
    auto call = cluster_.begin_call(
        "P", {.method = "POST",
              .target = "/v1/completions",
              .body = R"({"prompt":"a","max_tokens":10000,"ignore_eos":true,"stream":true})",
              .on_body = [&](std::string_view) { begun = true; }});
    ASSERT_TRUE(cluster_.wait_until([&] { return begun; }, kLimit));
  }
  expect_all_blocks_back("P", kSlack);
}

TEST_F(Stream, MinTokensComeBeforeAnyStopToken) {
  start("P", transfer_config("kv_both", ""));
  std::string every = "[0";
  for (int token = 1; token < 257; ++token) every += "," + std::to_string(token);
  every = every.substr(0, every.find(",100")) + "]";  // at most 128 ids
  const std::string body = R"({"prompt":"a","max_tokens":40,"min_tokens":30,"stop_token_ids":)";
  std::optional<Error> problem;
  const std::string answer = ask("/v1/completions", body + every + "}");
  JsonObject json = open_json(answer, 1 << 20, "the answer", problem);
  std::uint64_t tokens = 0;
  if (auto usage = json.object("usage", true)) usage->integer("completion_tokens", {}, tokens);
  ASSERT_FALSE(problem) << problem->message;
  EXPECT_GE(tokens, 30u);
}

// What the metrics say of the leases is what the ledger says (L6, H03).
TEST_F(Stream, MetricsAndReadinessTellOfLeases) {
  start("P", joined(transfer_config("kv_producer", R"("kv_lease_duration":60)"),
                    {"--num-gpu-blocks", "64"}));
  const auto metric = [&](const std::string& name) -> std::string {
    const auto answer = cluster_.call("P", {.target = "/metrics"});
    if (!answer) return answer.error().message;
    const std::size_t at = answer->body.find("\n" + name + "{");
    const std::size_t value = answer->body.find("} ", at);
    if (at == std::string::npos || value == std::string::npos) return "none";
    return answer->body.substr(value + 2, answer->body.find('\n', value) - value - 2);
  };
  const auto ready = [&] {
    const auto answer = cluster_.call("P", {.target = "/health/ready"});
    return answer ? answer->status : 0;
  };
  EXPECT_EQ(metric("kvlease_leases_live"), "0");
  EXPECT_EQ(ready(), 200);
  std::uint32_t granted = 0;
  for (;; ++granted) {
    const auto prefilled =
        cluster_.complete("P", {.prompt = prompt_text(10 + granted),
                                .max_tokens = 1,
                                .request_id = "r",
                                .kv_transfer_params = std::string(kAskForHandOff)});
    if (!prefilled) break;
    ASSERT_EQ(ready(), 200);
    ASSERT_LT(granted, 64u);
  }
  EXPECT_EQ(ready(), 503);  // L43: the next would be refused, too
  EXPECT_EQ(metric("kvlease_leases_live"), std::to_string(granted));
  EXPECT_EQ(metric("kvlease_leases_granted_total"), std::to_string(granted));
  const auto ledger = cluster_.ledger("P");
  ASSERT_TRUE(ledger) << ledger.error().message;
  EXPECT_EQ(ledger->live, granted);
  const std::string lease = last("P", "lease_granted").lease;
  ASSERT_TRUE(cluster_.call("P", {.method = "DELETE", .target = "/kvlease/v1/leases/" + lease}));
  ASSERT_TRUE(wait_for("P", "lease_ended"));
  const Instant end = cluster_.now() + kLimit;
  while (ready() != 200 && cluster_.now() < end) {
  }
  EXPECT_EQ(ready(), 200);
}

}  // namespace
}  // namespace kvlease
