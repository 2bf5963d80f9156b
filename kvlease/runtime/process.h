// Child processes on the loop: their lines of output and their end arrive as callbacks, and they do
// not outlive their parent. And what this process may do.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvlease/base/result.h"
#include "kvlease/runtime/loop.h"

namespace kvlease {

// How a process ended: `code` for an exit, `signal` (then not 0) for a kill.
struct ExitStatus {
  int code = 0;
  int signal = 0;
  bool success() const { return code == 0 && signal == 0; }
  bool operator==(const ExitStatus&) const = default;
};

// "exit code 3" or "signal 9 (Killed)".
std::string to_string(const ExitStatus& status);

enum class OutputStream { kStdout, kStderr };

struct EnvironmentVariable {
  std::string name;
  std::string value;
};

struct ProcessOptions {
  std::vector<std::string> argv;                 // argv[0] is a path, or a name to look up in PATH
  std::vector<EnvironmentVariable> environment;  // on top of this process's
  // Called with each line without its end; one longer than 64 KiB comes in pieces. Empty: the child
  // writes to this process's stdout and stderr.
  std::move_only_function<void(OutputStream stream, std::string_view line)> on_line = {};
  // Called once, after the last line. May be empty.
  std::move_only_function<void(ExitStatus status)> on_exit = {};
};

// Destroying it (not in one of its own callbacks) kills the child, if it still runs, and takes its
// status; no callback runs afterwards.
class ChildProcess {
 public:
  // The child gets SIGKILL when the thread that called this ends (Linux ties PR_SET_PDEATHSIG to
  // the thread); its stdin is /dev/null. It is forked: spawn before mapping much memory. Requires:
  // argv is not empty. Errors: kNotFound when argv[0] cannot be executed; kUnavailable when the
  // system has no room.
  static Result<ChildProcess> spawn(EventLoop& loop, ProcessOptions options);

  ChildProcess(ChildProcess&&) noexcept;
  ChildProcess& operator=(ChildProcess&&) noexcept;
  ~ChildProcess();

  pid_t pid() const;
  bool running() const;
  // Sends `signal`; without effect when the child has ended (its pid is never another's).
  void kill(int signal);

  class Impl;

 private:
  explicit ChildProcess(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

// The path of the running program.
std::string self_executable_path();

// How many files and sockets this process may have open, and raising that to what the system allows
// it. Source: getrlimit(2), RLIMIT_NOFILE.
std::size_t open_files_max();
void raise_open_files_max();

}  // namespace kvlease
