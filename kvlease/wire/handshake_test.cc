// Tests of handshake.h: what pairs and what does not, with both values in the words, every refusal
// of foreign JSON, and round trips.
#include "kvlease/wire/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>

#include "kvlease/wire/testing.h"

namespace kvlease {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

CompatibilityIdentity identity() {
  return {.model = "llama-8b",
          .dtype = "bfloat16",
          .num_layers = 32,
          .num_kv_heads = 8,
          .head_dim = 128,
          .block_size = 16,
          .kv_cache_layout = "NHD"};
}

HandshakeRequest request() {
  return {.engine_id = EngineId("dec-02"),
          .incarnation = Incarnation(2),
          .expected_engine_id = EngineId("pre-7f"),
          .identity = identity(),
          .tp_size = 2};
}

RankMetadata rank(std::uint32_t number) {
  return {.rank = Rank(number),
          .agent_name = AgentName("pre-7f/" + std::to_string(number) + "/000000000000000a.1"),
          .agent_metadata = {std::byte{0xff}, std::byte{0}, std::byte{7}},
          .num_blocks = 113,
          .regions = {{.base_address = 0xffff800000000000, .block_len_bytes = 32'768},
                      {.base_address = 0x7f0000000000,
                       .block_len_bytes = 65'536,
                       .kind = MemoryKind::kVram,
                       .device = number}},
          .entries_address = 0x7f1000000000,
          .entries_count = 65'536};
}

HandshakeReply reply() {
  HandshakeReply reply{.engine_id = EngineId("pre-7f"),
                       .incarnation = Incarnation(10),
                       .identity = identity(),
                       .times = {.duration = seconds{30},
                                 .heartbeat_interval = seconds{5},
                                 .extension = seconds{20}},
                       .clock_seconds = 184220.417,
                       .ranks = {rank(0), rank(1)}};
  reply.seal_key[0] = std::byte{0xab};
  return reply;
}

void expect_error(const Result<void>& result, ErrorCode code, std::string_view message) {
  ASSERT_FALSE(result.has_value()) << message;
  EXPECT_EQ(result.error().code, code);
  EXPECT_EQ(result.error().message, message);
}

TEST(Handshake, RequestIsWrittenAndReadBack) {
  const std::string json = to_json(request());
  EXPECT_EQ(
      json,
      R"({"protocol":{"min":1,"max":1},"engine_id":"dec-02","incarnation":"0000000000000002",)"
      R"("expected_engine_id":"pre-7f","identity":{"model":"llama-8b","dtype":"bfloat16",)"
      R"("num_layers":32,"num_kv_heads":8,"head_dim":128,"block_size":16,)"
      R"("transfer_mode":"pull","kv_cache_layout":"NHD"},"tp_size":2})");
  EXPECT_EQ(parse_handshake_request(json), request());
}

TEST(Handshake, ReplyIsWrittenAndReadBack) {  // L14, L30
  const std::string json = to_json(reply());
  EXPECT_THAT(json, HasSubstr(R"("seal_key":"ab00)"));
  EXPECT_THAT(json, HasSubstr(R"("lease_duration_ms":30000,"heartbeat_interval_ms":5000,)"
                              R"("lease_extension_ms":20000,"clock_seconds":184220.417)"));
  EXPECT_THAT(json, HasSubstr(R"({"rank":1,"agent_name":"pre-7f/1/000000000000000a.1",)"
                              R"("agent_metadata":"ff0007","num_blocks":113,"regions":[)"
                              R"({"base_address":"ffff800000000000","block_len_bytes":32768,)"
                              R"("memory":"dram","device":0},)"
                              R"({"base_address":"00007f0000000000","block_len_bytes":65536,)"
                              R"("memory":"vram","device":1}],)"
                              R"("entries_address":"00007f1000000000","entries_count":65536})"));
  EXPECT_EQ(parse_handshake_reply(json), reply());
}

TEST(Handshake, LaterVersionsMayAddFields) {
  EXPECT_EQ(parse_handshake_request(replaced(to_json(request()), "{", R"({"new":[1],)")),
            request());
  EXPECT_EQ(parse_handshake_reply(replaced(to_json(reply()), "{", R"({"new":[1],)")), reply());
}

TEST(Handshake, ThePairFits) {
  EXPECT_TRUE(check_handshake_request(request(), reply(), true).has_value());
  EXPECT_TRUE(check_handshake_reply(reply(), request(), true).has_value());
}

TEST(Handshake, A17_HighestCommonVersionIsChosenOrBothRangesAreSaid) {  // L30
  EXPECT_EQ(choose_protocol({.min = 1, .max = 3}, {.min = 2, .max = 5}), 3u);
  EXPECT_EQ(choose_protocol({.min = 2, .max = 5}, {.min = 1, .max = 2}), 2u);
  const Result<std::uint32_t> none = choose_protocol({.min = 1, .max = 1}, {.min = 2, .max = 4});
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code, ErrorCode::kIncompatible);
  EXPECT_EQ(none.error().message, "no common version of the protocol: 1 to 1 here, 2 to 4 there");
  HandshakeRequest newer_request = request();
  newer_request.protocol = {.min = 2, .max = 4};
  expect_error(check_handshake_request(newer_request, reply(), false), ErrorCode::kIncompatible,
               none.error().message);
  HandshakeReply newer_reply = reply();
  newer_reply.protocol = {.min = 2, .max = 4};
  expect_error(check_handshake_reply(newer_reply, request(), false), ErrorCode::kIncompatible,
               none.error().message);
}

TEST(Handshake, A17_AnotherVersionIsRefusedBeforeTheRestIsRead) {
  const std::string json = R"({"protocol":{"min":2,"max":2},"shape":"unknown"})";
  const Result<HandshakeReply> parsed_reply = parse_handshake_reply(json);
  ASSERT_FALSE(parsed_reply.has_value());
  EXPECT_EQ(parsed_reply.error().code, ErrorCode::kIncompatible);
  EXPECT_THAT(parsed_reply.error().message, HasSubstr("1 to 1 here, 2 to 2 there"));
  const Result<HandshakeRequest> parsed_request = parse_handshake_request(json);
  ASSERT_FALSE(parsed_request.has_value());
  EXPECT_EQ(parsed_request.error().code, ErrorCode::kIncompatible);
}

TEST(Handshake, D04_AnotherEngineThanTheNamedOneIsRefusedWithBothIds) {
  HandshakeRequest wrong = request();
  wrong.expected_engine_id = EngineId("pre-80");
  expect_error(check_handshake_request(wrong, reply(), true), ErrorCode::kNotFound,
               "engine pre-80 is not here; this is pre-7f");
  expect_error(check_handshake_reply(reply(), wrong, true), ErrorCode::kNotFound,
               "asked for engine pre-80, but pre-7f answered");
}

TEST(Handshake, D15_EveryDifferingItemIsSaidWithBothValues) {  // L30
  struct Row {
    void (*edit)(CompatibilityIdentity&);
    std::string_view message;
  };
  using Identity = CompatibilityIdentity;
  for (const Row& row : {
           Row{[](Identity& i) { i.model = "other\n"; },
               R"(model is "llama-8b" here, "other\n" there)"},
           Row{[](Identity& i) { i.dtype = "float8"; },
               R"(dtype is "bfloat16" here, "float8" there)"},
           Row{[](Identity& i) { i.num_layers = 31; }, "num_layers is 32 here, 31 there"},
           Row{[](Identity& i) { i.num_kv_heads = 4; }, "num_kv_heads is 8 here, 4 there"},
           Row{[](Identity& i) { i.head_dim = 64; }, "head_dim is 128 here, 64 there"},
           Row{[](Identity& i) { i.transfer_mode = "push"; },
               R"(transfer_mode is "pull" here, "push" there)"},
           Row{[](Identity& i) { i.kv_cache_layout = "HND"; },
               R"(kv_cache_layout is "NHD" here, "HND" there)"},
       }) {
    HandshakeRequest other = request();
    row.edit(other.identity);
    EXPECT_EQ(incompatibility(identity(), other.identity), row.message);
    const std::string refused =
        std::string(row.message) + "; enforce_handshake_compat = false lets them pair all the same";
    expect_error(check_handshake_request(other, reply(), true), ErrorCode::kIncompatible, refused);
    EXPECT_TRUE(check_handshake_request(other, reply(), false).has_value());
    HandshakeReply other_reply = reply();
    row.edit(other_reply.identity);
    expect_error(check_handshake_reply(other_reply, request(), true), ErrorCode::kIncompatible,
                 refused);
    EXPECT_TRUE(check_handshake_reply(other_reply, request(), false).has_value());
  }
  EXPECT_EQ(incompatibility(identity(), identity()), std::nullopt);
}

TEST(Handshake, D16_BlockCountsMayDiffer) {  // D15, too: they are no part of the identity
  HandshakeReply other = reply();
  other.ranks[0].num_blocks = 113;
  other.ranks[1].num_blocks = 211;
  EXPECT_TRUE(check_handshake_reply(other, request(), true).has_value());
}

TEST(Handshake, RankCountsThatDoNotDivideAreRefusedWithBothNumbers) {  // L37
  for (const std::uint32_t good : {1u, 2u, 4u, 8u}) {
    HandshakeRequest asked = request();
    asked.tp_size = good;
    EXPECT_TRUE(check_handshake_request(asked, reply(), true).has_value());
    EXPECT_TRUE(check_handshake_reply(reply(), asked, true).has_value());
  }
  HandshakeRequest three = request();
  three.tp_size = 3;
  expect_error(check_handshake_request(three, reply(), false), ErrorCode::kIncompatible,
               "tp_size 2 here and 3 there do not divide");
  expect_error(check_handshake_reply(reply(), three, false), ErrorCode::kIncompatible,
               "tp_size 3 here and 2 there do not divide");
  HandshakeRequest six = request();
  six.tp_size = 6;
  expect_error(check_handshake_request(six, reply(), false), ErrorCode::kIncompatible,
               "8 KV heads do not divide among tp_size 6");
}

TEST(Handshake, ABlockOfTheReaderIsMadeOfWholeBlocksOfTheHolder) {  // L30
  HandshakeRequest larger = request();
  larger.identity.block_size = 64;
  EXPECT_TRUE(check_handshake_request(larger, reply(), true).has_value());
  EXPECT_TRUE(check_handshake_reply(reply(), larger, true).has_value());
  HandshakeRequest smaller = request();
  smaller.identity.block_size = 8;
  for (const bool enforce : {true, false}) {
    expect_error(check_handshake_request(smaller, reply(), enforce), ErrorCode::kIncompatible,
                 "block_size 8 of the decode side is no multiple of 16 of the prefill side");
    expect_error(check_handshake_reply(reply(), smaller, enforce), ErrorCode::kIncompatible,
                 "block_size 8 of the decode side is no multiple of 16 of the prefill side");
  }
}

TEST(Handshake, RanksOfDifferentShapeAreRefused) {  // L37
  HandshakeReply fewer = reply();
  fewer.ranks[1].regions.pop_back();
  expect_error(check_handshake_reply(fewer, request(), false), ErrorCode::kIncompatible,
               "rank 1 has 1 regions, rank 0 has 2");
  HandshakeReply longer = reply();
  longer.ranks[1].regions[1].block_len_bytes = 32'768;
  expect_error(check_handshake_reply(longer, request(), false), ErrorCode::kIncompatible,
               "region 1 of rank 1 has blocks of 32768 bytes, of rank 0 65536");
}

TEST(Handshake, MalformedRequestsAreRefusedByField) {
  const auto row = [](std::string_view from, std::string_view to, std::string_view message) {
    return Refusal{replaced(to_json(request()), from, to), std::string(message)};
  };
  constexpr std::string_view kEngineId =
      "allowed: a string of 1 to 255 printable ASCII characters without '/'";
  expect_refused(
      [](std::string_view json) { return parse_handshake_request(json); },
      {
          {"[]", "the handshake request is []; allowed: an object"},
          {"{", "the handshake request is no JSON"},
          {std::string(kHandshakeBytesMax + 1, ' '), "the handshake request has 4194305 bytes"},
          {"{}", "`protocol` is missing; allowed: an object"},
          row(R"({"min":1,"max":1})", "1", "`protocol` is 1; allowed: an object"),
          row(R"("min":1)", R"("min":0)", "`protocol.min` is 0; allowed: an integer from 1 to"),
          row(R"("min":1)", R"("min":2)", "`protocol.max` is 1; allowed: an integer from 2 to"),
          row("\"dec-02\"", "\"dec/02\"", kEngineId),
          row("\"dec-02\"", "\"\"", kEngineId),
          row("\"dec-02\"", "\"d\\n\"", kEngineId),
          row("\"dec-02\"", '"' + std::string(256, 'a') + '"', kEngineId),
          row("\"pre-7f\"", "\"pre/7f\"", "`expected_engine_id` is \"pre/7f\""),
          row("\"0000000000000002\"", "2",
              "`incarnation` is 2; allowed: a string of 16 lowercase hex digits"),
          row("\"llama-8b\"", "null", "`identity.model` is null"),
          row("\"llama-8b\"", '"' + std::string(1025, 'a') + '"', "a string of at most 1024 bytes"),
          row("\"num_layers\":32", "\"num_layers\":0", "`identity.num_layers` is 0"),
          row("\"num_kv_heads\":8", "\"num_kv_heads\":-8", "`identity.num_kv_heads` is -8"),
          row("\"head_dim\":128", "\"head_dim\":\"128\"", "`identity.head_dim` is \"128\""),
          row("\"block_size\":16", "\"block_size\":0.5", "`identity.block_size` is 0.5"),
          row("\"tp_size\":2", "\"tp_size\":0", "`tp_size` is 0; allowed: an integer from 1 to 64"),
          row("\"tp_size\":2", "\"tp_size\":65",
              "`tp_size` is 65; allowed: an integer from 1 to 64"),
      });
}

TEST(Handshake, MalformedRepliesAreRefusedByField) {
  const auto row = [](std::string_view from, std::string_view to, std::string_view message) {
    return Refusal{replaced(to_json(reply()), from, to), std::string(message)};
  };
  constexpr std::string_view kMilliseconds = " is 0; allowed: an integer from 1 to 9223372036854";
  expect_refused(
      [](std::string_view json) { return parse_handshake_reply(json); },
      {
          row("\"ab00", "\"ab0", "`seal_key` is \"ab0"),
          row("\"lease_duration_ms\":30000", "\"lease_duration_ms\":0",
              "`lease_duration_ms`" + std::string(kMilliseconds)),
          row("\"heartbeat_interval_ms\":5000", "\"heartbeat_interval_ms\":9223372036855",
              "`heartbeat_interval_ms` is 9223372036855"),
          row("\"lease_extension_ms\":20000", "\"lease_extension_ms\":1.5",
              "`lease_extension_ms` is 1.5"),
          row("184220.417", "1e999", "`clock_seconds` is 1e999; allowed: a finite number"),
          row("\"agent_metadata\":\"ff0007\"", "\"agent_metadata\":\"ff000\"",
              "`ranks[0].agent_metadata` is \"ff000\"; allowed: a string of lowercase hex digits"),
          row("\"pre-7f/0/000000000000000a.1\"", "\"\"", "`ranks[0].agent_name` is \"\""),
          row("\"num_blocks\":113", "\"num_blocks\":0", "`ranks[0].num_blocks` is 0"),
          row("\"num_blocks\":113", "\"num_blocks\":4294967296",
              "`ranks[0].num_blocks` is 4294967296"),
          row("\"rank\":1", "\"rank\":2", "`ranks[1].rank` is 2; allowed: 1"),
          row("\"rank\":0", "\"rank\":1", "`ranks[0].rank` is 1; allowed: 0"),
          row("\"ffff800000000000\"", "\"0x10\"", "`ranks[0].regions[0].base_address` is \"0x10\""),
          row("\"block_len_bytes\":65536", "\"block_len_bytes\":0",
              "`ranks[0].regions[1].block_len_bytes` is 0"),
          row("\"ffff800000000000\"", "\"ffffffffffff0000\"",
              "`ranks[0].regions[0].block_len_bytes` is 32768; allowed: blocks that end inside"),
          row("\"vram\"", "\"disk\"",
              R"(`ranks[0].regions[1].memory` is "disk"; allowed: "dram", "vram")"),
          row("\"device\":0", "\"device\":-1", "`ranks[0].regions[0].device` is -1"),
          row("\"00007f1000000000\"", "\"00007f1000000008\"",
              "`ranks[0].entries_address` is 00007f1000000008; allowed: a multiple of 16"),
          row("\"00007f1000000000\"", "\"fffffffffffffff0\"",
              "`ranks[0].entries_address` is fffffffffffffff0; allowed: a multiple of 16"),
          row("\"entries_count\":65536", "\"entries_count\":16777217",
              "`ranks[0].entries_count` is 16777217; allowed: an integer from 0 to 16777216"),
          row("\"entries_count\":65536", "\"entries_count\":0",
              "`ranks[1].entries_count` is 65536; allowed: the count of rank 0, 0"),
      });
}

TEST(Handshake, NumbersOfRanksAndRegionsAreBounded) {  // L43
  const auto with_ranks = [](std::uint32_t count) {
    HandshakeReply many = reply();
    many.ranks.clear();
    for (std::uint32_t i = 0; i < count; ++i) many.ranks.push_back(rank(i));
    return to_json(many);
  };
  const auto with_regions = [](std::size_t count) {
    HandshakeReply many = reply();
    many.ranks[0].regions.resize(count, many.ranks[0].regions[0]);
    return to_json(many);
  };
  EXPECT_TRUE(parse_handshake_reply(with_ranks(kTpMax)).has_value());
  EXPECT_TRUE(parse_handshake_reply(with_regions(kRegionsMax)).has_value());
  expect_refused(
      [](std::string_view json) { return parse_handshake_reply(json); },
      {{with_ranks(0), "`ranks` is an array of 0; allowed: an array of 1 to 64 objects"},
       {with_ranks(65), "`ranks` is an array of 65; allowed: an array of 1 to 64 objects"},
       {with_regions(0), "`ranks[0].regions` is an array of 0"},
       {with_regions(4097),
        "`ranks[0].regions` is an array of 4097; allowed: an array of 1 to 4096"},
       {replaced(to_json(reply()), R"({"rank":0,)", R"(7,{"rank":0,)"),
        "`ranks[0]` is 7; allowed: an object"}});
}

TEST(Handshake, DurationsTravelInWholeMillisecondsRoundedDown) {
  HandshakeReply fractions = reply();
  fractions.times = {.duration = std::chrono::nanoseconds{50'999'999},
                     .heartbeat_interval = std::chrono::microseconds{8'500},
                     .extension = kForever};
  const Result<HandshakeReply> back = parse_handshake_reply(to_json(fractions));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->times, (LeaseTimes{.duration = milliseconds{50},
                                     .heartbeat_interval = milliseconds{8},
                                     .extension = milliseconds{9'223'372'036'854}}));
}

rc::Gen<std::string> engine_ids() {
  return rc::gen::map(
      rc::gen::nonEmpty(rc::gen::container<std::string>(rc::gen::inRange<char>('0', 'z'))),
      [](std::string text) { return text.substr(0, 255); });
}

template <typename T>
T some() {
  return *rc::gen::arbitrary<T>();
}

std::uint32_t positive() { return *rc::gen::inRange<std::uint32_t>(1, UINT32_MAX); }

CompatibilityIdentity some_identity() {
  return {.model = *engine_ids(),
          .dtype = *engine_ids(),
          .num_layers = positive(),
          .num_kv_heads = positive(),
          .head_dim = positive(),
          .block_size = positive(),
          .transfer_mode = *engine_ids(),
          .kv_cache_layout = *rc::gen::element<std::string>("", "NHD", "\"\\\n")};
}

RankMetadata some_rank(std::uint32_t number, std::uint32_t entries_count) {
  RankMetadata rank{.rank = Rank(number),
                    .agent_name = AgentName(*engine_ids()),
                    .num_blocks = positive(),
                    .entries_address = some<std::uint32_t>() * std::uint64_t{16},
                    .entries_count = entries_count};
  for (const std::uint8_t byte : some<std::vector<std::uint8_t>>()) {
    rank.agent_metadata.push_back(std::byte{byte});
  }
  for (int i = *rc::gen::inRange(1, 4); i > 0; --i) {
    rank.regions.push_back({.base_address = some<std::uint64_t>() >> 1,
                            .block_len_bytes = *rc::gen::inRange<std::uint64_t>(1, 1u << 30),
                            .kind = *rc::gen::element(MemoryKind::kDram, MemoryKind::kVram),
                            .device = some<std::uint32_t>()});
  }
  return rank;
}

TEST(Handshake, WhatIsWrittenIsParsedBack) {
  EXPECT_TRUE(rc::check("requests", [] {
    const HandshakeRequest request{.engine_id = EngineId(*engine_ids()),
                                   .incarnation = Incarnation(some<std::uint64_t>()),
                                   .expected_engine_id = EngineId(*engine_ids()),
                                   .identity = some_identity(),
                                   .tp_size = *rc::gen::inRange<std::uint32_t>(1, kTpMax + 1)};
    const Result<HandshakeRequest> back = parse_handshake_request(to_json(request));
    RC_ASSERT(back.has_value());
    RC_ASSERT(*back == request);
  }));
  EXPECT_TRUE(rc::check("replies", [] {
    const auto duration = rc::gen::inRange<std::int64_t>(1, 9'223'372'036'855);
    HandshakeReply reply{.engine_id = EngineId(*engine_ids()),
                         .incarnation = Incarnation(some<std::uint64_t>()),
                         .identity = some_identity(),
                         .times = {.duration = milliseconds{*duration},
                                   .heartbeat_interval = milliseconds{*duration},
                                   .extension = milliseconds{*duration}},
                         .clock_seconds = some<double>()};
    RC_PRE(std::isfinite(reply.clock_seconds));
    for (std::byte& byte : reply.seal_key) byte = std::byte{some<std::uint8_t>()};
    const std::uint32_t entries_count = *rc::gen::inRange<std::uint32_t>(0, kEntriesMax + 1);
    for (std::uint32_t tp = *rc::gen::inRange<std::uint32_t>(1, 5), i = 0; i < tp; ++i) {
      reply.ranks.push_back(some_rank(i, entries_count));
    }
    const Result<HandshakeReply> back = parse_handshake_reply(to_json(reply));
    RC_ASSERT(back.has_value());
    RC_ASSERT(*back == reply);
  }));
}

}  // namespace
}  // namespace kvlease
