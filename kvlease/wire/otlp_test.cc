// Trace contexts and spans against literal texts.
#include "kvlease/wire/otlp.h"

#include <gtest/gtest.h>

#include <string_view>

namespace kvlease {
namespace {

constexpr std::string_view kParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
constexpr TraceContext kContext{.trace_high = 0x4bf92f3577b34da6,
                                .trace_low = 0xa3ce929d0e0e4736,
                                .span = 0x00f067aa0ba902b7,
                                .sampled = true};

// The examples of the recommendation, sections 3.2 and 4.3.
TEST(TraceContextTest, ReadsAndWritesTraceparent) {
  EXPECT_EQ(parse_traceparent(kParent), kContext);
  EXPECT_EQ(to_traceparent(kContext), kParent);
  TraceContext unsampled = kContext;
  unsampled.sampled = false;
  EXPECT_EQ(parse_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"),
            unsampled);
  EXPECT_EQ(parse_traceparent(to_traceparent(unsampled)), unsampled);
  EXPECT_EQ(parse_traceparent("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what"),
            kContext);
}

TEST(TraceContextTest, WhatIsNoTraceparentBeginsANewTrace) {
  for (const std::string_view other :
       {"", "00-1", "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
        "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.more",
        "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0x"}) {
    EXPECT_EQ(parse_traceparent(other), std::nullopt) << other;
  }
}

TEST(OtlpTest, ASpanIsOneLine) {
  const Span span{.context = kContext,
                  .parent = 7,
                  .name = "llm_request",
                  .kind = SpanKind::kServer,
                  .start_unix_ns = 1'700'000'000'000'000'001,
                  .end_unix_ns = 1'700'000'000'500'000'001,
                  .attributes = {{"text", std::string("a\n\"b\"")},
                                 {"count", std::int64_t{-3}},
                                 {"share", 0.5},
                                 {"yes", true}},
                  .events = {{"first_token", 1'700'000'000'100'000'001, {{"n", std::int64_t{1}}}}},
                  .dropped_events = 2};
  EXPECT_EQ(
      to_otlp_json(span, "P"),
      R"({"resourceSpans":[{"resource":{"attributes":[{"key":"service.name",)"
      R"("value":{"stringValue":"P"}}]},"scopeSpans":[{"scope":{"name":"kvlease"},"spans":[{)"
      R"("traceId":"4bf92f3577b34da6a3ce929d0e0e4736","spanId":"00f067aa0ba902b7",)"
      R"("parentSpanId":"0000000000000007","name":"llm_request","kind":2,)"
      R"("startTimeUnixNano":"1700000000000000001","endTimeUnixNano":"1700000000500000001",)"
      R"("attributes":[{"key":"text","value":{"stringValue":"a\n\"b\""}},)"
      R"({"key":"count","value":{"intValue":"-3"}},{"key":"share","value":{"doubleValue":0.5}},)"
      R"({"key":"yes","value":{"boolValue":true}}],)"
      R"("events":[{"timeUnixNano":"1700000000100000001","name":"first_token",)"
      R"("attributes":[{"key":"n","value":{"intValue":"1"}}]}],"droppedEventsCount":2,)"
      R"("status":{"code":1}}]}]}]})");
}

TEST(OtlpTest, AnErrorHasItsMessage) {
  const std::string json = to_otlp_json({.context = kContext, .name = "x", .error = "gone"}, "D");
  EXPECT_NE(json.find(R"("status":{"message":"gone","code":2})"), std::string::npos) << json;
  EXPECT_EQ(json.find("parentSpanId"), std::string::npos);
}

}  // namespace
}  // namespace kvlease
