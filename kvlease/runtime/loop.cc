// The loop over Asio: one steady timer armed with the host's deadline, everything else is Asio's.
#include "kvlease/runtime/loop.h"

#include <time.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <optional>
#include <utility>

#include "kvlease/base/check.h"

namespace kvlease {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

// How many callbacks run before the host gets its turn: a flood of I/O must not delay a heartbeat.
constexpr std::size_t kCallbacksPerTurnMax = 256;

Instant read_clock() {
  timespec time{};
  KVL_CHECK(clock_gettime(CLOCK_MONOTONIC, &time) == 0, "CLOCK_MONOTONIC can be read");
  return Instant{std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec)};
}

}  // namespace

struct EventLoop::Impl {
  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
  asio::steady_timer timer{io};
  std::optional<asio::signal_set> signals;
  std::move_only_function<void(int)> on_signal;

  std::optional<Instant> now;    // of this turn, once it was asked for
  Instant armed = kNever;        // the deadline that the timer waits for
  bool only_timer_news = false;  // the callback that ran last said only that the timer was moved
  bool running = false;
  bool stopping = false;

  Instant read_now() {
    if (!running) return read_clock();
    if (!now) now = read_clock();
    return *now;
  }

  void arm(Instant deadline) {
    if (deadline == armed) return;
    armed = deadline;
    if (deadline == kNever) {
      timer.cancel();
      return;
    }
    // steady_clock is CLOCK_MONOTONIC here, so its time base is Instant's.
    timer.expires_at(asio::steady_timer::time_point(deadline.time_since_epoch()));
    timer.async_wait([this](error_code moved) {
      only_timer_news = static_cast<bool>(moved);
      if (!moved) armed = kNever;
    });
  }

  // Runs what is ready, up to the limit; returns how much that was.
  std::size_t run_ready(std::size_t limit) {
    std::size_t ran = 0;
    while (ran < limit && !stopping && io.poll_one() == 1) ++ran;
    return ran;
  }

  // Returns when the host should have a turn: `deadline` has come or at least one callback has run.
  void wait(Instant deadline) {
    if (run_ready(kCallbacksPerTurnMax) > 0 || stopping) return;
    arm(deadline);
    do {
      only_timer_news = false;
      io.run_one();
    } while (only_timer_news && !stopping);
    run_ready(kCallbacksPerTurnMax - 1);
  }

  void await_signal() {
    signals->async_wait([this](error_code cancelled, int signal) {
      if (cancelled) return;
      await_signal();
      on_signal(signal);
    });
  }
};

EventLoop::EventLoop() : impl_(std::make_unique<Impl>()) {}
EventLoop::~EventLoop() = default;

Instant EventLoop::now() { return impl_->read_now(); }

void EventLoop::run(Turn turn) {
  KVL_CHECK(!impl_->running, "run() is not called from within run()");
  impl_->running = true;
  impl_->stopping = false;
  while (true) {
    const Instant deadline = turn(impl_->read_now());
    if (impl_->stopping) break;
    impl_->now.reset();
    impl_->wait(deadline);
    if (impl_->stopping) break;
  }
  impl_->now.reset();
  impl_->running = false;
}

void EventLoop::stop() { impl_->stopping = true; }

void EventLoop::post(std::move_only_function<void()> function) {
  asio::post(impl_->io, std::move(function));
}

void EventLoop::on_termination_signal(std::move_only_function<void(int)> callback) {
  impl_->on_signal = std::move(callback);
  if (impl_->signals) return;
  impl_->signals.emplace(impl_->io, SIGTERM, SIGINT);
  impl_->await_signal();
}

boost::asio::io_context& EventLoop::io() { return impl_->io; }

}  // namespace kvlease
