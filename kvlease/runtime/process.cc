// Children by fork and exec, watched through a pidfd: no SIGCHLD handler, no polling. posix_spawn
// would not do: it cannot set PR_SET_PDEATHSIG.
#include "kvlease/runtime/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <optional>
#include <utility>

#include "kvlease/base/check.h"

namespace kvlease {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr std::size_t kLineBytesMax = 64 * 1024;
constexpr std::size_t kReadBytes = 16 * 1024;
// What a pipe can still hold when its writer ends (/proc/sys/fs/pipe-max-size); what a grandchild
// writes after that is not waited for.
constexpr std::size_t kPipeBytesMax = 1024 * 1024;
constexpr std::array kOutputStreams = {OutputStream::kStdout, OutputStream::kStderr};

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    FileDescriptor moved = std::move(other);
    std::swap(fd_, moved.fd_);
    return *this;
  }
  ~FileDescriptor() { reset(); }

  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  void reset() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

struct Pipe {
  FileDescriptor read_end;
  FileDescriptor write_end;
};

// What the child needs, made before the fork: after it the child may only make system calls.
struct ChildSetup {
  std::vector<char*> argv;
  std::vector<std::string> environment_text;
  std::vector<char*> environment;
  FileDescriptor null_input;
  std::optional<Pipe> out;  // only when lines are wanted
  std::optional<Pipe> err;
  Pipe failure;  // carries errno when the exec fails, else closes without a byte
};

std::unexpected<Error> no_room(std::string_view what) {
  return error(ErrorCode::kUnavailable,
               "a process cannot be started: " + std::string(what) + ": " + strerror(errno));
}

Result<Pipe> make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return no_room("no pipe");
  return Pipe{.read_end = FileDescriptor(ends[0]), .write_end = FileDescriptor(ends[1])};
}

// This process's environment with `changes` on top, as NAME=value.
std::vector<std::string> merged_environment(const std::vector<EnvironmentVariable>& changes) {
  std::vector<std::string> merged;
  const auto is_changed = [&](std::string_view entry) {
    for (const EnvironmentVariable& change : changes) {
      if (entry.starts_with(change.name + "=")) return true;
    }
    return false;
  };
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!is_changed(*entry)) merged.emplace_back(*entry);
  }
  for (const EnvironmentVariable& change : changes) {
    merged.push_back(change.name + "=" + change.value);
  }
  return merged;
}

Result<ChildSetup> prepare(ProcessOptions& options) {
  ChildSetup setup;
  for (std::string& argument : options.argv) setup.argv.push_back(argument.data());
  setup.argv.push_back(nullptr);
  setup.environment_text = merged_environment(options.environment);
  for (std::string& entry : setup.environment_text) setup.environment.push_back(entry.data());
  setup.environment.push_back(nullptr);

  setup.null_input = FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (setup.null_input.get() < 0) return no_room("/dev/null");
  auto failure = make_pipe();
  if (!failure) return std::unexpected(std::move(failure.error()));
  setup.failure = std::move(*failure);
  if (options.on_line) {
    for (std::optional<Pipe>* stream : {&setup.out, &setup.err}) {
      auto pipe = make_pipe();
      if (!pipe) return std::unexpected(std::move(pipe.error()));
      *stream = std::move(*pipe);
    }
  }
  return setup;
}

// The child's side, between fork and exec; all signals are blocked, so that no handler of the
// parent runs here.
[[noreturn]] void become(const ChildSetup& setup, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // it was gone before the line above
  for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
  dup2(setup.null_input.get(), STDIN_FILENO);
  if (setup.out) dup2(setup.out->write_end.get(), STDOUT_FILENO);
  if (setup.err) dup2(setup.err->write_end.get(), STDERR_FILENO);
  // Sockets that libraries opened are not always close-on-exec; a child must not keep one open.
  syscall(SYS_close_range, STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execvpe(setup.argv[0], setup.argv.data(), setup.environment.data());
  const int failure = errno;
  const ssize_t written = ::write(setup.failure.write_end.get(), &failure, sizeof failure);
  _exit(written == sizeof failure ? 127 : 126);
}

pid_t fork_child(const ChildSetup& setup) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) become(setup, parent);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return pid;
}

// The errno with which the exec failed; 0 when it succeeded.
int exec_failure(int read_end) {
  int failure = 0;
  ssize_t got = 0;
  do {
    got = ::read(read_end, &failure, sizeof failure);
  } while (got < 0 && errno == EINTR);
  return got == sizeof failure ? failure : 0;
}

ExitStatus reap(pid_t pid) {
  int status = 0;
  pid_t reaped = 0;
  do {
    reaped = waitpid(pid, &status, 0);
  } while (reaped < 0 && errno == EINTR);
  KVL_CHECK(reaped == pid, "a child is waited for once, and by its owner");
  return WIFSIGNALED(status) ? ExitStatus{.signal = WTERMSIG(status)}
                             : ExitStatus{.code = WEXITSTATUS(status)};
}

}  // namespace

std::string to_string(const ExitStatus& status) {
  if (status.signal == 0) return "exit code " + std::to_string(status.code);
  return "signal " + std::to_string(status.signal) + " (" + strsignal(status.signal) + ")";
}

class ChildProcess::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(EventLoop& loop, ProcessOptions options, pid_t pid)
      : options_(std::move(options)),
        pid_(pid),
        end_(loop.io()),
        streams_{Stream(loop.io()), Stream(loop.io())} {}

  // Takes over the pidfd and the pipes. Errors: kUnavailable; the child is killed by the
  // destructor.
  Result<void> watch(ChildSetup& setup);
  void close();

  pid_t pid() const { return pid_; }
  bool running() const { return running_; }
  void kill(int signal) {
    if (running_) ::kill(pid_, signal);
  }

 private:
  struct Stream {
    explicit Stream(asio::io_context& io) : descriptor(io) {}
    asio::posix::stream_descriptor descriptor;
    std::string line;  // what came after the last line end
  };

  void watch_output(OutputStream which);
  Result<void> watch_fd(asio::posix::stream_descriptor& descriptor, FileDescriptor fd);
  // Takes some of what is there, without waiting.
  enum class Read { kSome, kNothing, kEnd };
  Read read_some(OutputStream which);
  void on_output(OutputStream which, std::string_view bytes);
  void on_end();
  Stream& stream(OutputStream which) { return streams_[static_cast<std::size_t>(which)]; }
  void deliver(OutputStream which, std::string line) {
    if (!closed_) options_.on_line(which, line);
  }

  ProcessOptions options_;
  const pid_t pid_;
  bool running_ = true;
  bool closed_ = false;  // no callback runs any more
  asio::posix::stream_descriptor end_;
  std::array<Stream, 2> streams_;
};

Result<void> ChildProcess::Impl::watch(ChildSetup& setup) {
  auto watched = watch_fd(end_, FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0))));
  if (!watched) return watched;
  end_.async_wait(asio::posix::stream_descriptor::wait_read,
                  [self = shared_from_this()](error_code cancelled) {
                    if (!cancelled && !self->closed_) self->on_end();
                  });
  if (!setup.out) return {};
  for (const OutputStream which : kOutputStreams) {
    Pipe& pipe = which == OutputStream::kStdout ? *setup.out : *setup.err;
    watched = watch_fd(stream(which).descriptor, std::move(pipe.read_end));
    if (!watched) return watched;
    watch_output(which);
  }
  return {};
}

Result<void> ChildProcess::Impl::watch_fd(asio::posix::stream_descriptor& descriptor,
                                          FileDescriptor fd) {
  error_code failure;
  if (fd.get() < 0) return no_room("it cannot be watched (Linux can since 5.3)");
  descriptor.assign(fd.get(), failure);
  if (!failure) {
    fd.release();
    descriptor.native_non_blocking(true, failure);
  }
  errno = failure.value();
  if (failure) return no_room("it cannot be watched");
  return {};
}

void ChildProcess::Impl::watch_output(OutputStream which) {
  stream(which).descriptor.async_wait(asio::posix::stream_descriptor::wait_read,
                                      [self = shared_from_this(), which](error_code cancelled) {
                                        if (cancelled || self->closed_) return;
                                        const Read read = self->read_some(which);
                                        if (read != Read::kEnd && !self->closed_)
                                          self->watch_output(which);
                                      });
}

ChildProcess::Impl::Read ChildProcess::Impl::read_some(OutputStream which) {
  std::array<char, kReadBytes> bytes;
  const ssize_t got = ::read(stream(which).descriptor.native_handle(), bytes.data(), bytes.size());
  if (got > 0) {
    on_output(which, {bytes.data(), static_cast<std::size_t>(got)});
    return Read::kSome;
  }
  return got < 0 && (errno == EAGAIN || errno == EINTR) ? Read::kNothing : Read::kEnd;
}

void ChildProcess::Impl::on_output(OutputStream which, std::string_view bytes) {
  std::string& line = stream(which).line;
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    const std::size_t size = std::min({end, bytes.size(), kLineBytesMax - line.size()});
    line += bytes.substr(0, size);
    bytes.remove_prefix(size);
    if (size == end) bytes.remove_prefix(1);
    if (size == end || line.size() == kLineBytesMax) deliver(which, std::exchange(line, {}));
  }
}

void ChildProcess::Impl::on_end() {
  const ExitStatus status = reap(pid_);
  running_ = false;
  if (options_.on_line) {
    for (const OutputStream which : kOutputStreams) {
      for (std::size_t bytes = 0; bytes < kPipeBytesMax && !closed_; bytes += kReadBytes) {
        if (read_some(which) != Read::kSome) break;
      }
      if (std::string rest = std::exchange(stream(which).line, {}); !rest.empty()) {
        deliver(which, std::move(rest));
      }
    }
  }
  if (closed_) return;
  auto on_exit = std::exchange(options_.on_exit, nullptr);
  options_.on_line = nullptr;  // what it holds may hold this process
  close();
  if (on_exit) on_exit(status);
}

void ChildProcess::Impl::close() {
  closed_ = true;
  error_code ignored;
  end_.close(ignored);
  for (Stream& each : streams_) each.descriptor.close(ignored);
  if (!running_) return;
  kill(SIGKILL);
  reap(pid_);
  running_ = false;
}

Result<ChildProcess> ChildProcess::spawn(EventLoop& loop, ProcessOptions options) {
  KVL_CHECK(!options.argv.empty(), "a process has a program");
  auto setup = prepare(options);
  if (!setup) return std::unexpected(std::move(setup.error()));
  const pid_t pid = fork_child(*setup);
  if (pid < 0) return no_room("no fork");
  setup->failure.write_end.reset();
  if (setup->out) setup->out->write_end.reset();
  if (setup->err) setup->err->write_end.reset();
  if (const int failure = exec_failure(setup->failure.read_end.get()); failure != 0) {
    reap(pid);
    return error(ErrorCode::kNotFound,
                 "\"" + options.argv[0] + "\" cannot be executed: " + strerror(failure));
  }
  ChildProcess process(std::make_shared<Impl>(loop, std::move(options), pid));
  if (auto watched = process.impl_->watch(*setup); !watched) {
    return std::unexpected(std::move(watched.error()));
  }
  return process;
}

ChildProcess::ChildProcess(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChildProcess::ChildProcess(ChildProcess&&) noexcept = default;

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  ChildProcess moved = std::move(other);
  std::swap(impl_, moved.impl_);
  return *this;
}

ChildProcess::~ChildProcess() {
  if (impl_) impl_->close();
}

pid_t ChildProcess::pid() const { return impl_->pid(); }
bool ChildProcess::running() const { return impl_->running(); }
void ChildProcess::kill(int signal) { impl_->kill(signal); }

std::string self_executable_path() {
  std::array<char, 4096> path;
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  KVL_CHECK(length > 0 && static_cast<std::size_t>(length) < path.size(),
            "/proc/self/exe names the program");
  return {path.data(), static_cast<std::size_t>(length)};
}

std::size_t open_files_max() {
  rlimit limit{};
  KVL_CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0, "the kernel knows RLIMIT_NOFILE");
  return limit.rlim_cur;
}

void raise_open_files_max() {
  rlimit limit{};
  KVL_CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0, "the kernel knows RLIMIT_NOFILE");
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);  // where that is not allowed, the old limit stays
}

}  // namespace kvlease
