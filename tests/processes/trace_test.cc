// One request's spans across the router, P and D: one trace, each span below its caller's.
#include <filesystem>
#include <fstream>

#include "kvlease/wire/json_fields.h"
#include "tests/processes/router_testing.h"

namespace kvlease {
namespace {

struct SeenSpan {
  std::string trace;
  std::string id;
  std::string parent;
  std::string name;
  std::string text;  // the whole line
};

std::string text_field(JsonObject& object, std::string_view name) {
  std::optional<std::string> text;
  object.string(name, kAnyText, text);
  return text.value_or("");
}

std::vector<SeenSpan> read_spans(const std::string& path) {
  std::vector<SeenSpan> spans;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::optional<Error> problem;
    JsonObject request = open_json(line, 1 << 20, "a span", problem);
    for (JsonObject& resource : request.objects("resourceSpans", 1)) {
      for (JsonObject& scope : resource.objects("scopeSpans", 1)) {
        for (JsonObject& span : scope.objects("spans", 1)) {
          spans.push_back({.trace = text_field(span, "traceId"),
                           .id = text_field(span, "spanId"),
                           .parent = text_field(span, "parentSpanId"),
                           .name = text_field(span, "name"),
                           .text = line});
        }
      }
    }
    EXPECT_FALSE(problem) << problem->message << '\n' << line;
  }
  return spans;
}

const SeenSpan& named(const std::vector<SeenSpan>& spans, std::string_view name) {
  static const SeenSpan none;
  const auto found = std::ranges::find(spans, name, &SeenSpan::name);
  EXPECT_NE(found, spans.end()) << name;
  return found == spans.end() ? none : *found;
}

TEST_F(RouterTest, SpansOfOneRequestFormOneTrace) {
  const std::string folder = ::testing::TempDir();
  const auto file = [&](const char* who) {
    return folder + "kvlease-" + std::to_string(::getpid()) + '-' + who + ".jsonl";
  };
  start_stack({.decodes = 1,
               .prefill_arguments = {"--otlp-traces-file", file("P")},
               .decode_arguments = {"--otlp-traces-file", file("D")},
               .route_arguments = {"--otlp-traces-file", file("router")}});
  const std::string trace = "4bf92f3577b34da6a3ce929d0e0e4736";
  const auto answer = cluster_.call(
      "router",
      {.method = "POST",
       .target = "/v1/completions",
       .headers = {{"Content-Type", "application/json"},
                   {"traceparent", "00-" + trace + "-00f067aa0ba902b7-01"}},
       .body = R"({"prompt":"A prompt of some length, a block at least","max_tokens":4})"});
  ASSERT_TRUE(answer) << answer.error().message;
  ASSERT_EQ(answer->status, 200) << answer->body;
  const auto routed = read_spans(file("router"));
  const auto prefilled = read_spans(file("P"));
  const auto decoded = read_spans(file("D"));
  ASSERT_EQ(routed.size(), 3u);
  ASSERT_EQ(prefilled.size(), 1u);
  ASSERT_EQ(decoded.size(), 1u);
  for (const auto* spans : {&routed, &prefilled, &decoded}) {
    for (const SeenSpan& span : *spans) EXPECT_EQ(span.trace, trace) << span.text;
  }
  EXPECT_EQ(named(routed, "route").parent, "00f067aa0ba902b7");
  for (const char* leg : {"prefill", "decode"}) {
    EXPECT_EQ(named(routed, leg).parent, named(routed, "route").id);
  }
  EXPECT_EQ(prefilled[0].parent, named(routed, "prefill").id);
  EXPECT_EQ(decoded[0].parent, named(routed, "decode").id);
  EXPECT_NE(prefilled[0].text.find("lease_granted"), std::string::npos) << prefilled[0].text;
  for (const char* event : {"tracking_started", "read_posted", "read_validated", "first_token"}) {
    EXPECT_NE(decoded[0].text.find(event), std::string::npos) << event << decoded[0].text;
  }
  for (const char* who : {"P", "D", "router"}) std::filesystem::remove(file(who));
}

TEST_F(RouterTest, ATraceThatItsCallerDoesNotRecordIsNotRecorded) {
  const std::string file =
      ::testing::TempDir() + "kvlease-" + std::to_string(::getpid()) + ".jsonl";
  start_stack({.decodes = 1, .route_arguments = {"--otlp-traces-file", file}});
  const std::string unsampled = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
  ASSERT_TRUE(cluster_.call(
      "router", {.method = "POST",
                 .target = "/v1/completions",
                 .headers = {{"Content-Type", "application/json"}, {"traceparent", unsampled}},
                 .body = R"({"prompt":"a","max_tokens":2})"}));
  EXPECT_EQ(read_spans(file).size(), 0u);
  expect_router_works(1);  // two requests without a trace: two new ones
  const auto spans = read_spans(file);
  ASSERT_EQ(spans.size(), 6u);
  EXPECT_NE(spans.front().trace, spans.back().trace);
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace kvlease
