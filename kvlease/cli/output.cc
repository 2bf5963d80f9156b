// Implements output.h.
#include "kvlease/cli/output.h"

#include <poll.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
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

}  // namespace kvlease
