// `kvlease top` as users run it, before real instances and a router.
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <optional>

#include "kvlease/runtime/process.h"
#include "tests/processes/router_testing.h"

namespace kvlease {
namespace {

struct Printed {
  std::optional<ExitStatus> exit;
  std::string out;
  std::string err;
};

class TopTest : public RouterTest {
 protected:
  // Runs it, with a pipe for its stdout, to its end.
  static Printed top(const std::vector<std::string>& arguments,
                     std::vector<EnvironmentVariable> environment = {}) {
    EventLoop loop;
    Printed printed;
    auto child = ChildProcess::spawn(loop, {.argv = joined({kBinary, "top"}, arguments),
                                            .environment = std::move(environment),
                                            .on_line =
                                                [&](OutputStream stream, std::string_view line) {
                                                  std::string& text =
                                                      stream == OutputStream::kStdout ? printed.out
                                                                                      : printed.err;
                                                  text += std::string(line) + '\n';
                                                },
                                            .on_exit =
                                                [&](ExitStatus status) {
                                                  printed.exit = status;
                                                  loop.stop();
                                                }});
    if (!child) {
      ADD_FAILURE() << child.error().message;
      return printed;
    }
    const Instant end = loop.now() + kLimit;
    loop.run([&](Instant now) {
      if (now >= end) loop.stop();
      return end;
    });
    return printed;
  }
  std::string address(const std::string& name) {
    return "127.0.0.1:" + std::to_string(cluster_.port(name));
  }
  static bool has(const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
  }
};

TEST_F(TopTest, ARouterStandsForItsInstances) {
  start_stack({.prefills = 1, .decodes = 2, .lease_seconds = 60});
  prefill("P1", prompt_text(1));
  ASSERT_TRUE(wait_for("P1", "lease_granted"));
  const std::string lease = last("P1", "lease_granted").lease;
  // One of its instances is named once more.
  const Printed printed = top({"http://" + address("router"), address("P1"), "--once"});
  ASSERT_TRUE(printed.exit && printed.exit->success()) << printed.err;
  EXPECT_TRUE(has(printed.out, "3 of 3 instances, 1 leases")) << printed.out;
  for (const char* name : {"P1", "D1", "D2"}) {
    EXPECT_TRUE(has(printed.out, std::string("\n") + name)) << printed.out;
    EXPECT_TRUE(has(printed.out, address(name))) << printed.out;
  }
  EXPECT_TRUE(has(printed.out, "prefill")) << printed.out;
  EXPECT_TRUE(has(printed.out, "\n" + lease)) << printed.out;
  EXPECT_TRUE(has(printed.out, "lease_granted")) << printed.out;
  EXPECT_FALSE(has(printed.out, "\x1b")) << printed.out;
}

TEST_F(TopTest, WhoDoesNotAnswerStopsNobody) {
  start("P", transfer_config("kv_producer", "", "P"));
  start("Q", transfer_config("kv_producer", "", "Q"));
  const std::string gone = address("Q");
  cluster_.signal("Q", SIGKILL);
  ASSERT_TRUE(cluster_.wait_until([&] { return !cluster_.running("Q"); }, kLimit));
  start("R", transfer_config("kv_producer", "", "R"));
  const std::string silent = address("R");
  cluster_.signal("R", SIGSTOP);
  const Printed printed = top({gone, address("P"), silent});  // not a terminal: once
  cluster_.signal("R", SIGCONT);
  ASSERT_TRUE(printed.exit && printed.exit->success()) << printed.err;
  EXPECT_TRUE(has(printed.out, "1 of 3 instances")) << printed.out;
  EXPECT_TRUE(has(printed.out, "Connection refused")) << printed.out;
  EXPECT_TRUE(has(printed.out, "no answer within 1000 ms")) << printed.out;
  const Printed nobody = top({gone});
  ASSERT_TRUE(nobody.exit);
  EXPECT_EQ(nobody.exit->code, 1);
  EXPECT_TRUE(has(nobody.out, "0 of 1 instances")) << nobody.out;
}

TEST_F(TopTest, ThePeerKeyOpensTheInstances) {  // L51
  start("P", joined(transfer_config("kv_producer", "", "P"), {"--peer-key", "the-key"}));
  const Printed without = top({address("P")});
  ASSERT_TRUE(without.exit);
  EXPECT_EQ(without.exit->code, 1);
  EXPECT_TRUE(has(without.out, "HTTP 401: the header X-Kvlease-Peer-Key")) << without.out;

  const std::string file = testing::TempDir() + "peer-key-" + std::to_string(cluster_.port("P"));
  std::ofstream(file) << "the-key\n";
  const std::vector<Printed> with = {
      top({address("P"), "--peer-key", "the-key"}), top({address("P"), "--peer-key-file", file}),
      top({address("P")}, {{.name = "KVLEASE_PEER_KEY", .value = "the-key"}})};
  for (const Printed& printed : with) {
    ASSERT_TRUE(printed.exit && printed.exit->success()) << printed.out << printed.err;
    EXPECT_TRUE(has(printed.out, "1 of 1 instances")) << printed.out;
  }
  std::remove(file.c_str());
}

// `kvlease top` in a terminal of its own.
class InTerminal {
 public:
  explicit InTerminal(const std::string& url) {
    winsize size{.ws_row = 24, .ws_col = 90, .ws_xpixel = 0, .ws_ypixel = 0};
    pid_ = ::forkpty(&terminal_, nullptr, nullptr, &size);
    if (pid_ == 0) {
      ::execl(kBinary.c_str(), "kvlease", "top", url.c_str(), static_cast<char*>(nullptr));
      ::_exit(127);
    }
  }
  InTerminal(const InTerminal&) = delete;
  InTerminal& operator=(const InTerminal&) = delete;
  ~InTerminal() {
    if (!exit_) ::kill(pid_, SIGKILL);
    if (!exit_) ::waitpid(pid_, nullptr, 0);
    ::close(terminal_);
  }

  // Reads on until what was drawn has `part`, or the terminal has ended; false at the limit.
  bool wait_for(std::string_view part) {
    EventLoop loop;  // for its clock
    const Instant end = loop.now() + kLimit;
    while (shown_.find(part) == std::string::npos && loop.now() < end && read_more()) {
    }
    return shown_.find(part) != std::string::npos;
  }
  // The same for a whole picture that has one part, and not another.
  bool wait_for_picture(std::string_view with, std::string_view without) {
    EventLoop loop;
    const Instant end = loop.now() + kLimit;
    do {
      const std::size_t last = shown_.rfind("\x1b[J");
      const std::size_t home = shown_.rfind("\x1b[H", last);
      if (last == std::string::npos || home == std::string::npos) continue;
      const std::string_view picture = std::string_view(shown_).substr(home, last - home);
      if (picture.contains(with) && !picture.contains(without)) return true;
    } while (loop.now() < end && read_more());
    return false;
  }
  void press(char key) { ASSERT_EQ(::write(terminal_, &key, 1), 1); }
  void resize(unsigned short rows, unsigned short columns) {
    winsize size{.ws_row = rows, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    ::ioctl(terminal_, TIOCSWINSZ, &size);  // which sends SIGWINCH
  }
  // The status of waitpid().
  int wait_for_exit() {
    while (read_more()) {
    }
    int status = -1;
    ::waitpid(pid_, &status, 0);
    exit_ = status;
    return status;
  }
  const std::string& shown() const { return shown_; }

 private:
  bool read_more() {
    pollfd readable{.fd = terminal_, .events = POLLIN, .revents = 0};
    if (::poll(&readable, 1, 10'000) != 1) return false;
    char bytes[4096];
    const ssize_t got = ::read(terminal_, bytes, sizeof bytes);
    if (got > 0) shown_.append(bytes, static_cast<std::size_t>(got));
    return got > 0;
  }

  int terminal_ = -1;
  pid_t pid_ = -1;
  std::optional<int> exit_;
  std::string shown_;
};

TEST_F(TopTest, InATerminalItDrawsResizesAndQuits) {
  start("P", transfer_config("kv_producer", "", "the-engine"));
  InTerminal top("http://" + address("P"));
  EXPECT_TRUE(top.wait_for("\x1b[?1049h")) << top.shown();
  EXPECT_TRUE(top.wait_for("the-engine")) << top.shown();
  EXPECT_TRUE(top.wait_for_picture("ADDRESS", "never")) << top.shown();
  EXPECT_TRUE(has(top.shown(), "q quits")) << top.shown();
  top.resize(12, 50);
  EXPECT_TRUE(top.wait_for_picture("INSTANCE", "ADDRESS")) << top.shown();
  top.press('q');
  EXPECT_EQ(top.wait_for_exit(), 0);
  EXPECT_TRUE(top.shown().ends_with("\x1b[?25h\x1b[?1049l")) << top.shown();
}

TEST_F(TopTest, ASignalPutsTheTerminalBackToo) {
  start("P", transfer_config("kv_producer", "", "the-engine"));
  InTerminal top(address("P"));
  EXPECT_TRUE(top.wait_for("the-engine")) << top.shown();
  top.press('\x03');  // Ctrl-C
  EXPECT_EQ(top.wait_for_exit(), 0);
  EXPECT_TRUE(top.shown().ends_with("\x1b[?25h\x1b[?1049l")) << top.shown();
}

TEST_F(TopTest, WhatCannotBeAUrlOrAKeyIsRefused) {
  const struct {
    std::vector<std::string> arguments;
    std::string_view message;
  } rows[] = {{{}, "URL"},
              {{"https://127.0.0.1:1"}, "https"},
              {{"127.0.0.1:1/metrics"}, "without a path"},
              {{"127.0.0.1:1", "--peer-key", ""}, "--peer-key"},
              {{"127.0.0.1:1", "--peer-key-file", "/nowhere/at/all"}, "/nowhere/at/all"},
              {{"127.0.0.1:1", "--peer-key-file", "/dev/null"}, "not empty"}};
  for (const auto& row : rows) {
    const Printed printed = top(row.arguments);
    ASSERT_TRUE(printed.exit);
    EXPECT_EQ(printed.exit->code, 2) << printed.out;
    EXPECT_TRUE(has(printed.err, row.message)) << printed.err;
  }
}

}  // namespace
}  // namespace kvlease
