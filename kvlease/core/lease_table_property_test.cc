// Compares the lease table with a naive model, a map that is scanned in full, over random steps:
// mixed durations, renewals, reports of many readers, early completions, ends, forgotten requests.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kvlease/base/prng.h"
#include "kvlease/core/lease_testing.h"

namespace kvlease {
namespace {

// Who reports, and by which group and reader the model knows it.
struct Reporter {
  AgentName agent;
  std::string group;
  std::string reader;
};
const std::array<Reporter, 9> kReporters{{
    {reader_agent("dec", 0, 1), "dec 1", "0"},
    {reader_agent("dec", 1, 1), "dec 1", "1"},
    {reader_agent("dec", 2, 1), "dec 1", "2"},
    {reader_agent("dec", 0, 2), "dec 2", "0"},
    {reader_agent("dec", 1, 2), "dec 2", "1"},
    {reader_agent("dec", 1, 2, /*agent_number=*/7), "dec 2", "1"},
    {reader_agent("other", 0, 1), "other 1", "0"},
    {AgentName{"vllm-a"}, "other form", "vllm-a"},
    {AgentName{"vllm-b"}, "other form", "vllm-b"},
}};

const std::array<LeaseTimes, 4> kTimes{{
    {.duration = secs(30), .heartbeat_interval = secs(5), .extension = secs(20)},
    {.duration = secs(480), .heartbeat_interval = secs(80), .extension = secs(320)},
    {.duration = secs(0.3), .heartbeat_interval = secs(0.05), .extension = secs(0.2)},
    {.duration = kForever, .heartbeat_interval = secs(5), .extension = kForever},
}};

const LeaseTableLimits kLimits{.early_completions_max = 6};
const Duration kLifetimeMax = secs(700);

class Model {
 public:
  explicit Model(std::uint32_t slots)
      : words_(slots, kTestWord), renewals_(slots, 0), slot_taken_(slots, false) {}

  bool knows(const std::string& id) const { return live_.contains(id) || batch_.contains(id); }
  bool is_live(const std::string& id) const { return live_.contains(id); }
  bool is_in_batch(const std::string& id) const { return batch_.contains(id); }

  void admit(const std::string& id) { batch_[id]; }

  void forget(const std::string& id) {
    if (!batch_.contains(id)) return;
    counters.add(Counter::kCompletionEarlyDropped, batch_[id].size());
    batch_.erase(id);
  }

  std::optional<LeaseGrant> make_grant(const std::string& id, const LeaseTimes& times) const {
    for (std::uint32_t slot = 1; slot < words_.size(); ++slot) {
      if (slot_taken_[slot]) continue;
      return LeaseGrant{.id = LeaseId{id},
                        .slot = SlotId{slot},
                        .word = words_[slot],
                        .remaining = times.duration,
                        .extension = times.extension,
                        .lifetime_max = kLifetimeMax};
    }
    return std::nullopt;
  }

  void grant(const LeaseGrant& grant, Instant now) {
    const std::string& id = grant.id.str();
    const std::vector<Report> early = batch_[id];
    batch_.erase(id);
    const Instant cap = saturating_add(now, kLifetimeMax);
    live_[id] = {.slot = grant.slot.value(),
                 .granted_at = now,
                 .alive_at = now,
                 .expires_at = std::min(saturating_add(now, grant.remaining), cap),
                 .cap = cap,
                 .extension = grant.extension,
                 .reports = {}};
    slot_taken_[grant.slot.value()] = true;
    renewals_[grant.slot.value()] = 0;
    for (const Report& report : early) {
      if (report.time + kLimits.early_completion_ttl <= now) {
        counters.add(Counter::kCompletionEarlyDropped);
      } else {
        complete(id, report.readers_expected, *report.reporter, now);
      }
    }
  }

  void renew(const std::vector<std::string>& ids, Instant now) {
    counters.add(Counter::kHeartbeatsReceived);
    for (const std::string& id : ids) {
      if (!live_.contains(id)) {
        const auto end = ends_.find(id);
        if (batch_.contains(id)) {
          counters.add(Counter::kHeartbeatEarly);
        } else if (end == ends_.end()) {
          counters.add(Counter::kHeartbeatUnknown);
        } else {
          counters.add(end->second == LeaseEnd::kExpired ? Counter::kHeartbeatExpired
                                                         : Counter::kHeartbeatEnded);
        }
        continue;
      }
      Lease& lease = live_[id];
      lease.expires_at =
          std::max(lease.expires_at, std::min(lease.cap, saturating_add(now, lease.extension)));
      lease.alive_at = now;
      ++renewals_[lease.slot];
      counters.add(Counter::kLeasesRenewed);
    }
  }

  void complete(const std::string& id, std::uint32_t n, const Reporter& reporter, Instant now) {
    if (batch_.contains(id)) {
      std::size_t kept = 0;
      for (const auto& [_, reports] : batch_) kept += reports.size();
      const bool fits = kept < kLimits.early_completions_max;
      if (fits) batch_[id].push_back({n, &reporter, now});
      counters.add(fits ? Counter::kCompletionEarly : Counter::kCompletionEarlyDropped);
      return;
    }
    if (!live_.contains(id)) {
      counters.add(Counter::kCompletionUnknown);
      return;
    }
    live_[id].alive_at = now;
    std::vector<Report>& reports = live_[id].reports;
    std::size_t in_group = 0;
    for (const Report& report : reports) {
      if (report.reporter->group != reporter.group) continue;
      ++in_group;
      if (report.readers_expected != n) {
        counters.add(Counter::kCompletionMismatch);
        return;
      }
      if (report.reporter->reader == reporter.reader) {
        counters.add(Counter::kCompletionDuplicate);
        return;
      }
    }
    counters.add(Counter::kCompletionsReceived);
    reports.push_back({n, &reporter, now});
    if (in_group + 1 == n) end(id, LeaseEnd::kCompleted, now);
  }

  void end(const std::string& id, LeaseEnd end, Instant now) {
    if (!live_.contains(id)) return;
    const Lease lease = live_[id];
    live_.erase(id);
    ends_[id] = end;
    ++words_[lease.slot];
    slot_taken_[lease.slot] = false;
    // The largest group, the one that reported first among equals.
    LeaseEnded report{.id = LeaseId{id},
                      .end = end,
                      .held = now - lease.granted_at,
                      .left = remaining(lease.expires_at, now),
                      .silent = now - lease.alive_at};
    for (const Report& one : lease.reports) {
      const auto size = static_cast<std::uint32_t>(std::count_if(
          lease.reports.begin(), lease.reports.end(),
          [&](const Report& other) { return other.reporter->group == one.reporter->group; }));
      if (size <= report.readers_done) continue;
      report.readers_done = size;
      report.readers_expected = one.readers_expected;
    }
    ended.push_back(report);
  }

  void sweep(Instant now) {
    std::vector<std::string> due;
    for (const auto& [id, lease] : live_) {
      if (now >= lease.expires_at) due.push_back(id);
    }
    for (const std::string& id : due) end(id, LeaseEnd::kExpired, now);
    for (auto& [_, reports] : batch_) {
      counters.add(Counter::kCompletionEarlyDropped, std::erase_if(reports, [&](const Report& one) {
                     return one.time + kLimits.early_completion_ttl <= now;
                   }));
    }
  }

  Instant earliest_deadline() const {
    Instant earliest = kNever;
    for (const auto& [_, lease] : live_) earliest = std::min(earliest, lease.expires_at);
    for (const auto& [_, reports] : batch_) {
      for (const Report& one : reports) {
        earliest = std::min(earliest, one.time + kLimits.early_completion_ttl);
      }
    }
    return earliest;
  }

  std::optional<Instant> expires_at(const std::string& id) const {
    const auto found = live_.find(id);
    if (found == live_.end()) return std::nullopt;
    return found->second.expires_at;
  }
  std::size_t live() const { return live_.size(); }
  std::size_t in_batch() const { return batch_.size(); }
  LeaseEntry entry(std::uint32_t slot) const {
    return {.word = words_[slot], .renewals = renewals_[slot]};
  }

  Counters counters;
  std::vector<LeaseEnded> ended;

 private:
  struct Report {
    std::uint32_t readers_expected;
    const Reporter* reporter;
    Instant time;
  };
  struct Lease {
    std::uint32_t slot;
    Instant granted_at;
    Instant alive_at;
    Instant expires_at;
    Instant cap;
    Duration extension;
    std::vector<Report> reports;
  };
  std::map<std::string, std::vector<Report>> batch_;
  std::map<std::string, Lease> live_;
  std::map<std::string, LeaseEnd> ends_;  // the last of each id
  std::vector<std::uint64_t> words_;
  std::vector<std::uint64_t> renewals_;
  std::vector<bool> slot_taken_;
};

// A step: what to do, to which id, and a third number for the rest. Any numbers are a legal step.
using Step = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>;

struct PairOptions {
  std::uint32_t ids = 80;
  int slowness = 1;  // of time: the greater, the more leases are live at once
};

// Counters of heartbeats after an end that the table may have forgotten.
constexpr std::array kEnds{Counter::kHeartbeatExpired, Counter::kHeartbeatEnded};

// Table and model side by side.
class Pair {
 public:
  explicit Pair(const PairOptions& options)
      : ids_(options.ids),
        slowness_(options.slowness),
        rank_(kLimits, options.ids + 1),
        model_(options.ids + 1) {}

  void apply(const Step& step) {
    const auto [what, which, how] = step;
    const std::string id = name(which);
    switch (what % 16) {
      case 0:
      case 1:
        if (model_.knows(id)) break;
        rank_.table.admit(LeaseId{id});
        model_.admit(id);
        break;
      case 2:
        if (model_.is_live(id)) break;
        rank_.table.forget(LeaseId{id});
        model_.forget(id);
        break;
      case 3:
      case 4:
      case 5:
      case 6:
        grant(id, kTimes[how % kTimes.size()]);
        break;
      case 7:
      case 8:
        renew(which, how);
        break;
      case 9:
      case 10:
      case 11: {
        const Reporter& reporter = kReporters[how % kReporters.size()];
        const std::uint32_t n = 1 + how / 16 % 3;
        rank_.complete(id, n, reporter.agent, now_);
        model_.complete(id, n, reporter, now_);
        break;
      }
      case 12: {
        if (model_.is_in_batch(id)) break;
        const auto end = static_cast<LeaseEnd>(1 + how % (kLeaseEndCount - 1));
        rank_.table.end(LeaseId{id}, end, now_);
        model_.end(id, end, now_);
        break;
      }
      case 13:
      case 14:
        advance(how);
        break;
      case 15:
        sweep();
        break;
    }
  }

  // The first difference that a look from outside finds, empty when there is none.
  std::string difference() {
    std::ostringstream text;
    if (rank_.table.live() != model_.live()) text << "live " << rank_.table.live() << '\n';
    if (rank_.table.in_batch() != model_.in_batch()) text << "in batch\n";
    for (std::uint32_t i = 0; i < ids_; ++i) {
      if (rank_.table.expires_at(LeaseId{name(i)}) != model_.expires_at(name(i))) {
        text << "expires_at of " << name(i) << '\n';
      }
      if (rank_.memory[i] != model_.entry(i)) text << "entry " << i << '\n';
    }
    for (std::size_t i = 0; i < kCounterCount; ++i) {
      const auto counter = static_cast<Counter>(i);
      if (counter == Counter::kHeartbeatUnknown || std::ranges::count(kEnds, counter) > 0) continue;
      if (rank_.count(counter) == model_.counters.value(counter)) continue;
      text << counter_name(counter) << ' ' << rank_.count(counter) << ", expected "
           << model_.counters.value(counter) << '\n';
    }
    // L5, L43: the table may forget an end, never make one up.
    std::uint64_t forgotten = rank_.count(Counter::kHeartbeatUnknown);
    forgotten -= model_.counters.value(Counter::kHeartbeatUnknown);
    for (const Counter counter : kEnds) {
      if (rank_.count(counter) > model_.counters.value(counter)) text << "made up an end\n";
      forgotten -= model_.counters.value(counter) - rank_.count(counter);
    }
    if (forgotten != 0) text << "heartbeats of no live lease\n";
    if (rank_.table.next_deadline() > model_.earliest_deadline()) text << "next_deadline late\n";
    if (swept_ && rank_.table.next_deadline() <= now_) text << "next_deadline would spin\n";
    compare_ended(text);
    return text.str();
  }

  // Everything that the table has reported, in its order.
  const std::vector<LeaseEnded>& reported() const { return reported_; }
  std::size_t live_max() const { return live_max_; }

 private:
  std::string name(std::uint32_t which) const { return "request-" + std::to_string(which % ids_); }

  void grant(const std::string& id, const LeaseTimes& times) {
    if (model_.is_live(id)) return;
    const std::optional<LeaseGrant> grant = model_.make_grant(id, times);
    if (!grant) return;
    rank_.table.grant(*grant, now_);
    model_.grant(*grant, now_);
    live_max_ = std::max(live_max_, model_.live());
    swept_ = false;
  }

  // Up to 40 ids from `which` on, every (1 + how % 3)rd one.
  void renew(std::uint32_t which, std::uint32_t how) {
    std::vector<std::string> ids;
    for (std::uint32_t i = 0; i < how % 41; ++i)
      ids.push_back(name(which % ids_ + i * (1 + how % 3)));
    rank_.renew({ids.begin(), ids.end()}, now_);
    model_.renew(ids, now_);
  }

  void advance(std::uint32_t how) {
    constexpr std::array<double, 8> kSeconds{0, 1e-9, 0.01, 0.1, 0.3, 4, 11, 60};
    if (how % 9 < kSeconds.size()) {
      now_ += secs(kSeconds[how % 9]) / slowness_;
    } else if (model_.earliest_deadline() != kNever) {
      now_ = std::max(now_, model_.earliest_deadline());  // to the nanosecond
    }
    swept_ = false;
  }

  void sweep() {
    rank_.table.sweep(now_);
    model_.sweep(now_);
    swept_ = true;
  }

  // The order of one sweep's ends is the table's own; the model reports by id.
  void compare_ended(std::ostringstream& text) {
    std::vector<LeaseEnded> taken = rank_.table.take_ended();
    reported_.insert(reported_.end(), taken.begin(), taken.end());
    std::vector<LeaseEnded> expected = std::exchange(model_.ended, {});
    const auto less = [](const LeaseEnded& a, const LeaseEnded& b) {
      return std::tie(a.id, a.held, a.end, a.readers_done, a.readers_expected) <
             std::tie(b.id, b.held, b.end, b.readers_done, b.readers_expected);
    };
    std::sort(taken.begin(), taken.end(), less);
    std::sort(expected.begin(), expected.end(), less);
    if (taken != expected) text << "ends: " << taken.size() << " of " << expected.size() << '\n';
  }

  std::uint32_t ids_;
  int slowness_;
  TestRank rank_;
  Model model_;
  Instant now_ = at(1);
  bool swept_ = false;  // and neither time nor a grant since
  std::vector<LeaseEnded> reported_;
  std::size_t live_max_ = 0;
};

// Applies `steps` steps from a seed, compared after every `stride`.
void run(Pair& pair, std::uint64_t seed, int steps, int stride) {
  Prng prng(seed);
  const auto number = [&prng] { return static_cast<std::uint32_t>(prng.next()); };
  for (int step = 1; step <= steps; ++step) {
    const std::uint32_t what = number();
    const std::uint32_t which = number();
    pair.apply({what, which, number()});
    if (step % stride != 0) continue;
    const std::string difference = pair.difference();
    ASSERT_EQ(difference, "") << "seed " << seed << ", step " << step;
  }
  std::cout << "seed " << seed << ": " << steps << " steps, " << pair.reported().size()
            << " leases ended, at most " << pair.live_max() << " live\n";
}

TEST(LeaseTableProperty, EqualsTheNaiveModel) {  // L2, L3, L4, L5, L6, L7, L8, L48
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    Pair pair(PairOptions{});
    run(pair, seed, /*steps=*/10'000, /*stride=*/1);
    std::set<LeaseEnd> ends;
    for (const LeaseEnded& one : pair.reported()) ends.insert(one.end);
    EXPECT_EQ(ends.size(), std::size_t{kLeaseEndCount}) << "a run should see every end";
  }
}

TEST(LeaseTableProperty, EqualsTheNaiveModelWhenLarge) {  // L4
  Pair pair({.ids = 5'000, .slowness = 400});
  run(pair, /*seed=*/4, /*steps=*/24'000, /*stride=*/200);
  EXPECT_GT(pair.live_max(), 2'048u) << "a run should fill more than one group of blocks";
}

TEST(LeaseTableProperty, TheSameSeedReportsTheSameEndsInTheSameOrder) {
  Pair first(PairOptions{});
  Pair second(PairOptions{});
  run(first, /*seed=*/5, /*steps=*/2'000, /*stride=*/50);
  run(second, /*seed=*/5, /*steps=*/2'000, /*stride=*/50);
  EXPECT_EQ(first.reported(), second.reported());
}

TEST(LeaseTableProperty, EqualsTheNaiveModelShrinking) {
  EXPECT_TRUE(rc::check([] {
    const auto steps =
        *rc::gen::resize(400, rc::gen::arbitrary<std::vector<Step>>()).as("what, which, how");
    Pair pair({.ids = 7});
    for (const Step& step : steps) {
      pair.apply(step);
      const std::string difference = pair.difference();
      if (!difference.empty()) RC_FAIL(difference);
    }
  }));
}

}  // namespace
}  // namespace kvlease
