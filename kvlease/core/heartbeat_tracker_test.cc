// HeartbeatTracker: clocks per peer, one message a peer, counted users (L14–L18), and equality with
// a naive model over random steps.
#include "kvlease/core/heartbeat_tracker.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kvlease/base/prng.h"

namespace kvlease {
namespace {

using namespace std::chrono_literals;

constexpr PeerId kP1{1};
constexpr PeerId kP2{2};
constexpr Duration kInterval = 5s;

Instant at(Duration since_start) { return kTimeZero + since_start; }
LeaseId lease(std::string name) { return LeaseId(std::move(name)); }
DueHeartbeat heartbeat(PeerId peer, std::vector<std::string> names) {
  DueHeartbeat due{.peer = peer, .leases = {}};
  for (std::string& name : names) due.leases.push_back(lease(std::move(name)));
  return due;
}
using Due = std::vector<DueHeartbeat>;

TEST(HeartbeatTrackerTest, EmptyTrackerIsNeverDue) {
  HeartbeatTracker tracker;
  EXPECT_EQ(tracker.next_deadline(), kNever);
  EXPECT_EQ(tracker.take_due(at(100s)), Due{});
  EXPECT_EQ(tracker.tracked(), 0u);
  EXPECT_EQ(tracker.interval(kP1), kForever);
}

// L18: the first heartbeat is due at once, the next ones an interval apart.
TEST(HeartbeatTrackerTest, FirstHeartbeatIsDueAtOnce) {
  HeartbeatTracker tracker;
  tracker.track(kP1, lease("a"), kInterval, at(2s));
  EXPECT_EQ(tracker.next_deadline(), at(2s));
  EXPECT_EQ(tracker.take_due(at(2s)), Due{heartbeat(kP1, {"a"})});
  EXPECT_EQ(tracker.next_deadline(), at(7s));
  EXPECT_EQ(tracker.take_due(at(7s - 1ns)), Due{});
  EXPECT_EQ(tracker.take_due(at(7s)), Due{heartbeat(kP1, {"a"})});
}

// L17: one message names every tracked lease once, in order of the ids.
TEST(HeartbeatTrackerTest, OneMessageNamesEveryLeaseOfThePeer) {
  HeartbeatTracker tracker;
  tracker.track(kP2, lease("z"), kInterval, at(0s));
  tracker.track(kP1, lease("b"), kInterval, at(0s));
  tracker.track(kP1, lease("a"), kInterval, at(0s));
  tracker.track(kP1, lease("b"), kInterval, at(0s));
  EXPECT_EQ(tracker.take_due(at(0s)), (Due{heartbeat(kP1, {"a", "b"}), heartbeat(kP2, {"z"})}));
}

// L18: each peer has its own clock.
TEST(HeartbeatTrackerTest, PeersHaveTheirOwnClocks) {
  HeartbeatTracker tracker;
  tracker.track(kP1, lease("a"), kInterval, at(0s));
  EXPECT_EQ(tracker.take_due(at(0s)).size(), 1u);
  tracker.track(kP2, lease("b"), kInterval, at(3s));
  EXPECT_EQ(tracker.take_due(at(3s)), Due{heartbeat(kP2, {"b"})});
  EXPECT_EQ(tracker.take_due(at(5s)), Due{heartbeat(kP1, {"a"})});
  EXPECT_EQ(tracker.take_due(at(8s)), Due{heartbeat(kP2, {"b"})});
}

// L18: a lease that joins a running clock waits for the next heartbeat, at most one interval.
TEST(HeartbeatTrackerTest, LeaseAtARunningPeerJoinsItsNextHeartbeat) {
  HeartbeatTracker tracker;
  tracker.track(kP1, lease("a"), kInterval, at(0s));
  EXPECT_EQ(tracker.take_due(at(0s)), Due{heartbeat(kP1, {"a"})});
  tracker.track(kP1, lease("b"), kInterval, at(1s));
  EXPECT_EQ(tracker.next_deadline(), at(5s));
  EXPECT_EQ(tracker.take_due(at(5s)), Due{heartbeat(kP1, {"a", "b"})});
}

// L14: a lease with a shorter interval pulls the next heartbeat in, its end lets it out again.
TEST(HeartbeatTrackerTest, SmallestIntervalSetsTheClock) {
  HeartbeatTracker tracker;
  tracker.track(kP1, lease("slow"), 5s, at(0s));
  EXPECT_EQ(tracker.take_due(at(0s)).size(), 1u);
  tracker.track(kP1, lease("fast"), 2s, at(1s));
  EXPECT_EQ(tracker.interval(kP1), 2s);
  EXPECT_EQ(tracker.next_deadline(), at(2s));
  EXPECT_EQ(tracker.take_due(at(2s)), Due{heartbeat(kP1, {"fast", "slow"})});

  EXPECT_TRUE(tracker.untrack(kP1, lease("fast")));
  EXPECT_EQ(tracker.interval(kP1), 5s);
  EXPECT_EQ(tracker.next_deadline(), at(7s));
}

// L14: what an interval would have demanded in the past is due now.
TEST(HeartbeatTrackerTest, ShorterIntervalThanTheTimeSinceTheLastHeartbeatIsDueAtOnce) {
  HeartbeatTracker tracker;
  tracker.track(kP1, lease("slow"), 5s, at(0s));
  EXPECT_EQ(tracker.take_due(at(0s)).size(), 1u);
  tracker.track(kP1, lease("fast"), 2s, at(4s));
  EXPECT_LE(tracker.next_deadline(), at(4s));
  EXPECT_EQ(tracker.take_due(at(4s)), Due{heartbeat(kP1, {"fast", "slow"})});
  EXPECT_EQ(tracker.next_deadline(), at(6s));
}

// L14, L16: users of one lease that ask for different intervals get the smallest.
TEST(HeartbeatTrackerTest, OneLeaseTrackedWithTwoIntervalsKeepsTheSmallest) {
  HeartbeatTracker tracker;
  tracker.track(kP1, lease("a"), 5s, at(0s));
  tracker.track(kP1, lease("a"), 2s, at(0s));
  tracker.track(kP1, lease("a"), 3s, at(0s));
  EXPECT_EQ(tracker.interval(kP1), 2s);
  EXPECT_FALSE(tracker.untrack(kP1, lease("a")));
  EXPECT_FALSE(tracker.untrack(kP1, lease("a")));
  EXPECT_EQ(tracker.interval(kP1), 2s);
  EXPECT_TRUE(tracker.untrack(kP1, lease("a")));
  EXPECT_EQ(tracker.interval(kP1), kForever);
}

// L16: heartbeats follow the last local user of a lease.
TEST(HeartbeatTrackerTest, TrackingIsCountedPerUser) {
  HeartbeatTracker tracker;
  tracker.track(kP1, lease("a"), kInterval, at(0s));
  tracker.track(kP1, lease("a"), kInterval, at(0s));
  EXPECT_EQ(tracker.tracked(kP1), 1u);
  EXPECT_FALSE(tracker.untrack(kP1, lease("a")));
  EXPECT_TRUE(tracker.is_tracked(kP1, lease("a")));
  EXPECT_TRUE(tracker.untrack(kP1, lease("a")));
  EXPECT_FALSE(tracker.is_tracked(kP1, lease("a")));
  EXPECT_EQ(tracker.next_deadline(), kNever);
  EXPECT_EQ(tracker.take_due(at(100s)), Due{});
}

// L20: the same id at another peer is another lease.
TEST(HeartbeatTrackerTest, SameIdAtTwoPeersIsTwoLeases) {
  HeartbeatTracker tracker;
  tracker.track(kP1, lease("a"), kInterval, at(0s));
  tracker.track(kP2, lease("a"), kInterval, at(0s));
  EXPECT_EQ(tracker.tracked(), 2u);
  EXPECT_TRUE(tracker.untrack(kP1, lease("a")));
  EXPECT_TRUE(tracker.is_tracked(kP2, lease("a")));
  EXPECT_EQ(tracker.take_due(at(0s)), Due{heartbeat(kP2, {"a"})});
}

// L18: a peer at which nothing was tracked any more starts anew.
TEST(HeartbeatTrackerTest, ClockOfAPeerEndsWithItsLastLease) {
  HeartbeatTracker tracker;
  tracker.track(kP1, lease("a"), kInterval, at(0s));
  EXPECT_EQ(tracker.take_due(at(0s)).size(), 1u);
  EXPECT_TRUE(tracker.untrack(kP1, lease("a")));
  tracker.track(kP1, lease("b"), kInterval, at(1s));
  EXPECT_EQ(tracker.take_due(at(1s)), Due{heartbeat(kP1, {"b"})});
}

TEST(HeartbeatTrackerTest, LargestIntervalIsNeverDueAgain) {
  HeartbeatTracker tracker;
  tracker.track(kP1, lease("a"), kForever, at(1s));
  EXPECT_EQ(tracker.take_due(at(1s)).size(), 1u);
  EXPECT_EQ(tracker.next_deadline(), kNever);
}

TEST(HeartbeatTrackerDeathTest, RejectsBugsOfTheCaller) {
  HeartbeatTracker tracker;
  EXPECT_DEATH(tracker.untrack(kP1, lease("a")), "only a tracked lease");
  tracker.track(kP1, lease("a"), kInterval, at(0s));
  EXPECT_DEATH(tracker.untrack(kP1, lease("b")), "only a tracked lease");
  EXPECT_DEATH(tracker.track(kP1, lease("a"), 0s, at(0s)), "is positive");
}

// A04, L15: a request enqueued at t = 2 and scheduled only at t = 95 is renewed from t = 2 on.
TEST(HeartbeatTrackerScenario, A04_RenewalStartsWhenDEnqueues) {
  HeartbeatTracker tracker;
  tracker.track(kP1, lease("r"), kInterval, at(2s));
  Instant expires_at = at(30s);
  int messages = 0;
  for (Instant now = tracker.next_deadline(); now < at(95s); now = tracker.next_deadline()) {
    EXPECT_EQ(tracker.take_due(now), Due{heartbeat(kP1, {"r"})});
    EXPECT_LT(now, expires_at) << "P would have freed the blocks";
    expires_at = std::max(expires_at, now + 20s);
    ++messages;
  }
  EXPECT_EQ(messages, 19);
  EXPECT_GT(expires_at, at(95s));
}

// A04: what a decoder that tracks from scheduling on would see: the lease is gone when it starts.
TEST(HeartbeatTrackerScenario, A04_TrackingFromSchedulingOnWouldBeTooLate) {
  HeartbeatTracker tracker;
  tracker.track(kP1, lease("r"), kInterval, at(95s));
  EXPECT_GE(tracker.next_deadline(), at(30s));
}

// A05, L17: 400 leases, one read a second, one batched heartbeat each 5 s for what is still queued.
TEST(HeartbeatTrackerScenario, A05_BacklogOf400NeedsAtMost81Messages) {
  HeartbeatTracker tracker;
  std::vector<Instant> expires_at(400, at(30s));
  for (int i = 0; i < 400; ++i) {
    tracker.track(kP1, lease(std::to_string(i)), kInterval, at(0s));
  }
  int messages = 0;
  int completed = 0;
  for (Duration now = 0s; now <= 400s; now += 1s) {
    for (const DueHeartbeat& due : tracker.take_due(at(now))) {
      ++messages;
      const std::set<LeaseId> distinct(due.leases.begin(), due.leases.end());
      EXPECT_EQ(distinct.size(), due.leases.size());
      EXPECT_EQ(due.leases.size(), static_cast<std::size_t>(400 - completed));
      for (const LeaseId& id : due.leases) {
        Instant& deadline = expires_at[std::stoul(id.str())];
        EXPECT_LT(at(now), deadline);
        deadline = std::max(deadline, at(now) + 20s);
      }
    }
    if (now == 0s) continue;
    EXPECT_LT(at(now), expires_at[static_cast<std::size_t>(completed)]);
    EXPECT_TRUE(tracker.untrack(kP1, lease(std::to_string(completed++))));
  }
  EXPECT_EQ(completed, 400);
  EXPECT_LE(messages, 81);
  EXPECT_EQ(tracker.next_deadline(), kNever);
}

// A08, L21: after three failed sends the peer is dropped; when the handshake is done again at t =
// 22 a heartbeat to the new connection is due at once.
TEST(HeartbeatTrackerScenario, A08_NewConnectionIsBeatenAtOnce) {
  HeartbeatTracker tracker;
  for (const char* name : {"a", "b", "c"}) tracker.track(kP1, lease(name), kInterval, at(0s));
  for (Duration now = 0s; now <= 20s; now += 5s) {
    EXPECT_EQ(tracker.take_due(at(now)), Due{heartbeat(kP1, {"a", "b", "c"})});
  }
  tracker.drop_peer(kP1);
  EXPECT_EQ(tracker.tracked(), 0u);
  EXPECT_EQ(tracker.next_deadline(), kNever);

  for (const char* name : {"a", "b", "c"}) tracker.track(kP2, lease(name), kInterval, at(22s));
  EXPECT_EQ(tracker.next_deadline(), at(22s));
  EXPECT_EQ(tracker.take_due(at(22s)), Due{heartbeat(kP2, {"a", "b", "c"})});
}

// A09, L17: a loop that stalls over several intervals sends one message, and the clock goes on from
// it.
TEST(HeartbeatTrackerScenario, A09_StalledLoopSendsOneMessage) {
  HeartbeatTracker tracker;
  tracker.track(kP1, lease("r"), kInterval, at(40s));
  EXPECT_EQ(tracker.take_due(at(40s)).size(), 1u);
  DueHeartbeat late = heartbeat(kP1, {"r"});
  late.late = 14s;
  EXPECT_EQ(tracker.take_due(at(59s)), Due{late});
  EXPECT_EQ(tracker.take_due(at(59s)), Due{});
  EXPECT_EQ(tracker.next_deadline(), at(64s));
}

// B13: nothing is left behind by requests that are aborted in the queue.
TEST(HeartbeatTrackerScenario, B13_AbortedRoundsLeaveNothing) {
  HeartbeatTracker tracker;
  for (int round = 0; round < 1000; ++round) {
    const Instant now = at(std::chrono::seconds{round});
    for (int i = 0; i < 16; ++i) {
      tracker.track(PeerId(static_cast<std::uint32_t>(i % 3)), lease(std::to_string(i)), kInterval,
                    now);
    }
    EXPECT_EQ(tracker.tracked(), 16u);
    EXPECT_EQ(tracker.take_due(now).size(), 3u);
    for (int i = 0; i < 16; ++i) {
      EXPECT_TRUE(
          tracker.untrack(PeerId(static_cast<std::uint32_t>(i % 3)), lease(std::to_string(i))));
    }
    ASSERT_EQ(tracker.tracked(), 0u);
    ASSERT_EQ(tracker.next_deadline(), kNever);
  }
}

// The tracker beside the simplest thing that could be right: a flat list of users, scanned.
class HeartbeatModel {
 public:
  // Draws one step from `number` and applies it to both. Returns what differs, empty when nothing
  // does.
  std::string step(std::uint32_t number) {
    const PeerId peer{number / 8 % 3};
    const LeaseId id = lease(std::to_string(number / 32 % 8));
    const Duration amount = std::chrono::milliseconds{number / 256 % 4000 + 500};
    switch (number % 8) {
      case 0:
      case 1:
        return track(peer, id, amount);
      case 2:
      case 3:
      case 4:
        return untrack(peer, id);
      case 5:
        return number % 64 == 5 ? drop(peer) : advance(amount);
      default:
        return advance(amount);
    }
  }

 private:
  struct User {
    PeerId peer;
    LeaseId id;
    Duration interval;
  };
  // When a lease must have been named again (L14, L17).
  struct Obligation {
    PeerId peer;
    LeaseId id;
    Instant named_by;
  };

  bool has(PeerId peer) const {
    return std::ranges::any_of(users_, [&](const User& u) { return u.peer == peer; });
  }

  // A lease keeps the smallest interval asked for until its last user is gone.
  Duration interval_of(PeerId peer, const LeaseId& id) const {
    const auto it = smallest_.find({peer, id});
    return it == smallest_.end() ? kForever : it->second;
  }

  Duration interval_of(PeerId peer) const {
    Duration smallest = kForever;
    for (const User& u : users_) {
      if (u.peer == peer) smallest = std::min(smallest, interval_of(peer, u.id));
    }
    return smallest;
  }

  std::string track(PeerId peer, const LeaseId& id, Duration interval) {
    if (!has(peer)) {
      last_beat_.erase(peer);
      first_track_[peer] = now_;
    }
    const Duration interval_before = interval_of(peer);
    users_.push_back({peer, id, interval});
    if (interval < interval_before) hurried_at_[peer] = now_;
    const Duration smallest = std::min(interval, interval_of(peer, id));
    smallest_[{peer, id}] = smallest;
    const Instant named_by = now_ + smallest;
    const auto owed = std::ranges::find_if(
        owed_, [&](const Obligation& o) { return o.peer == peer && o.id == id; });
    if (owed == owed_.end()) {
      owed_.push_back({peer, id, named_by});
    } else {
      owed->named_by = earlier(owed->named_by, named_by);
    }
    tracker_.track(peer, id, interval, now_);
    return compare();
  }

  void forget(PeerId peer, const LeaseId& id) {
    smallest_.erase({peer, id});
    std::erase_if(owed_, [&](const Obligation& o) { return o.peer == peer && o.id == id; });
  }

  std::string untrack(PeerId peer, const LeaseId& id) {
    const auto is_user = [&](const User& u) { return u.peer == peer && u.id == id; };
    const auto it = std::ranges::find_if(users_, is_user);
    if (it == users_.end()) return tracker_.is_tracked(peer, id) ? "untracked is tracked" : "";
    users_.erase(it);
    const bool last = std::ranges::none_of(users_, is_user);
    if (last) forget(peer, id);
    return tracker_.untrack(peer, id) == last ? compare() : "last user";
  }

  std::string drop(PeerId peer) {
    std::erase_if(users_, [&](const User& u) { return u.peer == peer; });
    std::erase_if(owed_, [&](const Obligation& o) { return o.peer == peer; });
    std::erase_if(smallest_, [&](const auto& entry) { return entry.first.first == peer; });
    tracker_.drop_peer(peer);
    return compare();
  }

  // Moves time on by `length`, stopping at each deadline as a loop does.
  std::string advance(Duration length) {
    const Instant end = now_ + length;
    for (;;) {
      now_ = std::max(now_, earlier(end, tracker_.next_deadline()));
      if (std::string difference = take_due(); !difference.empty()) return difference;
      if (now_ == end) return compare();
    }
  }

  std::string take_due() {
    std::vector<DueHeartbeat> expected;
    for (std::uint32_t p = 0; p < 3; ++p) {
      const PeerId peer{p};
      if (!has(peer)) continue;
      if (last_beat_.contains(peer) && now_ < last_beat_[peer] + interval_of(peer)) continue;
      std::set<LeaseId> ids;
      for (const User& u : users_) {
        if (u.peer == peer) ids.insert(u.id);
      }
      const Instant due_at =
          last_beat_.contains(peer) ? last_beat_[peer] + interval_of(peer) : first_track_[peer];
      last_beat_[peer] = now_;
      for (Obligation& o : owed_) {
        if (o.peer == peer) o.named_by = now_ + interval_of(peer, o.id);
      }
      expected.push_back(
          {peer, {ids.begin(), ids.end()}, now_ - std::max(due_at, hurried_at_[peer])});
    }
    if (tracker_.take_due(now_) != expected) return "due heartbeats";
    for (const Obligation& o : owed_) {
      if (o.named_by <= now_) return "lease " + o.id.str() + " was not named within its interval";
    }
    return {};
  }

  std::string compare() const {
    Instant deadline = kNever;
    std::set<std::pair<PeerId, LeaseId>> distinct;
    for (const User& u : users_) {
      const auto beat = last_beat_.find(u.peer);
      if (beat != last_beat_.end()) {
        deadline = earlier(deadline, beat->second + interval_of(u.peer));
      } else {
        deadline = earlier(deadline, now_);
      }
      distinct.insert({u.peer, u.id});
      if (!tracker_.is_tracked(u.peer, u.id)) return "tracked is not tracked";
    }
    if (tracker_.tracked() != distinct.size()) return "count of tracked leases";
    // A clock that has not beaten is due since its first track, which is not later than now.
    if (std::max(tracker_.next_deadline(), now_) != std::max(deadline, now_)) return "deadline";
    for (std::uint32_t p = 0; p < 3; ++p) {
      if (tracker_.interval(PeerId{p}) != interval_of(PeerId{p})) return "interval";
    }
    for (const Obligation& o : owed_) {
      if (tracker_.next_deadline() > o.named_by) return "deadline is later than an obligation";
    }
    return {};
  }

  HeartbeatTracker tracker_;
  Instant now_ = at(1s);
  std::vector<User> users_;
  std::vector<Obligation> owed_;
  std::map<std::pair<PeerId, LeaseId>, Duration> smallest_;
  std::map<PeerId, Instant> first_track_;
  std::map<PeerId, Instant> hurried_at_;
  std::map<PeerId, Instant> last_beat_;
};

TEST(HeartbeatTrackerProperty, EqualsTheNaiveModelOverALongRun) {
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    Prng prng(seed);
    HeartbeatModel model;
    for (int step = 0; step < 10'000; ++step) {
      ASSERT_EQ(model.step(static_cast<std::uint32_t>(prng.next())), "")
          << "seed " << seed << " step " << step;
    }
  }
}

TEST(HeartbeatTrackerProperty, EqualsTheNaiveModelInShortRuns) {
  EXPECT_TRUE(rc::check([](const std::vector<std::uint32_t>& numbers) {
    HeartbeatModel model;
    for (const std::uint32_t number : numbers) RC_ASSERT(model.step(number) == "");
  }));
}

}  // namespace
}  // namespace kvlease
