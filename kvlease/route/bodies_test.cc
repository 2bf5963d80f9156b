// The bodies of both legs: what is changed, and that nothing else is.
#include "kvlease/route/bodies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "kvlease/base/prng.h"

namespace kvlease {
namespace {

using testing::HasSubstr;

constexpr std::string_view kAsked =
    R"("kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,)"
    R"("remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null})";

ClientBody parsed(std::string body) {
  auto result = ClientBody::parse(std::move(body));
  EXPECT_TRUE(result) << result.error().message;
  return *std::move(result);
}

TEST(BodiesTest, PrefillBody) {
  const struct {
    std::string_view client;
    std::string_view prefill;  // up to the params
  } kCases[] = {
      {"{}", R"({"stream":false,"max_tokens":1,"n":1,)"},
      {R"({"prompt":"a","max_tokens":7})", R"({"prompt":"a","max_tokens":1,"stream":false,"n":1,)"},
      {R"( { "stream" : true , "stream_options":{"include_usage":true}, "max_tokens": 1,)"
       R"("x" :1.0 } )",
       R"({"stream" : false,"max_tokens": 1,"x" :1.0,"n":1,)"},
      {R"({"max_completion_tokens":9,"min_tokens":3,"min_completion_tokens":2,"n":4})",
       R"({"max_completion_tokens":1,"n":1,"stream":false,"max_tokens":1,)"},
  };
  for (const auto& body : kCases) {
    EXPECT_EQ(parsed(std::string(body.client)).prefill_body({}),
              std::string(body.prefill) + std::string(kAsked) + '}');
  }
  EXPECT_EQ(
      parsed(R"({"stream":true,"kv_transfer_params":null,"n":1,"max_tokens":1})").prefill_body({}),
      "{\"stream\":false," + std::string(kAsked) + R"(,"n":1,"max_tokens":1})");
}

// C06's ground: what P hands over reaches D as it is, numbers beyond a double's and all.
TEST(BodiesTest, DecodeBodyIsTheClientsWithTheParamsVerbatim) {
  const std::string_view params = R"({"b" : [[1, 2]], "sentinel":18446744073709551615,"a":1e0})";
  EXPECT_EQ(parsed(R"({"stream":true,"n":2})").decode_body(params),
            R"({"stream":true,"n":2,"kv_transfer_params":)" + std::string(params) + '}');
  EXPECT_EQ(parsed(R"({"kv_transfer_params": null, "n":2})").decode_body(params),
            R"({"kv_transfer_params": )" + std::string(params) + R"(,"n":2})");
  EXPECT_EQ(parsed("{}").decode_body(params),
            R"({"kv_transfer_params":)" + std::string(params) + '}');
}

TEST(BodiesTest, OriginalIsUntouched) {
  const std::string body = " {\n \"a\" : 1 ,\"kv_transfer_params\":null}\n";
  EXPECT_EQ(parsed(body).alone_body(), body);
}

TEST(BodiesTest, RefusesWhatItCannotRoute) {
  const struct {
    std::string body;
    std::string_view words;
  } kCases[] = {
      {"", "the body is no JSON"},
      {"{", "the body is no JSON"},
      {"[1]", "the body is [1]; allowed: an object"},
      {"\"x\"", "allowed: an object"},
      {R"({"a":1,"a":2})", "each field once"},
      {R"({"a":1,"\u0061":2})", "each field once"},
      {R"({"kv_transfer_params":{"do_remote_prefill":true}})", "kv_transfer_params"},
      {R"({"conversation_id":7})", "conversation_id"},
      {R"({"conversation_id":""})", "conversation_id"},
      {R"({"kv_transfer_params":7})", "kv_transfer_params"},
      {R"({"a":)" + std::string(40, '[') + std::string(40, ']') + "}", "the body is no JSON"},
      {std::string(kRoutedBodyBytesMax + 1, ' '), "at most 33554432"},
  };
  for (const auto& bad : kCases) {
    const auto result = ClientBody::parse(bad.body);
    ASSERT_FALSE(result) << bad.body.substr(0, 80);
    EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(result.error().message, HasSubstr(bad.words));
  }
}

// A member that the router does not know, with bytes that a careless parser would change.
std::string strange_member(Prng& prng, std::size_t number) {
  static constexpr std::string_view kKeys[] = {"\\u006b", "k\\\"\\\\", "k:,", "", "k{", "ключ"};
  static constexpr std::string_view kColons[] = {":", " : ", "\t:\n"};
  static constexpr std::string_view kValues[] = {"18446744073709551617",
                                                 "1.0",
                                                 "-0",
                                                 "1E+2",
                                                 "null",
                                                 R"("\u00e9\/\"}],")",
                                                 "{}",
                                                 "[ ]",
                                                 R"({"stream":true,"n":2})",
                                                 R"([1 ,{"max_tokens":5}])",
                                                 "1.7976931348623157e308",
                                                 R"("ends with \\")"};
  return '"' + std::string(kKeys[prng.below(std::size(kKeys))]) + std::to_string(number) + '"' +
         std::string(kColons[prng.below(std::size(kColons))]) +
         std::string(kValues[prng.below(std::size(kValues))]);
}

std::string joined(const std::vector<std::string>& members, std::string_view between) {
  std::string text;
  for (const std::string& member : members) {
    if (!text.empty()) text += between;
    text += member;
  }
  return text;
}

TEST(BodiesTest, UnknownFieldsSurviveByteForByteInTheirOrder) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    Prng prng(seed);
    std::vector<std::string> unknown;
    std::vector<std::string> all;
    for (std::size_t i = 0; i < 1 + prng.below(6); ++i) {
      unknown.push_back(strange_member(prng, i));
      all.push_back(unknown.back());
    }
    for (const std::string_view known : {R"("min_tokens":3)", R"("stream_options":{"a":[1,2]})"}) {
      if (prng.chance(1, 2)) {
        all.insert(all.begin() + static_cast<std::ptrdiff_t>(prng.below(all.size() + 1)),
                   std::string(known));
      }
    }
    const ClientBody body = parsed("{ " + joined(all, " ,\n ") + " }");
    EXPECT_EQ(body.prefill_body({}), '{' + joined(unknown, ",") +
                                         R"(,"stream":false,"max_tokens":1,"n":1,)" +
                                         std::string(kAsked) + '}');
    EXPECT_EQ(body.decode_body("{}"), '{' + joined(all, ",") + R"(,"kv_transfer_params":{}})");
    // The same members as a P's params: a router that sets release_by leaves them alone.
    const std::string reference = R"({)" + joined(unknown, ",");
    const std::string params = '{' + joined(all, ",") + R"(,"kvlease":)" + reference;
    const auto handoff =
        take_handoff(R"({"kv_transfer_params":)" + params + "}}}", ReleaseBy::kRouter);
    ASSERT_TRUE(handoff);
    EXPECT_EQ(handoff->kv_transfer_params, params + R"(,"release_by":"router"}})");
  }
}

constexpr std::string_view kReferenceFields =
    R"("incarnation":"0000000000000001","slot":1,"word":"0000000100000000",)"
    R"("digest":"00000000000000000000000000000000","digest_tokens":3,)"
    R"("seal":"00000000000000000000000000000000","lease_duration_ms":30000,)"
    R"("heartbeat_interval_ms":5000)";

TEST(BodiesTest, TakesTheHandoff) {
  const std::string fields(kReferenceFields);
  const std::string params =
      R"({ "remote_request_id":"cmpl-1-abc", "x": 9007199254740993,)"
      R"("remote_block_ids":[[1,2,3],[4]],"kvlease":{"v":1,"release_by": "decoder" ,)" +
      fields + R"(,"y":2} })";
  const std::string answer = R"({"id":"a","kv_transfer_params": )" + params + R"(,"choices":[]})";
  EXPECT_EQ(take_handoff(answer, ReleaseBy::kDecoder),
            (Handoff{.kv_transfer_params = params,
                     .lease = LeaseId("cmpl-1-abc"),
                     .renew_interval = std::chrono::seconds{5},
                     .blocks = 4}));
  EXPECT_EQ(
      take_handoff(answer, ReleaseBy::kRouter),
      (Handoff{.kv_transfer_params = R"({"remote_request_id":"cmpl-1-abc","x": 9007199254740993,)"
                                     R"("remote_block_ids":[[1,2,3],[4]],"kvlease":{"v":1,)"
                                     R"("release_by": "router",)" +
                                     fields + R"(,"y":2}})",
               .lease = LeaseId("cmpl-1-abc"),
               .renew_interval = std::chrono::seconds{5},
               .blocks = 4,
               .release_by = ReleaseBy::kRouter}));
}

// L33: what P did not write is not written for it, and what it did not seal is not kept alive.
TEST(BodiesTest, RouterReleasesOnlyWherePSentAReference) {
  for (const std::string params :
       {R"({"remote_request_id":"a"})", R"({"remote_request_id":"a","kvlease":null})",
        R"({"remote_request_id":"a","kvlease":[1]})"}) {
    EXPECT_EQ(take_handoff(R"({"kv_transfer_params":)" + params + '}', ReleaseBy::kRouter),
              (Handoff{.kv_transfer_params = params}));
  }
}

TEST(BodiesTest, PrefixHashIsOfWhatTheModelReadsFirst) {
  const auto hash = [](std::string body) { return parsed(std::move(body)).prefix_hash(); };
  const std::string begins(1024, 'a');
  EXPECT_EQ(hash(R"({"prompt":")" + begins + R"(b","max_tokens":1})"),
            hash(R"({"max_tokens":2,"prompt":")" + begins + R"(c"})"));
  EXPECT_NE(hash(R"({"prompt":"a"})"), hash(R"({"prompt":"b"})"));
  EXPECT_NE(hash(R"({"messages":[{"role":"user"}]})"), hash(R"({"messages":[{"role":"system"}]})"));
}

// H07: an answer without hand-off data is told from one with it.
TEST(BodiesTest, H07_AnswersWithoutHandoff) {
  for (const std::string_view answer :
       {"", "no JSON", "[]", "{}", R"({"kv_transfer_params":null})",
        R"({"kv_transfer_params":"x"})", R"({"kv_transfer_params":[{}]})",
        R"({"kv_transfer_params":{"a":1,"a":2}})"}) {
    EXPECT_EQ(take_handoff(answer, ReleaseBy::kDecoder), std::nullopt) << answer;
  }
  EXPECT_EQ(take_handoff(R"({"kv_transfer_params":{"remote_request_id":7}})", ReleaseBy::kDecoder),
            (Handoff{.kv_transfer_params = R"({"remote_request_id":7})"}));
}

// L39: what the client or the router has kept of the answer before goes to P, and nowhere else.
TEST(BodiesTest, WhatDHoldsForThisTurnGoesToPOnly) {
  const std::string held = R"({"do_remote_decode":true,"x":9007199254740993})";
  const ClientBody carried =
      parsed(R"({"prompt":"a","kv_transfer_params":)" + held + R"(,"conversation_id":"c"})");
  EXPECT_EQ(carried.conversation(), "c");
  EXPECT_EQ(carried.held_params(), held);
  EXPECT_EQ(
      carried.prefill_body(held),
      R"({"prompt":"a","stream":false,"max_tokens":1,"n":1,"kv_transfer_params":)" + held + "}");
  EXPECT_EQ(carried.decode_body("{}"), R"({"prompt":"a","kv_transfer_params":{}})");
  EXPECT_EQ(carried.alone_body(), R"({"prompt":"a"})");
  const ClientBody null = parsed(R"({"prompt":"a","conversation_id":null})");
  EXPECT_EQ(null.conversation(), "");
  EXPECT_EQ(null.alone_body(), R"({"prompt":"a"})");
}

TEST(ParamsWatchTest, FindsTheLastParamsHoweverTheAnswerComes) {
  const std::string whole = R"({"text":"a","kv_transfer_params":{"x":1}})";
  const std::string stream =
      "data: {\"text\":\"a\",\"kv_transfer_params\":null}\n\n"
      "data: {\"text\":\"kv_transfer_params\"}\n\n"
      "data: {\"kv_transfer_params\":{\"x\": 2}}\n\ndata: [DONE]\n\n";
  for (const auto& [answer, found] : std::vector<std::pair<std::string, std::string>>{
           {whole, R"({"x":1})"}, {stream, R"({"x": 2})"}}) {
    for (std::size_t step = 1; step <= answer.size(); step += 7) {
      ParamsWatch watch;
      for (std::size_t at = 0; at < answer.size(); at += step) {
        watch.feed(std::string_view(answer).substr(at, step));
      }
      EXPECT_EQ(watch.params(), found) << step;
    }
  }
  for (const char* nothing :
       {"", "{}", "no JSON", "data: {}\n\n", "data: kv_transfer_params\n\n"}) {
    ParamsWatch watch;
    watch.feed(nothing);
    EXPECT_EQ(watch.params(), std::nullopt) << nothing;
  }
  ParamsWatch bounded;  // L43
  for (int i = 0; i < 100; ++i) bounded.feed(std::string(100'000, 'x'));
  bounded.feed(whole);
  EXPECT_EQ(bounded.params(), std::nullopt);
}

}  // namespace
}  // namespace kvlease
