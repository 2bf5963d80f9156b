// TransferTracker: every state × event, time limits, quarantine (L24, L26, L48), and random steps
// against what must never happen.
#include "kvlease/core/transfer_tracker.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "kvlease/base/prng.h"
#include "kvlease/core/snapshot_testing.h"

namespace kvlease {
namespace {

using namespace std::chrono_literals;
using enum TransferPhase;
using enum TransferEvent;
using Requests = std::vector<RequestId>;

constexpr std::size_t kPhaseCount = 5;
constexpr std::size_t kEventCount = 7;

Instant at(Duration since_start) { return kTimeZero + since_start; }
RequestId request(const std::string& name) { return RequestId(name); }
TransferTracker make_tracker(Duration load_timeout) {
  return TransferTracker({.load_timeout = load_timeout});
}

TEST(TransferTrackerTest, SnapshotOfEveryPhaseAndEvent) {
  expect_transition_snapshots("transfer", transfer_transitions(), kPhaseCount, kEventCount,
                              transfer_phase_name, transfer_event_name);
}

// L24: blocks, then the entry, then validated.
TEST(TransferTrackerTest, ReadIsValidatedByItsEntry) {
  TransferTracker tracker = make_tracker(60s);
  tracker.begin(request("r"), at(1s));
  EXPECT_EQ(tracker.phase(request("r")), kReadingBlocks);
  EXPECT_EQ(tracker.on_event(request("r"), kEntryMatches), std::nullopt) << "the entry came first";
  EXPECT_EQ(tracker.on_event(request("r"), kBlocksDone), kReadingEntry);
  EXPECT_EQ(tracker.on_event(request("r"), kEntryMatches), kValidated);
  EXPECT_EQ(tracker.next_deadline(), kNever);
  tracker.forget(request("r"));
  EXPECT_FALSE(tracker.is_known(request("r")));
  EXPECT_EQ(tracker.size(), 0u);
}

// L24, L26: a word that differs fails the read, which is quiet once everything posted is final.
TEST(TransferTrackerTest, ChangedWordRejectsTheRead) {
  TransferTracker tracker = make_tracker(60s);
  tracker.begin(request("r"), at(0s));
  tracker.on_event(request("r"), kBlocksDone);
  EXPECT_EQ(tracker.on_event(request("r"), kEntryDiffers), kDraining);
  EXPECT_EQ(tracker.draining(), 1u);
  EXPECT_EQ(tracker.on_event(request("r"), kAllFinal), kQuiet);
  EXPECT_EQ(tracker.draining(), 0u);
}

// L28: a foreign peer has no entry to read.
TEST(TransferTrackerTest, ForeignPeersReadEndsWithItsBlocks) {
  TransferTracker tracker = make_tracker(60s);
  tracker.begin(request("r"), at(0s));
  EXPECT_EQ(tracker.on_event(request("r"), kBlocksUnvalidated), kValidated);
}

// L48: the limit counts from the first post to validated, over both phases, and is exact.
TEST(TransferTrackerTest, TimeLimitCountsFromTheFirstPost) {
  TransferTracker tracker = make_tracker(60s);
  tracker.begin(request("b"), at(1s));
  tracker.begin(request("a"), at(2s));
  tracker.on_event(request("b"), kBlocksDone);
  EXPECT_EQ(tracker.next_deadline(), at(61s));
  EXPECT_EQ(tracker.due(at(61s - 1ns)), Requests{});
  EXPECT_EQ(tracker.due(at(61s)), Requests{request("b")});
  EXPECT_EQ(tracker.due(at(62s)), (Requests{request("a"), request("b")}));
  EXPECT_EQ(tracker.on_event(request("b"), kTimeout), kDraining);
  EXPECT_EQ(tracker.due(at(62s)), Requests{request("a")});
  EXPECT_EQ(tracker.next_deadline(), at(62s));
}

TEST(TransferTrackerTest, LargestLimitNeverPasses) {
  TransferTracker tracker = make_tracker(kForever);
  tracker.begin(request("r"), at(1s));
  EXPECT_EQ(tracker.next_deadline(), kNever);
}

// L38: of several errors of one read only the first is the failure.
TEST(TransferTrackerTest, SecondErrorIsNotASecondFailure) {
  TransferTracker tracker = make_tracker(60s);
  tracker.begin(request("r"), at(0s));
  EXPECT_EQ(tracker.on_event(request("r"), kError), kDraining);
  EXPECT_EQ(tracker.on_event(request("r"), kError), std::nullopt);
  EXPECT_EQ(tracker.on_event(request("r"), kTimeout), std::nullopt);
  EXPECT_EQ(tracker.phase(request("r")), kDraining);
}

TEST(TransferTrackerTest, LoadFailuresHaveNames) {
  EXPECT_EQ(load_failure_name(LoadFailure::kHandshakeFailed), "handshake_failed");
  EXPECT_EQ(load_failure_name(LoadFailure::kInvalidReference), "invalid_reference");
  EXPECT_EQ(load_failure_name(LoadFailure::kStaleReference), "stale_reference");
  EXPECT_EQ(load_failure_name(LoadFailure::kLeaseLost), "lease_lost");
  EXPECT_EQ(load_failure_name(LoadFailure::kTransferFailed), "transfer_failed");
  EXPECT_EQ(load_failure_name(LoadFailure::kTimedOut), "timed_out");
}

// L48: the time of a read counts from its first post; the wait for that has as much.
TEST(TransferTrackerTest, TimeCountsFromTheFirstPost) {
  TransferTracker tracker = make_tracker(60s);
  tracker.begin(request("r"), at(0s));
  EXPECT_EQ(tracker.next_deadline(), at(60s));
  tracker.on_first_post(request("r"), at(40s));
  EXPECT_EQ(tracker.due(at(99s)), Requests{});
  EXPECT_EQ(tracker.due(at(100s)), Requests{request("r")});
}

TEST(TransferTrackerDeathTest, RejectsBugsOfTheCaller) {
  TransferTracker tracker = make_tracker(60s);
  EXPECT_DEATH(tracker.on_event(request("r"), kError), "known reads");
  EXPECT_DEATH(tracker.forget(request("r")), "known read");
  EXPECT_DEATH(tracker.on_first_post(request("r"), at(0s)), "of a known read");
  EXPECT_DEATH(static_cast<void>(tracker.phase(request("r"))), "known read");
  tracker.begin(request("r"), at(0s));
  EXPECT_DEATH(tracker.begin(request("r"), at(0s)), "one read at a time");
  tracker.on_event(request("r"), kError);
  EXPECT_DEATH(tracker.forget(request("r")), "validated or quiet");
  EXPECT_DEATH(tracker.on_first_post(request("r"), at(0s)), "of a known read");
}

// F08: one transfer of eight never ends; the others complete, it fails at its own limit.
TEST(TransferTrackerScenario, F08_OneEndlessReadFailsAloneAtItsLimit) {
  TransferTracker tracker = make_tracker(10s);
  for (int i = 0; i < 8; ++i) tracker.begin(request(std::to_string(i)), at(0s));
  for (int i = 0; i < 7; ++i) {
    tracker.on_event(request(std::to_string(i)), kBlocksDone);
    EXPECT_EQ(tracker.on_event(request(std::to_string(i)), kEntryMatches), kValidated);
    tracker.forget(request(std::to_string(i)));
  }
  EXPECT_EQ(tracker.due(at(9s)), Requests{});
  EXPECT_EQ(tracker.due(at(10s)), Requests{request("7")});
  EXPECT_EQ(tracker.on_event(request("7"), kTimeout), kDraining);
}

// F09: what is over is listed at every poll until it has been dealt with, and then never again.
TEST(TransferTrackerScenario, F09_TimedOutReadIsListedUntilItIsHandled) {
  TransferTracker tracker = make_tracker(10s);
  tracker.begin(request("r"), at(0s));
  EXPECT_EQ(tracker.due(at(10s)), Requests{request("r")});
  EXPECT_EQ(tracker.due(at(11s)), Requests{request("r")});
  EXPECT_EQ(tracker.on_event(request("r"), kTimeout), kDraining);
  EXPECT_EQ(tracker.due(at(12s)), Requests{});
}

// F10, L26: failed is not quiet; without a word from the transport the quarantine stays for ever.
TEST(TransferTrackerScenario, F10_FailedIsNotQuiet) {
  TransferTracker tracker = make_tracker(60s);
  tracker.begin(request("r"), at(0s));
  EXPECT_EQ(tracker.on_event(request("r"), kError), kDraining);
  EXPECT_EQ(tracker.due(at(1'000'000s)), Requests{});
  EXPECT_EQ(tracker.next_deadline(), kNever);
  EXPECT_EQ(tracker.draining(), 1u);
  EXPECT_EQ(tracker.phase(request("r")), kDraining);
  EXPECT_EQ(tracker.on_event(request("r"), kAllFinal), kQuiet);
}

// G04: in progress, in progress, error: the wait ends with a failure, and what comes later cannot
// turn it into a success.
TEST(TransferTrackerScenario, G04_OnlyDoneEverMeansSuccess) {
  TransferTracker tracker = make_tracker(60s);
  tracker.begin(request("r"), at(0s));
  EXPECT_EQ(tracker.on_event(request("r"), kError), kDraining);
  for (const TransferEvent late : {kBlocksDone, kBlocksUnvalidated, kEntryMatches}) {
    EXPECT_EQ(tracker.on_event(request("r"), late), std::nullopt);
  }
  EXPECT_EQ(tracker.on_event(request("r"), kAllFinal), kQuiet);
  EXPECT_EQ(tracker.on_event(request("r"), kEntryMatches), std::nullopt);
}

// C14: the last byte, the verdict and the time limit in any order: each read has exactly one end,
// and what has timed out stays taken until the transport is done with it.
TEST(TransferTrackerScenario, C14_ExactlyOneEndInAnyOrder) {
  Prng prng(14);
  int validated = 0;
  int quiet = 0;
  for (int round = 0; round < 10'000; ++round) {
    TransferTracker tracker = make_tracker(60s);
    tracker.begin(request("r"), at(0s));
    bool written_on = true;  // by the transport
    bool ended_well = false;
    bool ended_badly = false;
    while (!ended_well && !tracker.due(at(60s)).empty()) {
      const TransferEvent next = prng.chance(1, 3) ? kTimeout
                                 : written_on      ? kBlocksDone
                                                   : kEntryMatches;
      if (next == kBlocksDone) written_on = false;
      const auto phase = tracker.on_event(request("r"), next);
      ASSERT_TRUE(phase.has_value());
      ended_well = phase == kValidated;
      ended_badly = phase == kDraining;
    }
    ASSERT_NE(ended_well, ended_badly);
    for (const TransferEvent late : {kBlocksDone, kEntryMatches, kTimeout, kError}) {
      ASSERT_EQ(tracker.on_event(request("r"), late), std::nullopt);
    }
    ASSERT_EQ(tracker.on_event(request("r"), kAllFinal).has_value(), ended_badly);
    tracker.forget(request("r"));
    ++(ended_well ? validated : quiet);
  }
  EXPECT_GT(validated, 1'000);
  EXPECT_GT(quiet, 1'000);
}

// Random steps on a few reads; `step` returns what went wrong, empty when nothing did.
class TransferWalk {
 public:
  std::string step(std::uint32_t number) {
    const RequestId id = request(std::to_string(number / 16 % 6));
    now_ += std::chrono::seconds{number / 96 % 4};
    if (!tracker_.is_known(id)) {
      if (expected_.contains(id)) return "a read was forgotten by itself";
      tracker_.begin(id, now_);
      expected_[id] = {kReadingBlocks, now_ + kLimit};
    } else if (number % 16 < 14) {
      if (std::string wrong = apply(id, static_cast<TransferEvent>(number % 7)); !wrong.empty()) {
        return wrong;
      }
    } else if (const TransferPhase phase = tracker_.phase(id);
               phase == kValidated || phase == kQuiet) {
      tracker_.forget(id);
      expected_.erase(id);
    }
    return compare();
  }

 private:
  static constexpr Duration kLimit = 10s;
  struct Read {
    TransferPhase phase;
    Instant deadline;
  };

  // The rules in words rather than as rows.
  std::string apply(const RequestId& id, TransferEvent event) {
    Read& read = expected_[id];
    const TransferPhase before = read.phase;
    const bool reading = before == kReadingBlocks || before == kReadingEntry;
    if (reading && (event == kError || event == kTimeout)) read.phase = kDraining;
    if (before == kReadingBlocks && event == kBlocksDone) read.phase = kReadingEntry;
    if (before == kReadingBlocks && event == kBlocksUnvalidated) read.phase = kValidated;
    if (before == kReadingEntry && event == kEntryMatches) read.phase = kValidated;
    if (before == kReadingEntry && event == kEntryDiffers) read.phase = kDraining;
    if (before == kDraining && event == kAllFinal) read.phase = kQuiet;
    const std::optional<TransferPhase> next = tracker_.on_event(id, event);
    if (next.has_value() != (read.phase != before)) return "legality of an event";
    if (next && *next != read.phase) return "phase an event leads to";
    return {};
  }

  std::string compare() const {
    Requests due;
    std::size_t draining = 0;
    Instant deadline = kNever;
    for (const auto& [id, read] : expected_) {
      if (!tracker_.is_known(id)) return "a read was forgotten by itself";
      if (tracker_.phase(id) != read.phase) return "phase";
      draining += read.phase == kDraining;
      if (read.phase != kReadingBlocks && read.phase != kReadingEntry) continue;
      deadline = earlier(deadline, read.deadline);
      if (read.deadline <= now_) due.push_back(id);
    }
    if (tracker_.size() != expected_.size()) return "number of reads";
    if (tracker_.draining() != draining) return "number of draining reads";
    if (tracker_.next_deadline() != deadline) return "deadline";
    if (tracker_.due(now_) != due) return "due reads";
    return {};
  }

  TransferTracker tracker_ = make_tracker(kLimit);
  std::map<RequestId, Read> expected_;
  Instant now_ = kTimeZero;
};

TEST(TransferTrackerProperty, EqualsTheRulesInWordsOverALongRun) {
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    Prng prng(seed);
    TransferWalk walk;
    for (int step = 0; step < 10'000; ++step) {
      ASSERT_EQ(walk.step(static_cast<std::uint32_t>(prng.next())), "")
          << "seed " << seed << " step " << step;
    }
  }
}

TEST(TransferTrackerProperty, EqualsTheRulesInWordsInShortRuns) {
  EXPECT_TRUE(rc::check([](const std::vector<std::uint32_t>& numbers) {
    TransferWalk walk;
    for (const std::uint32_t number : numbers) RC_ASSERT(walk.step(number) == "");
  }));
}

}  // namespace
}  // namespace kvlease
