// Tests of kv_transfer_params.h: vLLM's shapes, what proxies do to numbers, unknown fields, every
// refusal and round trips.
#include "kvlease/wire/kv_transfer_params.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <boost/json.hpp>
#include <cmath>

#include "kvlease/wire/proxy_testing.h"
#include "kvlease/wire/testing.h"

namespace kvlease {
namespace {

using testing::HasSubstr;

constexpr std::size_t kBytesMax = 4u << 20;

// What P answers in pull mode (spec of vLLM's connector, 2.2), compact.
constexpr std::string_view kAnswer =
    R"({"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[41,42,43]],)"
    R"("remote_engine_id":"pre-7f_dp0","remote_request_id":"cmpl-9b1d-0-3c5e7a90",)"
    R"("remote_host":"10.1.0.4","remote_port":5600,"tp_size":2,"dcp_size":1,"pp_size":1,)"
    R"("remote_num_tokens":37,"remote_blocks_expiry_time":null,)"
    R"("remote_registration_generation":2,"transfer_mode":"pull",)"
    R"("remote_prefill_cached_tokens":0})";

constexpr std::string_view kReferenceJson =
    R"({"v":1,"incarnation":"0123456789abcdef","slot":5,"word":"c0ffee0000000007",)"
    R"("digest":"000102030405060708090a0b0c0d0e0f","digest_tokens":37,)"
    R"("seal":"c6e68125446ed51dd48387f1c01989b1","lease_duration_ms":30000,)"
    R"("heartbeat_interval_ms":5000,"release_by":"router"})";

KvTransferParams parsed(std::string_view json) {
  const Result<KvTransferParams> params = parse_kv_transfer_params(json, kBytesMax);
  EXPECT_TRUE(params.has_value()) << (params ? "" : params.error().message);
  return params.value_or(KvTransferParams{});
}

// `kAnswer` with the field `name` set to `json`.
std::string answer_with(std::string_view name, std::string_view json) {
  boost::json::error_code problem;
  boost::json::object answer = boost::json::parse(kAnswer, problem).get_object();
  answer.erase(name);
  std::string text = boost::json::serialize(answer);
  text.pop_back();
  return text + ",\"" + std::string(name) + "\":" + std::string(json) + "}";
}

TEST(KvTransferParams, AnswerOfPIsReadAndWrittenAsVllmWritesIt) {
  const KvTransferParams params = parsed(kAnswer);
  EXPECT_EQ(params, (KvTransferParams{
                        .do_remote_prefill = true,
                        .remote_block_ids = {{{BlockId(41), BlockId(42), BlockId(43)}}},
                        .remote_engine_id = EngineId("pre-7f_dp0"),
                        .remote_request_id = LeaseId("cmpl-9b1d-0-3c5e7a90"),
                        .remote_host = "10.1.0.4",
                        .remote_port = 5600,
                        .tp_size = 2,
                        .dcp_size = 1,
                        .pp_size = 1,
                        .remote_num_tokens = 37,
                        .remote_registration_generation = 2,
                        .remote_prefill_cached_tokens = 0,
                        .transfer_mode = "pull",
                    }));
  EXPECT_EQ(to_json(params), kAnswer);
}

TEST(KvTransferParams, AnswerOfABidirectionalDIsReadAndWrittenAsVllmWritesIt) {
  constexpr std::string_view kHold =
      R"({"do_remote_prefill":false,"do_remote_decode":true,"remote_block_ids":[[7,9,12,13]],)"
      R"("remote_engine_id":"dec-02","remote_request_id":"cmpl-9b1d-0-88aa10fe",)"
      R"("remote_host":"10.1.0.9","remote_port":5600,"tp_size":2,"dcp_size":1,"pp_size":1,)"
      R"("remote_num_tokens":61,"remote_blocks_expiry_time":184220.417,)"
      R"("remote_registration_generation":2,"transfer_mode":"pull"})";
  const KvTransferParams params = parsed(kHold);
  EXPECT_EQ(params.remote_blocks_expiry_time,
            184220.417);  // exactly, unlike Boost.JSON's own number
  EXPECT_EQ(to_json(params), kHold);
}

TEST(KvTransferParams, FreshRequestToPIsReadAndWrittenAsTheProxyWritesIt) {
  const KvTransferParams params =
      parsed(R"({"do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null,
                 "remote_block_ids": null, "remote_host": null, "remote_port": null})");
  EXPECT_EQ(params, KvTransferParams{.do_remote_decode = true});
  EXPECT_EQ(to_json(params),
            R"({"do_remote_prefill":false,"do_remote_decode":true,"remote_block_ids":null,)"
            R"("remote_engine_id":null,"remote_host":null,"remote_port":null})");
}

TEST(KvTransferParams, AbsentAndNullAreTheSame) {
  const KvTransferParams absent = parsed("{}");
  EXPECT_EQ(absent, KvTransferParams{});
  for (const std::string_view name :
       {"do_remote_decode", "do_remote_prefill", "remote_block_ids", "remote_engine_id",
        "remote_request_id", "remote_host", "remote_port", "tp_size", "dcp_size", "pp_size",
        "remote_num_tokens", "remote_blocks_expiry_time", "remote_registration_generation",
        "remote_prefill_cached_tokens", "transfer_mode", "transfer_id", "kvlease"}) {
    EXPECT_EQ(parsed("{\"" + std::string(name) + "\":null}"), absent) << name;
  }
}

TEST(KvTransferParams, LeaseReferenceIsReadAndWritten) {  // L22, L52
  const KvTransferParams params = parsed(answer_with("kvlease", kReferenceJson));
  ASSERT_TRUE(params.kvlease.has_value());
  const LeaseReference& reference = *params.kvlease;
  EXPECT_EQ(reference.v, 1u);
  EXPECT_EQ(reference.incarnation, Incarnation(0x0123456789abcdef));
  EXPECT_EQ(reference.slot, SlotId(5));
  EXPECT_EQ(reference.word, 0xc0ffee0000000007u);
  EXPECT_EQ(reference.digest[15], std::byte{15});
  EXPECT_EQ(reference.digest_tokens, 37u);
  EXPECT_EQ(reference.seal[0], std::byte{0xc6});
  EXPECT_EQ(reference.lease_duration_ms, 30'000u);
  EXPECT_EQ(reference.heartbeat_interval_ms, 5'000u);
  EXPECT_EQ(reference.release_by, ReleaseBy::kRouter);
  EXPECT_THAT(to_json(params), HasSubstr("\"kvlease\":" + std::string(kReferenceJson)));
}

TEST(KvTransferParams, SealedReferenceTakesEveryFieldThatTheSealCovers) {  // L52
  const SealedReference sealed = sealed_reference(parsed(answer_with("kvlease", kReferenceJson)));
  EXPECT_EQ(sealed.engine_id, EngineId("pre-7f_dp0"));
  EXPECT_EQ(sealed.incarnation, Incarnation(0x0123456789abcdef));
  EXPECT_EQ(sealed.remote_request_id, LeaseId("cmpl-9b1d-0-3c5e7a90"));
  EXPECT_EQ(sealed.remote_num_tokens, 37u);
  EXPECT_EQ(sealed.remote_block_ids,
            (std::vector<std::vector<BlockId>>{{BlockId(41), BlockId(42), BlockId(43)}}));
  EXPECT_EQ(sealed.slot, SlotId(5));
  EXPECT_EQ(sealed.word, 0xc0ffee0000000007u);
  EXPECT_EQ(sealed.lease_duration_ms, 30'000u);
  EXPECT_EQ(sealed.heartbeat_interval_ms, 5'000u);
  EXPECT_EQ(sealed.digest_tokens, 37u);
  EXPECT_EQ(sealed.digest[15], std::byte{15});
}

TEST(KvTransferParams, UnknownFieldsSurviveUnchanged) {
  constexpr std::string_view kUnknown =
      R"({"_p_side_truncated":true,"_remote_blocks_processed":true,)"
      R"("big":123456789012345678901234567890,"nested":{"a":[1,{"b":"},]\"\u0000"}],"a2":{}},)"
      R"("precise":0.12345678901234567890,"remote_block_size":16,"text":"é\\"})";
  const std::string json = replaced(kUnknown, "{", R"({"tp_size":2,)");
  const KvTransferParams params = parsed(json);
  EXPECT_EQ(params.tp_size, 2u);
  EXPECT_EQ(params.unknown_fields, kUnknown);
  EXPECT_THAT(to_json(params), testing::EndsWith(kUnknown.substr(1)));
  EXPECT_EQ(parsed(to_json(params)), params);
}

TEST(KvTransferParams, FieldNamesMayBeEscaped) {
  EXPECT_EQ(parsed(R"({"\u0074p_size":2})").tp_size, 2u);
  EXPECT_EQ(parsed(R"({"\u0000\"x":1})").unknown_fields, R"({"\u0000\"x":1})");
}

TEST(KvTransferParams, NothingIsLostInAProxyThatHoldsNumbersAsDoubles) {
  KvTransferParams params = parsed(answer_with("kvlease", kReferenceJson));
  params.remote_block_ids = {{{BlockId(0), BlockId(UINT32_MAX), BlockId(4'294'967'294)}, {}}};
  params.remote_num_tokens = (std::uint64_t{1} << 53) - 1;
  params.remote_blocks_expiry_time = 184220.5;
  params.kvlease->word = UINT64_MAX;
  params.kvlease->incarnation = Incarnation(0x8000000000000001);
  params.kvlease->lease_duration_ms = 9'223'372'036'854;
  params.kvlease->slot = SlotId(UINT32_MAX);
  const std::string proxied = through_doubles(to_json(params));
  EXPECT_THAT(proxied, HasSubstr(R"("remote_port":5.6E3)"));
  EXPECT_EQ(parsed(proxied), params);
  EXPECT_EQ(parsed(answer_with("remote_port", "5600.0")).remote_port, 5600);
  EXPECT_EQ(parsed(answer_with("remote_num_tokens", "9007199254740991.0")).remote_num_tokens,
            9'007'199'254'740'991u);
  EXPECT_EQ(parsed(answer_with("remote_num_tokens", "-0.0")).remote_num_tokens, 0u);
}

Result<KvTransferParams> parse(std::string_view json) {
  return parse_kv_transfer_params(json, kBytesMax);
}

TEST(KvTransferParams, TextThatIsNoJsonObjectIsRefused) {
  const std::string deep = R"({"x":)" + std::string(32, '[') + std::string(32, ']') + "}";
  expect_refused(parse,
                 {
                     {"", "kv_transfer_params is no JSON: "},
                     {"{", "kv_transfer_params is no JSON: "},
                     {"{}x", "kv_transfer_params is no JSON: "},
                     {"{\"tp_size\":2,}", "kv_transfer_params is no JSON: "},
                     {"{\"tp_size\":NaN}", "kv_transfer_params is no JSON: "},
                     {"{\"tp_size\":01}", "kv_transfer_params is no JSON: "},
                     {"{\"x\":\"\xff\"}", "kv_transfer_params is no JSON: "},
                     {R"({"x":"\ud800"})", "kv_transfer_params is no JSON: "},
                     {deep, "kv_transfer_params is no JSON: "},
                     {" [1]", "kv_transfer_params is [1]; allowed: an object"},
                     {"null", "kv_transfer_params is null; allowed: an object"},
                     {R"({"tp_size":1,"tp_size":2})", "`tp_size` is 2; allowed: each field once"},
                     {R"({"x":1,"\u0078":2})", "`x` is 2; allowed: each field once"},
                 });
  const Result<KvTransferParams> long_text = parse_kv_transfer_params(kAnswer, kAnswer.size() - 1);
  ASSERT_FALSE(long_text.has_value());
  EXPECT_EQ(long_text.error().message, "kv_transfer_params has " + std::to_string(kAnswer.size()) +
                                           " bytes; allowed: at most " +
                                           std::to_string(kAnswer.size() - 1));
  EXPECT_TRUE(parse_kv_transfer_params(kAnswer, kAnswer.size()).has_value());
}

TEST(KvTransferParams, EveryFieldThatHoldsWhatItMayNotIsRefusedByName) {
  const std::string long_text = '"' + std::string(513, 'a') + '"';
  const auto row = [](std::string_view name, std::string_view json, std::string_view allowed) {
    return Refusal{answer_with(name, json),
                   "`" + std::string(name) + "` is " + std::string(json.substr(0, 64)) +
                       (json.size() > 64 ? "…" : "") + "; allowed: " + std::string(allowed)};
  };
  constexpr std::string_view kUpTo32Bits = "an integer from 1 to 4294967295";
  constexpr std::string_view kUpTo53Bits = "an integer from 0 to 9007199254740991";
  expect_refused(
      parse,
      {
          row("do_remote_decode", "1", "true or false"),
          row("do_remote_prefill", "\"true\"", "true or false"),
          row("remote_engine_id", "\"\"", "a string of 1 to 255 bytes"),
          row("remote_engine_id", "7", "a string of 1 to 255 bytes"),
          row("remote_request_id", "\"\"", "a string of 1 to 512 bytes"),
          row("remote_request_id", long_text, "a string of 1 to 512 bytes"),
          row("remote_host", "\"\"", "a host of 1 to 255 printable ASCII characters"),
          row("remote_host", R"("a\nb")", "a host of 1 to 255 printable ASCII characters"),
          row("remote_port", "0", "an integer from 1 to 65535"),
          row("remote_port", "65536", "an integer from 1 to 65535"),
          row("remote_port", "-1", "an integer from 1 to 65535"),
          row("remote_port", "5600.5", "an integer from 1 to 65535"),
          row("remote_port", "\"5600\"", "an integer from 1 to 65535"),
          row("tp_size", "0", kUpTo32Bits),
          row("tp_size", "4294967296", kUpTo32Bits),
          row("tp_size", "[2]", kUpTo32Bits),
          row("dcp_size", "true", kUpTo32Bits),
          row("pp_size", "{}", kUpTo32Bits),
          row("remote_num_tokens", "-1", kUpTo53Bits),
          row("remote_num_tokens", "9007199254740992", kUpTo53Bits),
          row("remote_num_tokens", "9007199254740992.0", kUpTo53Bits),
          row("remote_num_tokens", "99999999999999999999", kUpTo53Bits),
          row("remote_num_tokens", "1e999", kUpTo53Bits),
          row("remote_blocks_expiry_time", "\"1\"", "a finite number"),
          row("remote_blocks_expiry_time", "1e999", "a finite number"),
          row("remote_registration_generation", "1.5", kUpTo53Bits),
          row("remote_prefill_cached_tokens", "false", kUpTo53Bits),
          row("transfer_mode", "\"push \"", R"("pull", "push")"),
          row("transfer_id", long_text, "a string of at most 255 bytes"),
          row("kvlease", "[]", "an object"),
          row("remote_block_ids", "{}", "an array of arrays of block ids"),
          {answer_with("remote_block_ids", "[[1],2]"),
           "`remote_block_ids[1]` is 2; allowed: an array of block ids"},
          {answer_with("remote_block_ids", "[[1],[2,-3]]"),
           "`remote_block_ids[1][1]` is -3; allowed: an integer from 0 to 4294967295"},
          {answer_with("remote_block_ids", "[[4294967296]]"),
           "`remote_block_ids[0][0]` is 4294967296; allowed: an integer from 0 to 4294967295"},
          {answer_with("remote_block_ids", "[[null]]"), "`remote_block_ids[0][0]` is null"},
          {answer_with("remote_block_ids", "[null]"), "`remote_block_ids[0]` is null"},
      });
}

TEST(KvTransferParams, EveryFieldOfTheLeaseReferenceIsNeededAndChecked) {  // L22, L52
  const auto row = [](std::string_view from, std::string_view to, std::string_view message) {
    return Refusal{"{\"kvlease\":" + replaced(kReferenceJson, from, to) + "}",
                   std::string(message)};
  };
  constexpr std::string_view kHex16 = "allowed: a string of 16 lowercase hex digits";
  const auto hex16 = [&](std::string_view name, std::string_view value) {
    return "`kvlease." + std::string(name) + "` is " + std::string(value) + "; " +
           std::string(kHex16);
  };
  std::vector<Refusal> rows{
      row(R"("v":1)", R"("v":2)", "`kvlease.v` is 2; allowed: 1"),
      row("0123456789abcdef", "0123456789abcde", hex16("incarnation", "\"0123456789abcde\"")),
      row("0123456789abcdef", "0123456789abcdef0", hex16("incarnation", "\"0123456789abcdef0\"")),
      row("0123456789abcdef", "0123456789ABCDEF", hex16("incarnation", "\"0123456789ABCDEF\"")),
      row("0123456789abcdef", "0x23456789abcdef", hex16("incarnation", "\"0x23456789abcdef\"")),
      row("\"c0ffee0000000007\"", "7", hex16("word", "7")),
      row(R"("slot":5)", R"("slot":0)",
          "`kvlease.slot` is 0; allowed: an integer from 1 to 4294967295"),
      row("0c0d0e0f", "0c0d0e", "allowed: a string of 32 lowercase hex digits"),
      row("c01989b1", "c01989B1", "allowed: a string of 32 lowercase hex digits"),
      row(R"("digest_tokens":37)", R"("digest_tokens":-1)", "`kvlease.digest_tokens` is -1"),
      row("30000", "0",
          "`kvlease.lease_duration_ms` is 0; allowed: an integer from 1 to 9223372036854"),
      row("30000", "9223372036855", "`kvlease.lease_duration_ms` is 9223372036855"),
      row("5000", "0", "`kvlease.heartbeat_interval_ms` is 0"),
      row("\"router\"", "\"client\"",
          R"(`kvlease.release_by` is "client"; allowed: "decoder", "router")"),
      row("{", R"({"epoch":1,)", "`kvlease.epoch` is unknown; allowed: the fields of version 1"),
      row("{", R"({"slot":6,)", "`kvlease.slot` is 5; allowed: each field once"),
  };
  boost::json::error_code problem;
  const boost::json::object reference = boost::json::parse(kReferenceJson, problem).get_object();
  for (const auto& field : reference) {
    boost::json::object without = reference;
    without.erase(field.key());
    const std::string name(field.key());
    rows.push_back({R"({"kvlease":)" + boost::json::serialize(without) + "}",
                    "`kvlease." + name + "` is missing"});
    without[field.key()] = nullptr;
    rows.push_back({R"({"kvlease":)" + boost::json::serialize(without) + "}",
                    "`kvlease." + name + "` is null"});
  }
  expect_refused(parse, rows);
}

TEST(KvTransferParams, MessagesStayShortAndPrintable) {
  const Result<KvTransferParams> params =
      parse_kv_transfer_params("{\"tp_size\":\"" + std::string(100'000, 'a') + "\"}", kBytesMax);
  ASSERT_FALSE(params.has_value());
  EXPECT_LT(params.error().message.size(), 200u);
  expect_refused(parse, {{"{\"tp_size\":\"\xc3\xa9\"}", "`tp_size` is \"??\"; allowed"}});
}

TEST(KvTransferParams, BlockIdsAreBounded) {  // L43
  std::string ids;
  for (std::size_t i = 0; i < kBlockIdsMax; ++i) ids += "1,";
  ids.pop_back();
  EXPECT_EQ(parsed("{\"remote_block_ids\":[[" + ids + "]]}").remote_block_ids->front().size(),
            kBlockIdsMax);
  expect_refused(parse, {{"{\"remote_block_ids\":[[" + ids + "],[2]]}",
                          "`remote_block_ids` is [2]; allowed: at most 1000000 block ids"}});
}

rc::Gen<std::string> texts() {  // valid UTF-8 that needs escapes now and then
  return rc::gen::map(rc::gen::nonEmpty(rc::gen::container<std::string>(rc::gen::element(
                          'a', 'Z', '0', '"', '\\', '/', ' ', '\n', '\x01', '{', ']', ',', ':'))),
                      [](std::string text) { return text.substr(0, 100); });
}

template <typename T>
std::optional<T> sometimes(const rc::Gen<T>& value) {
  return *rc::gen::arbitrary<bool>() ? std::optional<T>(*value) : std::nullopt;
}

template <std::size_t kSize>
std::array<std::byte, kSize> some_bytes() {
  std::array<std::byte, kSize> bytes{};
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(*rc::gen::inRange(0, 256));
  return bytes;
}

LeaseReference some_reference() {
  return {.incarnation = Incarnation(*rc::gen::arbitrary<std::uint64_t>()),
          .slot = SlotId(*rc::gen::inRange<std::uint32_t>(1, UINT32_MAX)),
          .word = *rc::gen::arbitrary<std::uint64_t>(),
          .digest = some_bytes<16>(),
          .digest_tokens = *rc::gen::arbitrary<std::uint32_t>(),
          .seal = some_bytes<16>(),
          .lease_duration_ms = *rc::gen::inRange<std::uint64_t>(1, 9'223'372'036'855),
          .heartbeat_interval_ms = *rc::gen::inRange<std::uint64_t>(1, 9'223'372'036'855),
          .release_by = *rc::gen::element(ReleaseBy::kDecoder, ReleaseBy::kRouter)};
}

KvTransferParams some_params() {
  const auto counts = rc::gen::inRange<std::uint64_t>(0, std::uint64_t{1} << 53);
  const auto sizes = rc::gen::inRange<std::uint32_t>(1, UINT32_MAX);
  KvTransferParams params{
      .do_remote_decode = *rc::gen::arbitrary<bool>(),
      .do_remote_prefill = *rc::gen::arbitrary<bool>(),
      .remote_host = sometimes(rc::gen::element<std::string>("10.0.0.1", "p.example", "::1")),
      .remote_port = sometimes(rc::gen::inRange<std::uint16_t>(1, UINT16_MAX)),
      .tp_size = sometimes(sizes),
      .dcp_size = sometimes(sizes),
      .pp_size = sometimes(sizes),
      .remote_num_tokens = sometimes(counts),
      .remote_blocks_expiry_time =
          sometimes(rc::gen::suchThat<double>([](double value) { return std::isfinite(value); })),
      .remote_registration_generation = sometimes(counts),
      .remote_prefill_cached_tokens = sometimes(counts),
      .transfer_mode = sometimes(rc::gen::element<std::string>("pull", "push")),
      .transfer_id = sometimes(texts()),
  };
  if (auto id = sometimes(texts())) params.remote_engine_id = EngineId(*id);
  if (auto id = sometimes(texts())) params.remote_request_id = LeaseId(*id);
  if (const auto groups =
          sometimes(rc::gen::arbitrary<std::vector<std::vector<std::uint32_t>>>())) {
    params.remote_block_ids.emplace();
    for (const std::vector<std::uint32_t>& ids : *groups) {
      params.remote_block_ids->emplace_back(ids.begin(), ids.end());
    }
  }
  if (*rc::gen::arbitrary<bool>()) params.kvlease = some_reference();
  boost::json::object unknown;
  for (const std::string& name : *rc::gen::container<std::vector<std::string>>(texts())) {
    unknown["_" + name] = *texts();
  }
  if (!unknown.empty()) {
    const std::string json = boost::json::serialize(unknown);
    params.unknown_fields = parsed(json).unknown_fields;  // in order of their names
  }
  return params;
}

TEST(KvTransferParams, WhatIsWrittenIsParsedBack) {
  EXPECT_TRUE(rc::check([] {
    const KvTransferParams params = some_params();
    const std::string json = to_json(params);
    const Result<KvTransferParams> back = parse_kv_transfer_params(json, kBytesMax);
    RC_ASSERT(back.has_value());
    RC_ASSERT(*back == params);
    RC_ASSERT(to_json(*back) == json);
  }));
}

}  // namespace
}  // namespace kvlease
