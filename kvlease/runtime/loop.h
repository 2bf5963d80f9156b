// The one loop of a process: it owns the thread on which all state lives, reads the clock once a
// turn, and sleeps until the host's next deadline, completed I/O or a function posted by another
// thread. There are no ticks and no timers beside it: next_deadline() is the only question.
#pragma once

#include <functional>
#include <memory>

#include "kvlease/base/time.h"

namespace boost::asio {
class io_context;
}

namespace kvlease {

// Threads: everything but post() belongs to the thread that calls run().
class EventLoop {
 public:
  // What the host does in a turn; returns when it wants the next one at the latest (kNever: only
  // when something happens). How late a turn is against what it had asked for, the host knows
  // (L47).
  using Turn = std::move_only_function<Instant(Instant now)>;

  EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;
  // Requires: everything that was made on this loop (servers, calls, processes) is gone.
  ~EventLoop();

  // CLOCK_MONOTONIC, read once per turn and constant within it, I/O callbacks included. Outside
  // run() it is read at each call.
  Instant now();

  // Calls `turn` at once, then whenever the deadline that it returned is reached (never early on
  // that account), I/O has completed or a posted function has run, until stop(). Can be called
  // again. Source: L11, and L9 for the order: I/O callbacks run before the turn that follows them.
  void run(Turn turn);

  // Makes run() return after the current callback or turn.
  void stop();

  // Runs `function` on the loop thread, before the next turn, in order of posting.
  // Threads: any, as long as the loop lives.
  void post(std::move_only_function<void()> function);

  // From now on SIGTERM and SIGINT do not end the process but call `callback`, on the loop, each
  // time.
  void on_termination_signal(std::move_only_function<void(int signal)> callback);

  // The I/O half, for the .cc files of this room.
  boost::asio::io_context& io();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvlease
