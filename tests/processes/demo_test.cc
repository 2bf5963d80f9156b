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
                                                                    "--multi-turn"},
                                           std::vector<std::string>{"--failover"}));

struct DemoRun {
  std::string result;  // stdout
  std::string story;   // stderr
  std::optional<ExitStatus> exit;
};

DemoRun run_demo(const std::vector<std::string>& arguments, Duration limit) {
  EventLoop loop;
  DemoRun run;
  auto demo = ChildProcess::spawn(
      loop, {.argv = joined({kBinary, "demo", "--json"}, arguments),
             .environment = {},
             .on_line =
                 [&](OutputStream stream, std::string_view line) {
                   std::string& text = stream == OutputStream::kStdout ? run.result : run.story;
                   text += std::string(line) + '\n';
                 },
             .on_exit =
                 [&](ExitStatus status) {
                   run.exit = status;
                   loop.stop();
                 }});
  if (!demo) {
    ADD_FAILURE() << demo.error().message;
    return run;
  }
  const Instant end = loop.now() + limit;
  loop.run([&](Instant now) {
    if (now >= end) loop.stop();
    return end;
  });
  return run;
}

TEST_P(Demo, EveryTextIsIdenticalAndEveryBlockIsBack) {
  const auto [result, story, exit] =
      run_demo(joined({"--kv-lease-duration", "1"}, GetParam()), std::chrono::seconds{90});
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

// L43, F14: three times what they can do, and no lease ends that a decoder wants.
TEST_F(ProcessTest, F14_OverloadedInstancesGoOnWithWhatTheyCanDo) {
  const auto [result, story, exit] =
      run_demo({"--overload", "--overload-seconds", "12"}, std::chrono::seconds{120});
  ASSERT_TRUE(exit) << story;
  EXPECT_TRUE(exit->success()) << to_string(*exit) << '\n' << story << result;
  std::optional<Error> problem;
  JsonObject json = open_json(result, 1 << 20, "the demo's result", problem);
  std::map<std::string, std::uint64_t> counts;
  for (const char* name : {"offered", "answered", "refused", "wrong", "leases_granted"}) {
    json.integer(name, {}, counts[name]);
  }
  double longest = 0;
  double duration = 0;
  json.number("longest_lease_s", longest);
  json.number("lease_duration_s", duration);
  ASSERT_FALSE(problem) << problem->message << '\n' << result;
  EXPECT_EQ(counts["wrong"], 0u);
  EXPECT_EQ(counts["answered"] + counts["refused"], counts["offered"]);
  EXPECT_GT(counts["refused"], 0u);
  EXPECT_GE(counts["leases_granted"], counts["answered"]);
  EXPECT_GT(longest, duration);  // they did wait in the queues
}

}  // namespace
}  // namespace kvlease
