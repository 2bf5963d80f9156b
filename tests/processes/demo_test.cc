// `kvlease demo` as users run it: its exit code, and its figures as data.
#include "kvlease/runtime/process.h"
#include "kvlease/wire/json_fields.h"
#include "tests/processes/handoff_testing.h"

namespace kvlease {
namespace {

class Demo : public ProcessTest, public ::testing::WithParamInterface<std::vector<std::string>> {};
INSTANTIATE_TEST_SUITE_P(Flags, Demo,
                         ::testing::Values(std::vector<std::string>{},
                                           std::vector<std::string>{"--prefill-tp", "4",
                                                                    "--decode-tp", "2",
                                                                    "--multi-turn"}));

TEST_P(Demo, EveryTextIsIdenticalAndEveryBlockIsBack) {
  EventLoop loop;
  std::string result;
  std::string story;
  std::optional<ExitStatus> exit;
  {
    auto demo = ChildProcess::spawn(
        loop, {.argv = joined({kBinary, "demo", "--kv-lease-duration", "1", "--json"}, GetParam()),
               .environment = {},
               .on_line =
                   [&](OutputStream stream, std::string_view line) {
                     std::string& text = stream == OutputStream::kStdout ? result : story;
                     text += std::string(line) + '\n';
                   },
               .on_exit =
                   [&](ExitStatus status) {
                     exit = status;
                     loop.stop();
                   }});
    ASSERT_TRUE(demo) << demo.error().message;
    const Instant end = loop.now() + std::chrono::seconds{90};
    loop.run([&](Instant now) {
      if (now >= end) loop.stop();
      return end;
    });
  }
  ASSERT_TRUE(exit) << story;
  EXPECT_TRUE(exit->success()) << to_string(*exit) << '\n' << story;

  std::optional<Error> problem;
  JsonObject json = open_json(result, 1 << 20, "the demo's result", problem);
  std::map<std::string, std::uint64_t> counts;
  for (const char* name :
       {"requests", "identical", "leases_granted", "blocks_free_before", "blocks_free_after"}) {
    json.integer(name, {}, counts[name]);
  }
  double reclaim = -1;
  double seconds = -1;
  json.number("reclaim_after_kill_s", reclaim);
  json.number("seconds", seconds);
  std::uint64_t ends = 0;
  std::uint64_t expired = 0;
  if (const auto by_end = json.object("leases_by_end", true)) {
    for (const auto& [end, count] : by_end->rest()) {
      ends += json_integer(count, {}).value_or(0);
      if (end == "expired") expired = json_integer(count, {}).value_or(0);
    }
  }
  ASSERT_FALSE(problem) << problem->message << '\n' << result;
  EXPECT_EQ(counts["identical"], counts["requests"]);
  EXPECT_GT(counts["requests"], 8u);
  EXPECT_GE(counts["leases_granted"], counts["requests"]);
  EXPECT_EQ(ends, counts["leases_granted"]);  // L6
  EXPECT_GE(expired, 2u);                     // nobody spoke for them but a decoder that died
  EXPECT_EQ(counts["blocks_free_after"], counts["blocks_free_before"]);
  EXPECT_GE(reclaim, 0);
  EXPECT_GT(seconds, 0);
}

}  // namespace
}  // namespace kvlease
