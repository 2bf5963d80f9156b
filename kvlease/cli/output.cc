// Implements output.h.
#include "kvlease/cli/output.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

namespace kvlease {

void write_line(std::string_view line) {
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fputc('\n', stdout);
  std::fflush(stdout);
}

EventLines::EventLines(Logger log) : log_(std::move(log)) {}

void EventLines::write(std::string_view line) {
  const std::string text = std::string(line) + '\n';
  pollfd out{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  const bool room = text.size() <= PIPE_BUF && ::poll(&out, 1, 0) == 1 &&
                    (out.revents & (POLLERR | POLLHUP)) == 0;  // room for PIPE_BUF bytes, at once
  if (room && ::write(STDOUT_FILENO, text.data(), text.size()) > 0) return;
  if (dropped_++ == 0) {
    log_.warning("--log-events: stdout does not take the lines; some are lost");
  }
}

Result<LineFile> LineFile::open(const std::string& path, Logger log) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) {
    return error(ErrorCode::kUnavailable,
                 "--otlp-traces-file: cannot write to " + path + ": " + std::strerror(errno));
  }
  return LineFile(std::move(log), fd);
}

LineFile::~LineFile() {
  if (fd_ >= 0) ::close(fd_);
}

void LineFile::write(std::string_view line) {
  const std::string text = std::string(line) + '\n';
  if (::write(fd_, text.data(), text.size()) == static_cast<ssize_t>(text.size())) return;
  if (std::exchange(failed_, true)) return;
  log_.warning(std::string("--otlp-traces-file does not take the lines; some are lost: ") +
               std::strerror(errno));
}

}  // namespace kvlease
