// When the loop wakes: at deadlines, for posted functions and signals, and never for nothing.
#include "kvlease/runtime/loop.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "kvlease/base/prng.h"
#include "kvlease/runtime/loop_testing.h"

namespace kvlease {
namespace {

using namespace std::chrono_literals;

TEST(EventLoop, WakesAtEachDeadlineAndNeverEarly) {  // L11
  EventLoop loop;
  for (const Duration wait : std::vector<Duration>{20us, 50us, 300us, 1ms, 20ms}) {
    Instant asked = kTimeZero;
    Duration latest = 0s;
    int turns = 0;
    loop.run([&](Instant now) {
      EXPECT_GE(now, asked);
      if (turns > 0) latest = std::max(latest, now - asked);
      if (++turns == 10) loop.stop();
      return asked = now + wait;
    });
    EXPECT_EQ(turns, 10);
    EXPECT_LT(latest, 2s) << "for deadlines after " << to_milliseconds(wait) << " ms";
  }
}

TEST(EventLoop, AMovedDeadlineMakesNoTurnOfItsOwn) {
  EventLoop loop;
  for (const Duration first : std::vector<Duration>{5ms, 10s, kForever}) {
    std::vector<Instant> turns;
    loop.run([&](Instant now) {
      turns.push_back(now);
      if (turns.size() == 1) {
        loop.post([] {});
        return saturating_add(now, first);
      }
      if (turns.size() == 2) return now + 30ms;
      loop.stop();
      return kNever;
    });
    ASSERT_EQ(turns.size(), 3u);
    EXPECT_GE(turns[2] - turns[1], 30ms);
  }
}

TEST(EventLoop, RunsWhatAnotherThreadPostsInOrder) {
  EventLoop loop;
  std::vector<int> ran;
  std::thread poster([&] {
    for (int i = 0; i < 1000; ++i) loop.post([&ran, i] { ran.push_back(i); });
  });
  EXPECT_TRUE(run_until(loop, [&] { return ran.size() == 1000; }, 10s));
  poster.join();
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(ran[static_cast<std::size_t>(i)], i);
}

// Items from another thread, with pauses, and every thousandth one cancelled before it runs: each
// is taken or cancelled, and none lies there while the loop sleeps.
TEST(EventLoop, F12_NoWakeUpIsLost) {
  constexpr int kItems = 100'000;
  EventLoop loop;
  std::atomic<int> taken = 0;
  std::atomic<int> cancelled = 0;
  Duration longest = 0s;  // of the loop thread
  std::thread poster([&] {
    Prng prng(12);
    for (int i = 0; i < kItems; ++i) {
      const auto posted_at = std::chrono::steady_clock::now();
      auto is_cancelled = std::make_shared<std::atomic<bool>>(false);
      loop.post([&, posted_at, is_cancelled] {
        longest = std::max<Duration>(longest, std::chrono::steady_clock::now() - posted_at);
        ++(is_cancelled->load() ? cancelled : taken);
      });
      if (i % 1000 == 0) is_cancelled->store(true);
      if (prng.chance(1, 50)) std::this_thread::yield();
    }
  });
  int turns = 0;
  const Instant limit = loop.now() + 60s;
  loop.run([&](Instant now) {
    ++turns;
    if (taken + cancelled == kItems || now >= limit) loop.stop();
    return limit;  // until then only a post wakes it
  });
  poster.join();
  EXPECT_EQ(taken + cancelled, kItems);
  EXPECT_LT(longest, 1s);
  EXPECT_GT(turns, 1);
}

TEST(EventLoop, AFloodOfCallbacksDoesNotKeepTheHostFromItsTurn) {
  EventLoop loop;
  std::function<void()> again = [&] { loop.post(again); };
  loop.post(again);
  int turns = 0;
  loop.run([&](Instant) {
    if (++turns == 10) loop.stop();
    return kNever;
  });
  EXPECT_EQ(turns, 10);
}

TEST(EventLoop, NowStandsStillWithinATurnAndItsCallbacks) {
  EventLoop loop;
  const auto spin = [] {
    const auto start = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - start < 100us) {
    }
  };
  Instant in_callback = kTimeZero;
  int turns = 0;
  loop.run([&](Instant now) {
    if (++turns == 2) {
      EXPECT_EQ(now, in_callback);
      loop.stop();
    }
    spin();
    EXPECT_EQ(loop.now(), now);
    loop.post([&, now] {
      in_callback = loop.now();
      EXPECT_GT(in_callback, now);
      spin();
    });
    return kNever;
  });
  const Instant before = loop.now();
  spin();
  EXPECT_GT(loop.now(), before) << "outside run() the clock is read";
}

TEST(EventLoop, StopsFromACallbackAndRunsAgain) {
  EventLoop loop;
  for (int round = 0; round < 3; ++round) {
    int turns = 0;
    loop.post([&] { loop.stop(); });
    loop.run([&](Instant) {
      ++turns;
      return kNever;
    });
    EXPECT_EQ(turns, 1);
  }
}

TEST(EventLoop, TerminationSignalsArriveAsCallbacks) {
  EventLoop loop;
  std::vector<int> signals;
  loop.on_termination_signal([&](int signal) { signals.push_back(signal); });
  raise(SIGTERM);
  EXPECT_TRUE(run_until(loop, [&] { return signals.size() == 1; }, 10s));
  raise(SIGINT);
  EXPECT_TRUE(run_until(loop, [&] { return signals.size() == 2; }, 10s));
  EXPECT_EQ(signals, (std::vector<int>{SIGTERM, SIGINT}));
}

}  // namespace
}  // namespace kvlease
