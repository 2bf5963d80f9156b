// Waiting in tests: run the loop until a condition holds, with a limit instead of a sleep.
#pragma once

#include <functional>

#include "kvlease/base/time.h"
#include "kvlease/runtime/loop.h"

namespace kvlease {

// Runs `loop` until `done()` holds, asked after each callback and each millisecond; false when it
// still does not after `limit`.
inline bool run_until(EventLoop& loop, const std::function<bool()>& done, Duration limit) {
  const Instant deadline = loop.now() + limit;
  bool satisfied = false;
  loop.run([&](Instant now) {
    satisfied = done();
    if (satisfied || now >= deadline) loop.stop();
    return earlier(deadline, now + std::chrono::milliseconds(1));
  });
  return satisfied;
}

}  // namespace kvlease
