// HandshakeTracker: one handshake an address, back-off, suspicion, refresh and forgetting (L21,
// L29–L32, L48), and invariants over random steps of a host that answers, fails or stays silent.
#include "kvlease/core/handshake_tracker.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "kvlease/base/prng.h"
#include "kvlease/core/snapshot_testing.h"

namespace kvlease {
namespace {

using namespace std::chrono_literals;
using enum HandshakeState;
using Addresses = std::vector<PeerAddress>;
using TimedOut = HandshakeTracker::TimedOut;

constexpr std::size_t kStateCount = 7;
constexpr std::size_t kEventCount = 8;

Instant at(Duration since_start) { return kTimeZero + since_start; }
PeerAddress address(int number) {
  return {.engine = EngineId("p" + std::to_string(number)), .host = "127.0.0.1", .port = 8100};
}
const PeerAddress kP1 = address(1);
const PeerAddress kP2 = address(2);

// Runs the handshake that is due at `now` through.
void connect(HandshakeTracker& tracker, const PeerAddress& peer, Instant now) {
  tracker.want(peer, now);
  ASSERT_EQ(tracker.take_due(now), Addresses{peer});
  ASSERT_TRUE(tracker.succeeded(peer, now));
}

// Asserts that the next attempt starts after a back-off of `length`, which jitter may halve, and
// that it is in flight then. Returns when it began.
Instant expect_attempt_after_back_off(HandshakeTracker& tracker, Duration length, Instant now) {
  const Instant next = tracker.next_deadline();
  EXPECT_GE(next, now + length / 2);
  EXPECT_LE(next, now + length);
  EXPECT_EQ(tracker.take_due(next - 1ns), Addresses{});
  EXPECT_EQ(tracker.take_due(next), Addresses{kP1});
  return next;
}

TEST(HandshakeTrackerTest, SnapshotOfEveryStateAndEvent) {
  expect_transition_snapshots("handshake", handshake_transitions(), kStateCount, kEventCount,
                              handshake_state_name, handshake_event_name);
}

// L29: one handshake serves all requests that name the same address.
TEST(HandshakeTrackerTest, OneHandshakeServesAllRequests) {
  HandshakeTracker tracker({});
  EXPECT_EQ(tracker.next_deadline(), kNever);
  for (int i = 0; i < 5; ++i) tracker.want(kP1, at(1s));
  EXPECT_EQ(tracker.next_deadline(), at(1s));
  EXPECT_EQ(tracker.take_due(at(1s)), Addresses{kP1});
  tracker.want(kP1, at(2s));
  EXPECT_EQ(tracker.take_due(at(2s)), Addresses{});
  EXPECT_TRUE(tracker.succeeded(kP1, at(3s)));
  tracker.want(kP1, at(4s));
  EXPECT_EQ(tracker.take_due(at(4s)), Addresses{});
  EXPECT_EQ(tracker.state(kP1), kReady);
}

// L29: another host or port of the same engine id is another address.
TEST(HandshakeTrackerTest, AddressIsEngineHostAndPort) {
  HandshakeTracker tracker({});
  PeerAddress other_port = kP1;
  other_port.port = 8200;
  tracker.want(kP1, at(0s));
  tracker.want(other_port, at(0s));
  EXPECT_EQ(tracker.take_due(at(0s)), (Addresses{kP1, other_port}));
}

// L29: retries back off with jitter and stop at a limit.
TEST(HandshakeTrackerTest, RetriesBackOffAndStop) {
  HandshakeTracker tracker({.back_off_min = 1s, .back_off_max = 3s, .attempts_max = 4});
  tracker.want(kP1, at(0s));
  Instant now = at(0s);
  EXPECT_EQ(tracker.take_due(now), Addresses{kP1});
  for (const Duration length : {1s, 2s, 3s}) {
    EXPECT_FALSE(tracker.failed(kP1, now));
    EXPECT_EQ(tracker.state(kP1), kBackingOff);
    now = expect_attempt_after_back_off(tracker, length, now);
  }
  EXPECT_TRUE(tracker.failed(kP1, now)) << "the fourth attempt is the last";
  EXPECT_EQ(tracker.state(kP1), kGaveUp);
  EXPECT_EQ(tracker.next_deadline(), now) << "the next turn forgets it";
}

TEST(HandshakeTrackerTest, JitterFollowsFromTheSeed) {
  const auto first_retry = [](std::uint64_t seed) {
    HandshakeTracker tracker({.jitter_seed = seed});
    tracker.want(kP1, at(0s));
    tracker.take_due(at(0s));
    tracker.failed(kP1, at(0s));
    return tracker.next_deadline();
  };
  EXPECT_EQ(first_retry(1), first_retry(1));
  EXPECT_NE(first_retry(1), first_retry(2));
}

// L29: a new request after giving up begins a new round with all its attempts.
TEST(HandshakeTrackerTest, NewRequestTriesAgainAfterGivingUp) {
  HandshakeTracker tracker({.attempts_max = 1});
  for (const Duration now : {0s, 1s}) {
    tracker.want(kP1, at(now));
    EXPECT_EQ(tracker.take_due(at(now)), Addresses{kP1});
    EXPECT_TRUE(tracker.failed(kP1, at(now)));
  }
  tracker.want(kP1, at(2s));
  EXPECT_EQ(tracker.state(kP1), kDue);
  EXPECT_EQ(tracker.next_deadline(), at(2s));
}

// L43: peers that were given up do not pile up.
TEST(HandshakeTrackerTest, GivenUpPeersGoUnmentioned) {
  HandshakeTracker tracker({.attempts_max = 1});
  for (int i = 0; i < 100; ++i) {
    tracker.want(address(i), at(0s));
    tracker.take_due(at(0s));
    EXPECT_TRUE(tracker.failed(address(i), at(0s)));
  }
  EXPECT_EQ(tracker.take_idle({}, at(0s)), Addresses{});
  EXPECT_EQ(tracker.peers(), 0u);
}

// L43: peers and handshakes under way are bounded; who is due longest is next, and a peer that was
// given up makes room at once.
TEST(HandshakeTrackerTest, PeersAndHandshakesAreBounded) {
  HandshakeTracker tracker({.attempts_max = 1, .peers_max = 4, .in_flight_max = 2});
  EXPECT_TRUE(tracker.want(address(3), at(0s)));
  EXPECT_TRUE(tracker.want(address(2), at(1s)));
  EXPECT_TRUE(tracker.want(address(1), at(2s)));
  EXPECT_TRUE(tracker.want(address(0), at(3s)));
  EXPECT_FALSE(tracker.want(address(9), at(4s)));
  EXPECT_FALSE(tracker.refresh(address(9), at(4s)));
  EXPECT_TRUE(tracker.want(address(3), at(4s)));  // known already
  EXPECT_EQ(tracker.peers(), 4u);

  EXPECT_EQ(tracker.take_due(at(4s)), (Addresses{address(3), address(2)}));
  EXPECT_EQ(tracker.in_flight(), 2u);
  EXPECT_EQ(tracker.take_due(at(4s)), Addresses{});
  EXPECT_EQ(tracker.next_deadline(), at(14s)) << "no turn is due for what may not start";

  EXPECT_TRUE(tracker.failed(address(3), at(5s)));
  EXPECT_EQ(tracker.next_deadline(), at(2s));  // the next may start
  EXPECT_EQ(tracker.take_due(at(5s)), Addresses{address(1)});
  EXPECT_EQ(tracker.next_deadline(), at(5s)) << "what was given up makes room by a turn of its own";
  tracker.take_idle({}, at(5s));
  EXPECT_TRUE(tracker.want(address(9), at(5s)));
}

// L48: an attempt without an answer fails at its time limit, exactly; later reports are ignored.
TEST(HandshakeTrackerTest, SilentAttemptTimesOut) {
  HandshakeTracker tracker({.timeout = 10s, .back_off_min = 1s, .attempts_max = 2});
  tracker.want(kP1, at(0s));
  tracker.take_due(at(1s));
  EXPECT_EQ(tracker.next_deadline(), at(11s));
  EXPECT_TRUE(tracker.take_timed_out(at(11s - 1ns)).empty());
  EXPECT_EQ(tracker.take_timed_out(at(11s)),
            (std::vector{TimedOut{.address = kP1, .gave_up = false}}));
  EXPECT_TRUE(tracker.take_timed_out(at(11s)).empty());
  EXPECT_FALSE(tracker.succeeded(kP1, at(11s)));
  EXPECT_FALSE(tracker.failed(kP1, at(11s)));
  EXPECT_EQ(tracker.state(kP1), kBackingOff);

  EXPECT_EQ(tracker.take_due(at(12s)), Addresses{kP1});
  EXPECT_EQ(tracker.take_timed_out(at(22s)),
            (std::vector{TimedOut{.address = kP1, .gave_up = true}}));
  EXPECT_EQ(tracker.state(kP1), kGaveUp);
}

TEST(HandshakeTrackerTest, ReportsAboutUnknownPeersAreIgnored) {
  HandshakeTracker tracker({});
  EXPECT_FALSE(tracker.succeeded(kP1, at(0s)));
  EXPECT_FALSE(tracker.failed(kP1, at(0s)));
  tracker.touch(kP1, at(0s));
  tracker.suspect(kP1, at(0s));
  EXPECT_FALSE(tracker.is_known(kP1));
}

// L21: the first suspicion starts a handshake at once, further ones back off.
TEST(HandshakeTrackerTest, SuspectPeerIsMadeAnewAtOnceThenWithBackOff) {
  HandshakeTracker tracker({.back_off_min = 1s, .back_off_max = 8s});
  connect(tracker, kP1, at(0s));
  tracker.suspect(kP1, at(1s));
  EXPECT_EQ(tracker.state(kP1), kDue);
  EXPECT_EQ(tracker.next_deadline(), at(1s));
  EXPECT_EQ(tracker.take_due(at(1s)), Addresses{kP1});

  Instant now = at(1s);
  for (const Duration length : {1s, 2s, 4s, 8s, 8s}) {
    EXPECT_TRUE(tracker.succeeded(kP1, now));
    tracker.suspect(kP1, now);
    EXPECT_EQ(tracker.state(kP1), kBackingOff);
    now = expect_attempt_after_back_off(tracker, length, now);
  }
}

// L21: a connection that held for back_off_max is healthy: the next suspicion is a first one.
TEST(HandshakeTrackerTest, HealthyTimeEndsTheSuspicion) {
  HandshakeTracker tracker({.back_off_max = 10s});
  connect(tracker, kP1, at(0s));
  tracker.suspect(kP1, at(1s));
  EXPECT_EQ(tracker.take_due(at(1s)), Addresses{kP1});
  EXPECT_TRUE(tracker.succeeded(kP1, at(2s)));
  tracker.suspect(kP1, at(12s));
  EXPECT_EQ(tracker.state(kP1), kDue);
}

// L21: only a connection in use can be suspect.
TEST(HandshakeTrackerTest, SuspicionWithoutAConnectionChangesNothing) {
  HandshakeTracker tracker({.attempts_max = 2});
  tracker.want(kP1, at(0s));
  tracker.suspect(kP1, at(0s));
  EXPECT_EQ(tracker.state(kP1), kDue);
  tracker.take_due(at(0s));
  tracker.suspect(kP1, at(0s));
  EXPECT_EQ(tracker.state(kP1), kInFlight);
  tracker.failed(kP1, at(0s));
  tracker.suspect(kP1, at(0s));
  EXPECT_EQ(tracker.state(kP1), kBackingOff);
}

// L21: when the new handshake fails too, the waiting requests get the failure.
TEST(HandshakeTrackerTest, SuspectPeerThatCannotBeMadeAnewIsGivenUp) {
  HandshakeTracker tracker({.attempts_max = 1});
  connect(tracker, kP1, at(0s));
  tracker.suspect(kP1, at(1s));
  tracker.take_due(at(1s));
  EXPECT_TRUE(tracker.failed(kP1, at(1s)));
  EXPECT_EQ(tracker.state(kP1), kGaveUp);
}

// L31: another incarnation is asked for beside the connection in use, one at a time, once per
// interval.
TEST(HandshakeTrackerTest, RefreshAsksBesideTheConnection) {
  HandshakeTracker tracker({.refresh_interval_min = 5s});
  connect(tracker, kP1, at(0s));
  EXPECT_TRUE(tracker.refresh(kP1, at(1s)));
  EXPECT_EQ(tracker.state(kP1), kRefreshDue);
  EXPECT_TRUE(tracker.refresh(kP1, at(1s))) << "the answer to come serves this reference too";
  EXPECT_EQ(tracker.take_due(at(1s)), Addresses{kP1});
  EXPECT_EQ(tracker.state(kP1), kRefreshing);
  EXPECT_TRUE(tracker.refresh(kP1, at(2s)));
  EXPECT_EQ(tracker.take_due(at(2s)), Addresses{});

  EXPECT_TRUE(tracker.succeeded(kP1, at(3s)));
  EXPECT_EQ(tracker.state(kP1), kReady);
  EXPECT_FALSE(tracker.refresh(kP1, at(8s - 1ns))) << "judge by the answer of t = 3";
  EXPECT_TRUE(tracker.refresh(kP1, at(8s)));
}

// L31: a refresh that fails leaves the old connection in use, and those that waited are told.
TEST(HandshakeTrackerTest, FailedRefreshKeepsTheConnection) {
  HandshakeTracker tracker({.timeout = 10s, .attempts_max = 4});
  connect(tracker, kP1, at(0s));
  EXPECT_TRUE(tracker.refresh(kP1, at(1s)));
  tracker.take_due(at(1s));
  EXPECT_TRUE(tracker.failed(kP1, at(2s)));
  EXPECT_EQ(tracker.state(kP1), kReady);

  EXPECT_TRUE(tracker.refresh(kP1, at(6s)));
  tracker.take_due(at(6s));
  EXPECT_EQ(tracker.take_timed_out(at(16s)),
            (std::vector{TimedOut{.address = kP1, .gave_up = true}}));
  EXPECT_EQ(tracker.state(kP1), kReady);
}

// L21, L31: the connection in use becomes suspect while it is asked beside it.
TEST(HandshakeTrackerTest, SuspicionDuringARefreshMakesItTheHandshake) {
  HandshakeTracker tracker({.attempts_max = 2});
  connect(tracker, kP1, at(0s));
  tracker.refresh(kP1, at(1s));
  tracker.suspect(kP1, at(1s));
  EXPECT_EQ(tracker.state(kP1), kDue);
  connect(tracker, kP1, at(1s));

  EXPECT_TRUE(tracker.refresh(kP1, at(20s)));
  tracker.take_due(at(20s));
  tracker.suspect(kP1, at(21s));
  EXPECT_EQ(tracker.state(kP1), kInFlight);
  EXPECT_FALSE(tracker.failed(kP1, at(22s))) << "attempts are left, unlike for a refresh";
  EXPECT_EQ(tracker.state(kP1), kBackingOff);
}

// L31: without a connection a refresh is a wish like any other.
TEST(HandshakeTrackerTest, RefreshOfAnUnknownPeerIsAWant) {
  HandshakeTracker tracker({});
  EXPECT_TRUE(tracker.refresh(kP1, at(0s)));
  EXPECT_EQ(tracker.state(kP1), kDue);
}

// L32: pending handshakes and busy peers are not forgotten, and do not ask for a wake-up in the
// past.
TEST(HandshakeTrackerTest, OnlyIdleReadyPeersAreForgotten) {
  HandshakeTracker tracker({.timeout = 1000s, .peer_ttl = 60s});
  connect(tracker, kP1, at(0s));
  EXPECT_EQ(tracker.next_deadline(), at(60s));
  EXPECT_EQ(tracker.take_idle({}, at(60s - 1ns)), Addresses{});
  EXPECT_EQ(tracker.take_idle(Addresses{kP1}, at(60s)), Addresses{});
  EXPECT_EQ(tracker.next_deadline(), at(120s));
  tracker.want(kP2, at(100s));
  tracker.take_due(at(100s));
  EXPECT_EQ(tracker.take_idle({}, at(300s)), Addresses{kP1});
  EXPECT_FALSE(tracker.is_known(kP1));
  EXPECT_EQ(tracker.state(kP2), kInFlight);
}

// L32: engine_ttl <= 0 means never (kForever).
TEST(HandshakeTrackerTest, EndlessTtlForgetsNobody) {
  HandshakeTracker tracker({.peer_ttl = kForever});
  connect(tracker, kP1, at(0s));
  EXPECT_EQ(tracker.next_deadline(), kNever);
  EXPECT_EQ(tracker.take_idle({}, at(1'000'000s)), Addresses{});
}

TEST(HandshakeTrackerDeathTest, RejectsBugsOfTheCaller) {
  HandshakeTracker tracker({});
  EXPECT_DEATH(static_cast<void>(tracker.state(kP1)), "known peer");
  EXPECT_DEATH(HandshakeTracker({.timeout = 0s}), "positive");
  EXPECT_DEATH(HandshakeTracker({.back_off_min = 2s, .back_off_max = 1s}), "back-off");
  EXPECT_DEATH(HandshakeTracker({.attempts_max = 0}), "attempt");
}

// A08, L21: three failed sends at t = 20: the handshake is made again at once; done at t = 22.
TEST(HandshakeTrackerScenario, A08_SuspectPeerIsHandshakenAtOnce) {
  HandshakeTracker tracker({});
  connect(tracker, kP1, at(0s));
  tracker.suspect(kP1, at(20s));
  EXPECT_EQ(tracker.take_due(at(20s)), Addresses{kP1});
  EXPECT_TRUE(tracker.succeeded(kP1, at(22s)));
}

// A08: a peer that refuses is given up well before the leases' end at t = 35.
TEST(HandshakeTrackerScenario, A08_RefusingPeerIsGivenUpBeforeTheLeaseEnds) {
  HandshakeTracker tracker({});
  connect(tracker, kP1, at(0s));
  tracker.suspect(kP1, at(20s));
  Instant now = at(20s);
  while (tracker.take_due(now) == Addresses{kP1} && !tracker.failed(kP1, now)) {
    now = tracker.next_deadline();
  }
  EXPECT_EQ(tracker.state(kP1), kGaveUp);
  EXPECT_LE(now, at(35s));
}

// D10, L32: 100 peers used once each are gone in time; one whose only traffic is heartbeats stays.
TEST(HandshakeTrackerScenario, D10_PeersAreForgottenAfterTheirTtl) {
  HandshakeTracker tracker({.peer_ttl = 60s});
  std::size_t forgotten = 0;
  for (int t = 0; t <= 200; ++t) {
    const Instant now = at(std::chrono::seconds{t});
    if (t < 100) connect(tracker, address(t), now);
    forgotten += tracker.take_idle({}, now).size();
    EXPECT_LE(tracker.peers(), 60u);
  }
  EXPECT_EQ(forgotten, 100u);
  EXPECT_EQ(tracker.peers(), 0u);

  connect(tracker, kP1, at(200s));
  for (Duration now = 200s; now <= 320s; now += 5s) {
    tracker.touch(kP1, at(now));
    EXPECT_EQ(tracker.take_idle({}, at(now)), Addresses{});
  }
  EXPECT_TRUE(tracker.is_known(kP1));
}

// D14: the first two answers are not usable, the third is, one retry a second: connected at t = 2.
TEST(HandshakeTrackerScenario, D14_EarlyMetadataIsNotAPermanentFailure) {
  HandshakeTracker tracker({.back_off_min = 1s, .back_off_max = 1s});
  tracker.want(kP1, at(0s));
  for (const Duration now : {0s, 1s}) {
    EXPECT_EQ(tracker.take_due(at(now)), Addresses{kP1});
    EXPECT_FALSE(tracker.failed(kP1, at(now)));
  }
  EXPECT_EQ(tracker.take_due(at(2s)), Addresses{kP1});
  EXPECT_TRUE(tracker.succeeded(kP1, at(2s)));
  EXPECT_EQ(tracker.state(kP1), kReady);
}

// D17, L29: a handshake of 2 s with P1 delays nothing of P2, and is one for all its requests.
TEST(HandshakeTrackerScenario, D17_HandshakeInTheBackground) {
  HandshakeTracker tracker({});
  connect(tracker, kP2, at(0s));
  int handshakes = 0;
  for (Duration now = 0s; now < 2s; now += 100ms) {
    tracker.want(kP1, at(now));
    handshakes += static_cast<int>(tracker.take_due(at(now)).size());
    EXPECT_EQ(tracker.state(kP2), kReady);
  }
  EXPECT_TRUE(tracker.succeeded(kP1, at(2s)));
  EXPECT_EQ(tracker.take_due(at(2s)), Addresses{});
  EXPECT_EQ(handshakes, 1);
}

// A host that turns at every deadline, and in between wants, suspects, refreshes, answers or fails.
class HandshakeWalk {
 public:
  explicit HandshakeWalk(std::uint64_t jitter_seed)
      : tracker_({.timeout = kTimeout,
                  .back_off_min = 500ms,
                  .back_off_max = 4s,
                  .attempts_max = kAttemptsMax,
                  .refresh_interval_min = 5s,
                  .peer_ttl = 30s,
                  .jitter_seed = jitter_seed,
                  .peers_max = kPeersMax,
                  .in_flight_max = kInFlightMax}) {}

  // Draws one step from `number`. Returns what went wrong, empty when nothing did.
  std::string step(std::uint32_t number) {
    const PeerAddress peer = address(static_cast<int>(number / 8 % 4));
    switch (number % 8) {
      case 0:
        tracker_.want(peer, now_);
        break;
      case 1:
        tracker_.suspect(peer, now_);
        break;
      case 2:
        refresh(peer);
        break;
      case 3:
        report(peer, true);
        break;
      case 4:
        report(peer, false);
        break;
      case 5:
        tracker_.touch(peer, now_);
        break;
      default:
        return advance(std::chrono::milliseconds{number / 32 % 3000});
    }
    if (!wrong_.empty()) return wrong_;
    return turn();
  }

  // Stops wishing and answering: every attempt ends by itself in bounded time (L29, L48).
  std::string settle() {
    const auto round_max = kAttemptsMax * (kTimeout + 4s) * kPeersMax;
    if (std::string wrong = advance(round_max); !wrong.empty()) return wrong;
    return attempts_.empty() ? "" : "an attempt without end";
  }

 private:
  static constexpr Duration kTimeout = 3s;
  static constexpr std::uint32_t kAttemptsMax = 3;
  static constexpr std::size_t kPeersMax = 3;  // of the four that are wished for
  static constexpr std::size_t kInFlightMax = 2;

  void refresh(const PeerAddress& peer) {
    const bool ready = tracker_.is_known(peer) && tracker_.state(peer) == kReady;
    if (!tracker_.refresh(peer, now_) || !ready) return;
    const auto last = refreshed_at_.find(peer);
    if (last != refreshed_at_.end() && now_ < last->second + 5s) wrong_ = "refresh too early";
    refreshed_at_[peer] = now_;
  }

  // An attempt ended. `last`: the tracker's word that the waiting requests fail.
  void failed(const PeerAddress& peer, bool last) {
    const std::uint32_t in_a_row = ++failures_[peer];
    if (last) failures_.erase(peer);
    if (tracker_.state(peer) == kGaveUp) refreshed_at_.erase(peer);
    if (in_a_row > kAttemptsMax) wrong_ = "more attempts than allowed";
    if (!last && tracker_.state(peer) != kBackingOff) wrong_ = "no back-off after a failure";
  }

  void report(const PeerAddress& peer, bool success) {
    const bool in_flight = attempts_.erase(peer) > 0;
    if (success) {
      if (tracker_.succeeded(peer, now_) != in_flight) wrong_ = "success of what is not in flight";
      if (in_flight) failures_.erase(peer);
    } else {
      const bool last = tracker_.failed(peer, now_);
      if (in_flight) failed(peer, last);
      if (!in_flight && last) wrong_ = "failure of what is not in flight";
    }
  }

  std::string advance(Duration length) {
    const Instant end = now_ + length;
    while (now_ < end) {
      now_ = earlier(end, tracker_.next_deadline());
      if (std::string wrong = turn(); !wrong.empty()) return wrong;
    }
    return {};
  }

  std::string turn() {
    for (const TimedOut& timed_out : tracker_.take_timed_out(now_)) {
      if (attempts_.erase(timed_out.address) == 0) return "timed out what was not in flight";
      failed(timed_out.address, timed_out.gave_up);
    }
    for (const PeerAddress& peer : tracker_.take_due(now_)) {
      if (!attempts_.emplace(peer, now_).second) return "two handshakes at a time";
    }
    for (const PeerAddress& peer : tracker_.take_idle({}, now_)) {
      if (attempts_.contains(peer)) return "forgot a peer with a pending handshake";
      refreshed_at_.erase(peer);
    }
    for (const auto& [peer, started_at] : attempts_) {
      if (now_ >= started_at + kTimeout) return "an attempt beyond its time limit";
    }
    for (const auto& [peer, when] : refreshed_at_) {
      if (!tracker_.is_known(peer)) return "forgot a peer without telling";
    }
    if (attempts_.size() != tracker_.in_flight() || attempts_.size() > kInFlightMax) {
      return "too many handshakes under way";
    }
    if (tracker_.peers() > kPeersMax) return "too many peers";
    if (tracker_.next_deadline() <= now_) return "a deadline that no turn can meet";
    return wrong_;
  }

  HandshakeTracker tracker_;
  Instant now_ = at(1s);
  std::map<PeerAddress, Instant> attempts_;  // in flight, since when
  std::map<PeerAddress, std::uint32_t> failures_;
  std::map<PeerAddress, Instant> refreshed_at_;
  std::string wrong_;
};

// D12: whatever is wished for, suspected, refreshed and forgotten at a time, a peer is there once
// or not at all, and at most one handshake with it is under way.
TEST(HandshakeTrackerProperty, D12_OneHandshakeAPeerOverALongRun) {
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    Prng prng(seed);
    HandshakeWalk walk(seed);
    for (int step = 0; step < 10'000; ++step) {
      ASSERT_EQ(walk.step(static_cast<std::uint32_t>(prng.next())), "")
          << "seed " << seed << " step " << step;
    }
    ASSERT_EQ(walk.settle(), "") << "seed " << seed;
  }
}

TEST(HandshakeTrackerProperty, InvariantsHoldInShortRuns) {
  EXPECT_TRUE(rc::check([](const std::vector<std::uint32_t>& numbers, std::uint64_t seed) {
    HandshakeWalk walk(seed);
    for (const std::uint32_t number : numbers) RC_ASSERT(walk.step(number) == "");
    RC_ASSERT(walk.settle() == "");
  }));
}

}  // namespace
}  // namespace kvlease
