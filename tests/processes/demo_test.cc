// `kvlease demo` as users run it.
#include "kvlease/runtime/process.h"
#include "tests/processes/handoff_testing.h"

namespace kvlease {
namespace {

class Demo : public ProcessTest {};

TEST_F(Demo, EndsWithExitCodeZero) {
  EventLoop loop;
  std::string output;
  std::optional<ExitStatus> exit;
  {
    auto demo = ChildProcess::spawn(
        loop, {.argv = {kBinary, "demo", "--prompts", "2", "--kv-lease-duration", "0.8"},
               .environment = {},
               .on_line = [&](OutputStream,
                              std::string_view line) { output += std::string(line) + '\n'; },
               .on_exit =
                   [&](ExitStatus status) {
                     exit = status;
                     loop.stop();
                   }});
    ASSERT_TRUE(demo) << demo.error().message;
    const Instant end = loop.now() + std::chrono::seconds{60};
    loop.run([&](Instant now) {
      if (now >= end) loop.stop();
      return end;
    });
  }
  ASSERT_TRUE(exit) << output;
  EXPECT_TRUE(exit->success()) << to_string(*exit) << '\n' << output;
}

}  // namespace
}  // namespace kvlease
