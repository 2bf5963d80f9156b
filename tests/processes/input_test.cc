// Bad input over HTTP: each has its answer and leaves the process and its leases as they were. And
// references that a client or proxy has mixed up: no byte is read, nobody's lease is ended.
#include <utility>

#include "kvlease/wire/handshake.h"
#include "kvlease/wire/kv_transfer_params.h"
#include "tests/processes/handoff_testing.h"

namespace kvlease {
namespace {

constexpr const char* kKey = "the-peer-key";

HandshakeRequest good_handshake() {
  return {.engine_id = EngineId("asks"),
          .incarnation = Incarnation(1),
          .expected_engine_id = EngineId("bad-input"),
          .protocol = kProtocol,
          .identity = {.model = "synthetic,seed=0",
                       .dtype = "bytes2",
                       .num_layers = 4,
                       .num_kv_heads = 4,
                       .head_dim = 64,
                       .block_size = 16,
                       .transfer_mode = "pull",
                       .kv_cache_layout = "layer,block,kv,head,token"},
          .tp_size = 1};
}

struct Row {
  std::string method;
  std::string target;
  std::string body;
  unsigned status;
  std::string message;  // what the answer says, among other things
  std::string key = kKey;
};

std::vector<Row> completion_rows() {
  std::vector<Row> rows;
  for (const auto& [body, message] : std::vector<std::pair<std::string, std::string>>{
           {"", "the request body"},
           {"[]", "the request body"},
           {"{", "the request body"},
           {"{}", "`prompt` is null"},
           {R"({"prompt":""})", "`prompt`"},
           {R"({"prompt":7})", "`prompt` is 7"},
           {R"({"prompt":[1,257]})", "`prompt` is [1,257]"},
           {R"({"prompt":[-1]})", "`prompt`"},
           {R"({"prompt":"a","prompt":"b"})", "prompt"},
           {R"({"prompt":"a","max_tokens":0})", "`max_tokens` is 0"},
           {R"({"prompt":"a","max_tokens":-1})", "`max_tokens` is -1"},
           {R"({"prompt":"a","max_tokens":"5"})", "`max_tokens` is \\\"5\\\""},
           {R"({"prompt":"a","max_tokens":1.5})", "`max_tokens` is 1.5"},
           {R"({"prompt":"a","max_tokens":4294967296})", "`max_tokens`"},
           {R"({"prompt":"a","model":5})", "`model` is 5"},
           {R"({"prompt":"a","n":2})", "`n` is 2; allowed: 1\""},
           {R"({"prompt":"a","stream":"yes"})", "`stream` is"},
           {R"({"prompt":"a","stream":true,"stream_options":7})", "`stream_options` is 7"},
           {R"({"prompt":"a","stream":true,"stream_options":{"include_usage":1}})",
            "`stream_options.include_usage` is 1"},
           {R"({"prompt":"a","stream":true,"kv_transfer_params":{"do_remote_decode":true}})",
            "`stream` is true"},
           {R"({"prompt":"a","min_tokens":17})", "`min_tokens` is 17"},
           {R"({"prompt":"a","temperature":"hot"})", "`temperature`"},
           {R"({"prompt":"a","temperature":-0.1})", "`temperature` is -0.1"},
           {R"({"prompt":"a","top_p":0})", "`top_p` is 0"},
           {R"({"prompt":"a","top_p":1.01})", "`top_p` is 1.01"},
           {R"({"prompt":"a","top_k":-2})", "`top_k` is -2"},
           {R"({"prompt":"a","top_k":1.5})", "`top_k` is 1.5"},
           {R"({"prompt":"a","min_p":2})", "`min_p` is 2"},
           {R"({"prompt":"a","presence_penalty":-2.5})", "`presence_penalty` is -2.5"},
           {R"({"prompt":"a","frequency_penalty":3})", "`frequency_penalty` is 3"},
           {R"({"prompt":"a","repetition_penalty":0})", "`repetition_penalty` is 0"},
           {R"({"prompt":"a","stop":["x"]})", "`stop`"},
           {R"({"prompt":"a","echo":true})", "`echo` is true"},
           {R"({"prompt":"a","logprobs":5})", "`logprobs` is 5"},
           {R"({"prompt":"a","best_of":2})", "`best_of` is 2"},
           {R"({"prompt":"a","suffix":"z"})", "`suffix`"},
           {R"({"prompt":"a","ignore_eos":"yes"})", "`ignore_eos`"},
           {R"({"prompt":"a","stop_token_ids":[257]})", "`stop_token_ids` is 257"},
           {R"({"prompt":"a","kv_transfer_params":7})", "kv_transfer_params"},
           {R"({"prompt":"a","kv_transfer_params":{"do_remote_decode":1}})",
            "`do_remote_decode` is 1"},
           {R"({"prompt":"a","kv_transfer_params":{"remote_port":65536}})",
            "`remote_port` is 65536"},
           {R"({"prompt":"a","kv_transfer_params":{"remote_block_ids":[[-1]]}})",
            "remote_block_ids"},
           {R"({"prompt":"a","kv_transfer_params":{"kvlease":{"v":1}}})", "kvlease."},
       }) {
    rows.push_back({"POST", "/v1/completions", body, 400, message});
  }
  const std::string deep(100, '[');
  rows.push_back({"POST", "/v1/completions", R"({"prompt":)" + deep, 400, "the request body"});
  rows.push_back({"POST", "/v1/completions", R"({"prompt":"a","model":"gpt-4"})", 404, "gpt-4"});
  rows.push_back({"POST", "/v1/completions", R"({"prompt":")" + std::string(65 * 16, 'x') + R"("})",
                  400, "blocks"});
  return rows;
}

std::vector<Row> chat_rows() {
  std::vector<Row> rows;
  for (const auto& [body, message] : std::vector<std::pair<std::string, std::string>>{
           {"{}", "`messages`"},
           {R"({"messages":[]})", "`messages`"},
           {R"({"messages":"hi"})", "`messages`"},
           {R"({"messages":[7]})", "`messages[0]`"},
           {R"({"messages":[{"content":"hi"}]})", "`messages[0].role`"},
           {R"({"messages":[{"role":"king","content":"hi"}]})", "`messages[0].role`"},
           {R"({"messages":[{"role":"user","content":7}]})", "`messages[0].content`"},
           {R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})",
            "`messages[0].content[0].type`"},
           {R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})",
            "`messages[0].content[0].text`"},
           {R"({"messages":[{"role":"user","content":"a"}],"max_completion_tokens":0})",
            "`max_completion_tokens` is 0"},
           {R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function"}]})",
            "`tools`"},
           {R"({"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json"}})",
            "`response_format`"},
       }) {
    rows.push_back({"POST", "/v1/chat/completions", body, 400, message});
  }
  return rows;
}

std::vector<Row> other_rows() {
  HandshakeRequest other_model = good_handshake();
  other_model.identity.head_dim = 32;
  HandshakeRequest other_engine = good_handshake();
  other_engine.expected_engine_id = EngineId("somebody-else");
  HandshakeRequest newer = good_handshake();
  newer.protocol = {.min = 2, .max = 3};
  HandshakeRequest odd_tp = good_handshake();
  odd_tp.tp_size = 3;
  const std::string handshake = "/kvlease/v1/handshake";
  const std::string leases = "/kvlease/v1/leases";
  const std::string events = "/kvlease/v1/events";
  return {
      {"GET", "/nowhere", "", 404, "no such route: GET /nowhere"},
      {"GET", "/v1/completions", "", 405, "POST"},
      {"POST", "/v1/models", "", 405, "GET"},
      {"POST", "/health", "", 405, "GET"},
      {"PUT", "/metrics", "", 405, "GET"},
      {"DELETE", leases, "", 405, "GET"},
      {"GET", "/v1/embeddings", "", 404, "no such route"},
      {"POST", leases + "/renew", "", 400, "JSON"},
      {"POST", leases + "/renew", "{}", 400, "`request_ids`"},
      {"POST", leases + "/renew", R"({"request_ids":"a"})", 400, "`request_ids`"},
      {"POST", leases + "/renew", R"({"request_ids":[7]})", 400, "`request_ids` is 7"},
      {"POST", leases + "/renew", R"({"request_ids":["a"]})", 401, "X-Kvlease-Peer-Key", ""},
      {"POST", leases + "/renew", R"({"request_ids":["nobody"]})", 200,
       R"({"renewed":0,"unknown":["nobody"]})"},
      {"DELETE", leases + "/nobody", "", 404, "not found"},
      {"DELETE", leases + "/nobody", "", 401, "X-Kvlease-Peer-Key", ""},  // L51
      {"GET", leases, "", 401, "X-Kvlease-Peer-Key", "the-peer-kez"},
      {"GET", events, "", 401, "X-Kvlease-Peer-Key", ""},
      {"POST", events, "", 405, "GET"},
      {"GET", events + "?after=-1", "", 400, "after=-1"},
      {"GET", events + "?after=18446744073709551616", "", 400, "after=N"},
      {"GET", events + "?after=%3Cscript%3E&x=", "", 400, "after=N"},
      {"GET", events + "?after=18446744073709551615", "", 200, R"("missed":0,"events":[]})"},
      {"POST", handshake, to_json(good_handshake()), 401, "X-Kvlease-Peer-Key", ""},
      {"POST", handshake, "", 400, "JSON"},
      {"POST", handshake, R"({"protocol":{"min":1,"max":1}})", 400, "engine_id"},
      {"POST", handshake, to_json(other_engine), 404, "somebody-else"},
      {"POST", handshake, to_json(newer), 409, "2"},         // L30
      {"POST", handshake, to_json(odd_tp), 409, "3"},        // L37
      {"POST", handshake, to_json(other_model), 409, "64"},  // L30
      {"POST", handshake, to_json(other_model), 409, "32"},
  };
}

class BadInput : public ProcessTest {
 protected:
  Result<HttpResponse> ask(const Row& row) {
    HttpHeaders headers;
    if (!row.key.empty()) headers.add("X-Kvlease-Peer-Key", row.key);
    return cluster_.call("P", {.method = row.method,
                               .target = row.target,
                               .headers = std::move(headers),
                               .body = row.body,
                               .timeout = kLimit});
  }
};

// L35, L43, L51: and no lease is lost by it.
TEST_F(BadInput, EachHasItsAnswerAndLeavesEverythingAsItWas) {
  start("P", joined(transfer_config("kv_both", R"("kv_lease_duration":60)", "bad-input"),
                    {"--num-gpu-blocks", "64", "--peer-key", kKey}));
  const std::string prompt = prompt_text(1);
  prefill("P", prompt);
  std::vector<Row> rows = completion_rows();
  for (Row& row : chat_rows()) rows.push_back(std::move(row));
  for (Row& row : other_rows()) rows.push_back(std::move(row));
  for (const Row& row : rows) {
    const auto answer = ask(row);
    ASSERT_TRUE(answer) << row.body << answer.error().message;
    EXPECT_EQ(answer->status, row.status) << row.target << row.body << '\n' << answer->body;
    EXPECT_NE(answer->body.find(row.message), std::string::npos) << row.target << row.body << '\n'
                                                                 << answer->body;
  }
  const auto good = ask({"POST", "/kvlease/v1/handshake", to_json(good_handshake()), 200, ""});
  ASSERT_TRUE(good);
  EXPECT_EQ(good->status, 200) << good->body;
  EXPECT_TRUE(parse_handshake_reply(good->body));
  EXPECT_EQ(count("P", "lease_granted"), 1u);
  EXPECT_EQ(count("P", "lease_ended"), 0u);
  const auto local =
      cluster_.complete("P", {.prompt = prompt, .max_tokens = kMaxTokens, .request_id = "local"});
  ASSERT_TRUE(local) << local.error().message;
  EXPECT_EQ(local->text, expected_text(prompt));
  const auto released = ask(
      {"DELETE", "/kvlease/v1/leases/" + last("P", "lease_granted").lease, "", 200, "released"});
  ASSERT_TRUE(released);
  EXPECT_EQ(released->status, 200);
}

TEST_F(BadInput, ABodyBeyondTheLimitIsRefused) {  // L43
  start("P", transfer_config("kv_both", ""));
  const auto answer = ask({"POST", "/v1/completions", std::string(33u << 20, ' '), 413, ""});
  // The server may hang up before it has taken all of it; what it says first is 413.
  if (answer) {
    EXPECT_EQ(answer->status, 413);
  }
  const auto health = ask({"GET", "/health", "", 200, ""});
  ASSERT_TRUE(health) << health.error().message;
  EXPECT_EQ(health->status, 200);
}

TEST_F(BadInput, WithoutTheApiKeyNothingUnderV1IsAnswered) {
  start("P", joined(transfer_config("kv_both", ""), {"--api-key", "the-api-key"}));
  const auto with = [&](const std::string& target, const std::string& authorization) {
    HttpHeaders headers;
    if (!authorization.empty()) headers.add("Authorization", authorization);
    const auto answer = cluster_.call("P", {.target = target, .headers = std::move(headers)});
    return answer ? answer->status : 0;
  };
  for (const char* wrong : {"", "Bearer", "Bearer ", "Bearer the-api-kez", "the-api-key",
                            "Basic the-api-key", "Bearer the-api-key2"}) {
    EXPECT_EQ(with("/v1/models", wrong), 401) << wrong;
    EXPECT_EQ(with("/health", wrong), 200) << wrong;
    EXPECT_EQ(with("/metrics", wrong), 200) << wrong;
  }
  EXPECT_EQ(with("/v1/models", "Bearer the-api-key"), 200);
  EXPECT_EQ(with("/v1/models", "bearer the-api-key"), 200);
}

// kv_role says what is wrong of the two; bidirectional_kv_xfer lets a kv_producer read (L39).
TEST_F(BadInput, WhatARoleMayNotIsNamed) {
  const std::string both =
      R"({"prompt":"a","max_tokens":1,"kv_transfer_params":{"do_remote_decode":true,)"
      R"("do_remote_prefill":true}})";
  start("producer", transfer_config("kv_producer", ""));
  start("consumer", transfer_config("kv_consumer", ""));
  start("two-way", transfer_config("kv_producer", R"("bidirectional_kv_xfer":true)"));
  const auto say = [&](const char* name) {
    const auto answer = cluster_.call(
        name, {.method = "POST", .target = "/v1/completions", .body = both, .timeout = kLimit});
    return answer ? answer->body : answer.error().message;
  };
  EXPECT_NE(say("producer").find("do_remote_prefill is not for a kv_producer"), std::string::npos);
  EXPECT_NE(say("consumer").find("do_remote_decode is not for a kv_consumer"), std::string::npos);
  EXPECT_EQ(say("two-way").find("is not for a"), std::string::npos);
}

TEST_F(BadInput, WhoWaitsBeyondTheLimitIsToldToComeAgain) {  // L43
  start("P", joined(transfer_config("kv_both", ""), {"--max-num-seqs", "1", "--max-num-waiting",
                                                     "1", "--inter-token-latency", "0.01"}));
  const auto running = occupy("P");
  const auto waiting = cluster_.begin_completion(
      "P", {.prompt = "b", .max_tokens = 1, .request_id = "waits", .kv_transfer_params = ""});
  const Instant end = cluster_.now() + kLimit;
  for (int ready = 200; ready != 503;) {  // until the other one waits
    const auto asked = cluster_.call("P", {.target = "/health/ready"});
    ASSERT_TRUE(asked && cluster_.now() < end);
    ready = asked->status;
  }
  const auto answer = ask({"POST", "/v1/completions", R"({"prompt":"c","max_tokens":1})", 503, ""});
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->status, 503);
  EXPECT_EQ(answer->headers.find("Retry-After"), "1");
  const auto metrics = cluster_.call("P", {.target = "/metrics"});
  ASSERT_TRUE(metrics);
  EXPECT_NE(metrics->body.find("kvlease_requests_waiting_max{"), std::string::npos);
  EXPECT_FALSE(waiting->result);
}

TEST_F(BadInput, AnotherContentTypeThanJsonIsRefused) {
  start("P", transfer_config("kv_both", ""));
  const struct {
    std::string type;
    unsigned status;
  } rows[] = {{"application/json", 200},
              {"application/json; charset=utf-8", 200},
              {"application/x-www-form-urlencoded", 200},  // what curl -d says unasked
              {"text/plain", 415},
              {"multipart/form-data", 415}};
  for (const auto& row : rows) {
    const auto answer = cluster_.call("P", {.method = "POST",
                                            .target = "/v1/completions",
                                            .headers = {{"Content-Type", row.type}},
                                            .body = R"({"prompt":"a","max_tokens":1})"});
    ASSERT_TRUE(answer) << answer.error().message;
    EXPECT_EQ(answer->status, row.status) << row.type;
  }
}

TEST_F(BadInput, WithoutThePeerKeyThereIsNoHandshake) {  // L51, L27
  start("P", joined(transfer_config("kv_producer", ""), {"--peer-key", kKey}));
  start("D", transfer_config("kv_consumer", ""));
  start("D-keyed", joined(transfer_config("kv_consumer", ""), {"--peer-key", kKey}));
  const std::string prompt = prompt_text(2);
  const std::string params = prefill("P", prompt);
  EXPECT_EQ(decode("D", prompt, params), expected_text(prompt));
  EXPECT_EQ(count("D", "read_posted"), 0u);
  EXPECT_NE(last("D", "handshake_failed").detail.find("401"), std::string::npos);
  EXPECT_EQ(decode("D-keyed", prompt, params), expected_text(prompt));
  EXPECT_EQ(count("D-keyed", "read_validated"), 1u);
}

class MixedReference : public ProcessTest {
 protected:
  static KvTransferParams parsed(const std::string& json) {
    auto params = parse_kv_transfer_params(json, json.size());
    EXPECT_TRUE(params && params->kvlease) << json;
    return params.value_or(KvTransferParams{});
  }
};

// L52: right text by computing it here, nothing read, no lease ended, and the peer still trusted.
TEST_F(MixedReference, GetsNoByteAndEndsNobodysLease) {
  start_pair(60);
  const std::string prompts[] = {prompt_text(1), prompt_text(2)};
  const KvTransferParams a = parsed(prefill("P", prompts[0]));
  const KvTransferParams b = parsed(prefill("P", prompts[1]));
  std::vector<std::pair<std::string, KvTransferParams>> mixes;
  const auto mix = [&](const char* what) -> KvTransferParams& {
    return mixes.emplace_back(what, a).second;
  };
  mix("another prompt") = b;
  mix("the other's word and seal").kvlease = b.kvlease;
  mix("the other's blocks").remote_block_ids = b.remote_block_ids;
  mix("the other's id").remote_request_id = b.remote_request_id;
  mix("the other's word").kvlease->word = b.kvlease->word + 1;
  mix("the other's slot").kvlease->slot = b.kvlease->slot;
  mix("fewer tokens").remote_num_tokens = *a.remote_num_tokens - 16;
  mix("a longer lease").kvlease->lease_duration_ms *= 2;
  mix("no reference at all").kvlease.reset();
  for (const auto& [what, params] : mixes) {
    EXPECT_EQ(decode("D", prompts[0], to_json(params)), expected_text(prompts[0])) << what;
    EXPECT_NE(last("D", "load_failed").detail.find("invalid_reference"), std::string::npos)
        << what << ": " << last("D", "load_failed").detail;
  }
  EXPECT_EQ(count("D", "load_failed"), mixes.size());
  EXPECT_EQ(count("D", "read_posted"), 0u);
  EXPECT_EQ(count("D", "heartbeat_sent"), 0u);
  EXPECT_EQ(count("D", "peer_suspect"), 0u);
  EXPECT_EQ(count("P", "lease_ended"), 0u);

  // The prompts are in D's prefix cache by now, all but their last tokens.
  EXPECT_EQ(decode("D", prompts[0], to_json(a)), expected_text(prompts[0]));
  EXPECT_EQ(decode("D", prompts[1], to_json(b)), expected_text(prompts[1]));
  EXPECT_EQ(ended(expect_all_blocks_back("P", kSlack), "completed"), 2u);
}

}  // namespace
}  // namespace kvlease
