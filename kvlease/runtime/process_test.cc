// Real children: their lines, their end, and that they do not outlive their parent.
#include "kvlease/runtime/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <utility>
#include <vector>

#include "kvlease/runtime/loop_testing.h"
#include "kvlease/runtime/socket_testing.h"

namespace kvlease {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr Duration kLimit = 20s;

class ProcessTest : public testing::Test {
 protected:
  void run_shell(const std::string& script, std::vector<EnvironmentVariable> environment) {
    auto spawned = ChildProcess::spawn(
        loop, {.argv = {"sh", "-c", script},
               .environment = std::move(environment),
               .on_line =
                   [this](OutputStream stream, std::string_view line) {
                     (stream == OutputStream::kStdout ? out : err).emplace_back(line);
                   },
               .on_exit = [this](ExitStatus exit) { status = exit; }});
    ASSERT_TRUE(spawned) << spawned.error().message;
    process.emplace(std::move(*spawned));
  }
  void run_shell(const std::string& script) { run_shell(script, {}); }
  bool wait_for(const std::function<bool()>& done) { return run_until(loop, done, kLimit); }
  bool wait_for_exit() {
    return wait_for([&] { return status.has_value(); });
  }

  EventLoop loop;
  std::vector<std::string> out;
  std::vector<std::string> err;
  std::optional<ExitStatus> status;
  std::optional<ChildProcess> process;
};

TEST_F(ProcessTest, DeliversLinesThenTheExitCode) {
  run_shell("echo one; echo; echo problem >&2; printf 'no end'; exit 3");
  ASSERT_TRUE(wait_for_exit());
  EXPECT_THAT(out, ElementsAre("one", "", "no end"));
  EXPECT_THAT(err, ElementsAre("problem"));
  EXPECT_EQ(*status, (ExitStatus{.code = 3}));
  EXPECT_EQ(to_string(*status), "exit code 3");
  EXPECT_FALSE(process->running());
  process->kill(SIGTERM);  // no effect
}

TEST_F(ProcessTest, LinesArriveWhileItRuns) {
  run_shell("echo ready; read never; sleep 1000");
  EXPECT_TRUE(wait_for([&] { return out.size() == 1; }));
  EXPECT_TRUE(process->running());
  EXPECT_EQ(kill(process->pid(), 0), 0);
  process->kill(SIGTERM);
  ASSERT_TRUE(wait_for_exit());
  EXPECT_EQ(*status, (ExitStatus{.signal = SIGTERM}));
  EXPECT_EQ(to_string(*status), "signal 15 (Terminated)");
}

TEST_F(ProcessTest, LosesNothingOfALargeOutput) {
  run_shell("i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done");
  ASSERT_TRUE(wait_for_exit());
  ASSERT_EQ(out.size(), 20000u);
  EXPECT_EQ(out.back(), "line 19999");
}

TEST_F(ProcessTest, AnEndlessLineComesInPieces) {
  run_shell("head -c 200000 /dev/zero");
  ASSERT_TRUE(wait_for_exit());
  ASSERT_EQ(out.size(), 4u);
  EXPECT_EQ(out[0].size(), 65536u);
  EXPECT_EQ(out[3].size(), 200000u - 3 * 65536u);
}

TEST_F(ProcessTest, ItsEndDoesNotWaitForGrandchildren) {
  run_shell("sleep 1000 & echo $!");
  ASSERT_TRUE(wait_for_exit());
  ASSERT_EQ(out.size(), 1u);
  kill(static_cast<pid_t>(std::stol(out[0])), SIGKILL);
}

TEST_F(ProcessTest, TheEnvironmentIsOursWithChanges) {
  setenv("KVL_TEST_KEPT", "kept", 1);
  setenv("KVL_TEST_CHANGED", "old", 1);
  run_shell("echo $KVL_TEST_KEPT $KVL_TEST_CHANGED $KVL_TEST_NEW",
            {{"KVL_TEST_CHANGED", "changed"}, {"KVL_TEST_NEW", "new"}});
  ASSERT_TRUE(wait_for_exit());
  EXPECT_THAT(out, ElementsAre("kept changed new"));
}

TEST_F(ProcessTest, InheritsNoSocketAndNoBlockedSignal) {
  const RawListener open_socket(1);
  run_shell("ls -l /proc/self/fd; grep -E 'Sig(Blk|Ign)' /proc/self/status");
  ASSERT_TRUE(wait_for_exit());
  std::string all;
  for (const std::string& line : out) all += line + "\n";
  EXPECT_THAT(all, Not(HasSubstr("socket:")));
  EXPECT_THAT(all, Not(HasSubstr("eventpoll")));
  EXPECT_THAT(all, HasSubstr("SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n"));
}

TEST_F(ProcessTest, DestroyingItKillsTheChild) {
  run_shell("echo ready; exec sleep 1000");
  EXPECT_TRUE(wait_for([&] { return out.size() == 1; }));
  const pid_t pid = process->pid();
  process.reset();
  EXPECT_EQ(kill(pid, 0), -1) << "it is gone and its status was taken";
  EXPECT_TRUE(wait_for([turns = 0]() mutable { return ++turns == 3; }));
  EXPECT_EQ(status, std::nullopt);
}

TEST_F(ProcessTest, CanBeDestroyedInItsOwnCallbacks) {
  for (const bool at_line : {true, false}) {
    std::optional<ChildProcess> own;
    int called = 0;
    ProcessOptions options{.argv = {"sh", "-c", "echo a; echo b"}};
    options.on_line = [&](OutputStream, std::string_view) {
      if (at_line) {
        ++called;
        own.reset();
      }
    };
    options.on_exit = [&](ExitStatus) {
      ++called;
      own.reset();
    };
    auto spawned = ChildProcess::spawn(loop, std::move(options));
    ASSERT_TRUE(spawned);
    own.emplace(std::move(*spawned));
    EXPECT_TRUE(wait_for([&] { return called > 0; }));
    EXPECT_TRUE(wait_for([turns = 0]() mutable { return ++turns == 3; }));
    EXPECT_EQ(called, 1);
  }
}

TEST_F(ProcessTest, AMissingProgramIsAnError) {
  const auto spawned = ChildProcess::spawn(loop, {.argv = {"/no/such/program"}});
  ASSERT_FALSE(spawned);
  EXPECT_EQ(spawned.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(spawned.error().message,
            "\"/no/such/program\" cannot be executed: No such file or directory");
}

// A parent (a fork of this test) is killed; the end of the pipe that its child inherited as stdout
// says that the child is gone, too.
TEST(Process, ChildrenDieWithTheirParent) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
    EventLoop loop;
    const auto child =
        ChildProcess::spawn(loop, {.argv = {"sh", "-c", "echo ready; exec sleep 1000"}});
    if (child) pause();
    _exit(1);
  }
  close(ends[1]);
  char bytes[16];
  EXPECT_EQ(read(ends[0], bytes, sizeof bytes), 6);  // "ready\n"
  kill(parent, SIGKILL);
  EXPECT_EQ(read(ends[0], bytes, sizeof bytes), 0) << "the child still holds the pipe";
  EXPECT_EQ(waitpid(parent, nullptr, 0), parent);
  close(ends[0]);
}

TEST(SelfExecutablePath, NamesThisProgram) {
  EXPECT_EQ(access(self_executable_path().c_str(), X_OK), 0);
  EXPECT_THAT(self_executable_path(), HasSubstr("runtime_tests"));
}

}  // namespace
}  // namespace kvlease
