// Implements terminal.h with termios and the sequences that every terminal since the VT220 knows.
#include "kvlease/runtime/terminal.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>
#include <utility>

namespace kvlease {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr std::string_view kOpenScreen = "\x1b[?1049h\x1b[?25l";   // second screen, no cursor
constexpr std::string_view kCloseScreen = "\x1b[?25h\x1b[?1049l";  // and back
constexpr std::string_view kHome = "\x1b[H";
constexpr std::string_view kEraseToEndOfLine = "\x1b[K";
constexpr std::string_view kEraseBelow = "\x1b[J";

// A terminal that is gone takes nothing any more, which ends nothing here.
void write_all(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

bool stdout_is_terminal() { return ::isatty(STDOUT_FILENO) == 1; }

TerminalSize terminal_size() {
  winsize size{};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  if (!known || size.ws_row == 0) return {};
  return {.columns = size.ws_col, .rows = size.ws_row};
}

class TerminalScreen::Impl : public std::enable_shared_from_this<Impl> {
 public:
  // `keys`: a description of its own, since Asio makes it non-blocking, which stdout must not be.
  Impl(EventLoop& loop, Callbacks callbacks, int keys)
      : callbacks_(std::move(callbacks)), keys_(loop.io(), keys), resized_(loop.io(), SIGWINCH) {}

  Result<void> start() {
    if (::tcgetattr(keys_.native_handle(), &before_) != 0) {
      return error(ErrorCode::kUnavailable,
                   std::string("the terminal has no modes: ") + std::strerror(errno));
    }
    termios raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    raw.c_cc[VSUSP] = _POSIX_VDISABLE;
    ::tcsetattr(keys_.native_handle(), TCSANOW, &raw);
    is_open_ = true;
    write_all(kOpenScreen);
    read_key();
    await_resize();
    return {};
  }

  void close() {
    if (!std::exchange(is_open_, false)) return;
    callbacks_ = {};
    resized_.cancel();
    ::tcsetattr(keys_.native_handle(), TCSANOW, &before_);
    error_code ignored;
    keys_.close(ignored);
    write_all(kCloseScreen);
  }

 private:
  void read_key() {
    keys_.async_read_some(asio::buffer(key_),
                          [self = shared_from_this()](error_code failure, std::size_t got) {
                            if (failure || !self->is_open_) return;
                            if (got > 0) self->callbacks_.on_key(self->key_[0]);
                            if (self->is_open_) self->read_key();
                          });
  }

  void await_resize() {
    resized_.async_wait([self = shared_from_this()](error_code cancelled, int) {
      if (cancelled || !self->is_open_) return;
      self->callbacks_.on_resize();
      if (self->is_open_) self->await_resize();
    });
  }

  Callbacks callbacks_;
  asio::posix::stream_descriptor keys_;
  asio::signal_set resized_;
  termios before_{};
  bool is_open_ = false;
  std::array<char, 1> key_{};
};

TerminalScreen::TerminalScreen(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
TerminalScreen::TerminalScreen(TerminalScreen&&) noexcept = default;

TerminalScreen::~TerminalScreen() {
  if (impl_) impl_->close();
}

Result<TerminalScreen> TerminalScreen::open(EventLoop& loop, Callbacks callbacks) {
  const int keys = ::open("/dev/tty", O_RDONLY | O_CLOEXEC | O_NOCTTY);
  if (keys < 0) {
    return error(ErrorCode::kUnavailable,
                 std::string("no terminal to read keys from: ") + std::strerror(errno));
  }
  auto impl = std::make_shared<Impl>(loop, std::move(callbacks), keys);
  if (const auto started = impl->start(); !started) return std::unexpected(started.error());
  return TerminalScreen(std::move(impl));
}

void TerminalScreen::draw(std::string_view frame) {
  std::string out(kHome);
  while (!frame.empty()) {
    const std::size_t end = std::min(frame.find('\n'), frame.size());
    out += frame.substr(0, end);
    out += kEraseToEndOfLine;
    frame.remove_prefix(std::min(end + 1, frame.size()));
    if (!frame.empty()) out += '\n';  // the last line does not scroll the screen
  }
  write_all(out += kEraseBelow);
}

}  // namespace kvlease
