// The table of one peer's handshakes and the clocks around it (L21, L29, L31, L32, L48).
#include "kvlease/core/handshake_tracker.h"

#include <algorithm>
#include <utility>

#include "kvlease/base/check.h"

namespace kvlease {
namespace {

using enum HandshakeState;
using enum HandshakeEvent;

constexpr Transition<HandshakeState, HandshakeEvent> kTransitions[] = {
    {kDue, kStarted, kInFlight},          {kInFlight, kSucceeded, kReady},
    {kInFlight, kFailed, kBackingOff},    {kInFlight, kLimit, kGaveUp},
    {kBackingOff, kBackOffOver, kDue},    {kGaveUp, kWanted, kDue},
    {kReady, kSuspect, kBackingOff},  // L21
    {kReady, kRefresh, kRefreshDue},  // L31
    {kRefreshDue, kStarted, kRefreshing}, {kRefreshDue, kSuspect, kDue},
    {kRefreshing, kSucceeded, kReady},    {kRefreshing, kLimit, kReady},
    {kRefreshing, kSuspect, kInFlight},
};

bool is_in_flight(HandshakeState state) { return state == kInFlight || state == kRefreshing; }

}  // namespace

std::string_view handshake_state_name(HandshakeState state) {
  switch (state) {
    case kDue:
      return "due";
    case kInFlight:
      return "in_flight";
    case kReady:
      return "ready";
    case kBackingOff:
      return "backing_off";
    case kGaveUp:
      return "gave_up";
    case kRefreshDue:
      return "refresh_due";
    case kRefreshing:
      return "refreshing";
  }
  KVL_UNREACHABLE("every handshake state has a name");
}

std::string_view handshake_event_name(HandshakeEvent event) {
  switch (event) {
    case kStarted:
      return "started";
    case kSucceeded:
      return "succeeded";
    case kFailed:
      return "failed";
    case kLimit:
      return "limit";
    case kBackOffOver:
      return "back_off_over";
    case kSuspect:
      return "suspect";
    case kRefresh:
      return "refresh";
    case kWanted:
      return "wanted";
  }
  KVL_UNREACHABLE("every handshake event has a name");
}

std::span<const Transition<HandshakeState, HandshakeEvent>> handshake_transitions() {
  return kTransitions;
}

HandshakeTracker::HandshakeTracker(const HandshakeTrackerOptions& options)
    : options_(options), prng_(options.jitter_seed) {
  KVL_CHECK(options.timeout > Duration::zero(), "handshake_timeout is positive");
  KVL_CHECK(options.back_off_min > Duration::zero() && options.back_off_min <= options.back_off_max,
            "a back-off is positive and at most its maximum");
  KVL_CHECK(options.attempts_max > 0, "a handshake has at least one attempt");
  KVL_CHECK(options.peers_max > 0 && options.in_flight_max > 0, "a handshake has room");
}

// Applies an event; an illegal one changes nothing and returns false.
bool HandshakeTracker::advance(Peer& peer, HandshakeEvent event) {
  const auto next = next_state(handshake_transitions(), peer.state, event);
  if (!next) return false;
  in_flight_ -= is_in_flight(peer.state);
  in_flight_ += is_in_flight(*next);
  peer.state = *next;
  return true;
}

bool HandshakeTracker::want(const PeerAddress& address, Instant now) {
  const auto known = peers_.find(address);
  if (known == peers_.end() && peers_.size() >= options_.peers_max) return false;  // L43
  Peer& peer = peers_[address];  // L29: one for all that name it
  if (known == peers_.end() || advance(peer, kWanted)) peer.deadline = now;
  peer.active_at = now;
  return true;
}

void HandshakeTracker::touch(const PeerAddress& address, Instant now) {
  const auto it = peers_.find(address);
  if (it != peers_.end()) it->second.active_at = now;
}

void HandshakeTracker::suspect(const PeerAddress& address, Instant now) {
  const auto it = peers_.find(address);
  if (it == peers_.end()) return;
  Peer& peer = it->second;
  const bool was_ready = peer.state == kReady;
  if (!advance(peer, kSuspect)) return;
  peer.failures = 0;
  if (now >= saturating_add(peer.connected_at, options_.back_off_max)) peer.suspicions = 0;
  const std::uint32_t before = peer.suspicions++;
  if (!was_ready) return;  // the refresh goes on as the handshake that is needed
  // L21: the first time at once, then with back-off.
  peer.deadline = before == 0 ? now : saturating_add(now, back_off(before - 1));
  if (before == 0) advance(peer, kBackOffOver);
}

bool HandshakeTracker::refresh(const PeerAddress& address, Instant now) {
  if (!want(address, now)) return false;
  Peer& peer = peers_.at(address);
  if (peer.state != kReady) return true;  // an answer is on its way to all that wait
  if (peer.refreshed_at &&
      now < saturating_add(*peer.refreshed_at, options_.refresh_interval_min)) {
    return false;  // L31: at most one per interval
  }
  advance(peer, kRefresh);
  peer.refreshed_at = now;
  peer.deadline = now;
  return true;
}

std::vector<PeerAddress> HandshakeTracker::take_due(Instant now) {
  if (in_flight_ >= options_.in_flight_max) return {};  // L43
  std::vector<std::pair<Instant, PeerAddress>> due;
  for (auto& [address, peer] : peers_) {
    if (peer.state == kBackingOff && now >= peer.deadline) advance(peer, kBackOffOver);
    if (peer.state == kDue || peer.state == kRefreshDue) due.emplace_back(peer.deadline, address);
  }
  std::ranges::sort(due);
  due.resize(std::min(due.size(), options_.in_flight_max - in_flight_));
  std::vector<PeerAddress> started;
  for (auto& [since, address] : due) {
    Peer& peer = peers_.at(address);
    advance(peer, kStarted);
    peer.deadline = saturating_add(now, options_.timeout);  // L48
    started.push_back(std::move(address));
  }
  return started;
}

bool HandshakeTracker::succeeded(const PeerAddress& address, Instant now) {
  const auto it = peers_.find(address);
  if (it == peers_.end()) return false;
  Peer& peer = it->second;
  const bool refreshed = peer.state == kRefreshing;
  if (!advance(peer, kSucceeded)) return false;
  if (refreshed) {
    peer.refreshed_at = now;
  } else {
    peer.connected_at = now;
  }
  peer.failures = 0;
  peer.active_at = now;
  return true;
}

bool HandshakeTracker::failed(const PeerAddress& address, Instant now) {
  const auto it = peers_.find(address);
  return it != peers_.end() && is_in_flight(it->second.state) && fail(it->second, now);
}

std::vector<HandshakeTracker::TimedOut> HandshakeTracker::take_timed_out(Instant now) {
  std::vector<TimedOut> timed_out;
  for (auto& [address, peer] : peers_) {
    if (!is_in_flight(peer.state) || now < peer.deadline) continue;
    timed_out.push_back({.address = address, .gave_up = fail(peer, now)});
  }
  return timed_out;
}

// Ends the attempt in flight. Returns true when it was the last.
bool HandshakeTracker::fail(Peer& peer, Instant now) {
  peer.active_at = now;
  if (peer.state == kRefreshing || ++peer.failures >= options_.attempts_max) {
    advance(peer, kLimit);
    peer.failures = 0;
    return true;
  }
  advance(peer, kFailed);
  peer.deadline = saturating_add(now, back_off(peer.failures - 1));
  return false;
}

// The n-th back-off in a row, from 0: between half and all of min(back_off_min · 2ⁿ, back_off_max).
Duration HandshakeTracker::back_off(std::uint32_t n) {
  Duration length = options_.back_off_min;
  for (; n > 0 && length < options_.back_off_max; --n) {
    length = length > options_.back_off_max / 2 ? options_.back_off_max : length * 2;
  }
  const auto half = static_cast<std::uint64_t>((length / 2).count());
  return length - Duration(prng_.below(half + 1));
}

std::vector<PeerAddress> HandshakeTracker::take_idle(std::span<const PeerAddress> busy,
                                                     Instant now) {
  std::vector<PeerAddress> idle;
  for (auto it = peers_.begin(); it != peers_.end();) {
    auto& [address, peer] = *it;
    if (peer.state == kGaveUp) {
      it = peers_.erase(it);
    } else if (peer.state != kReady || now < saturating_add(peer.active_at, options_.peer_ttl)) {
      ++it;
    } else if (std::ranges::find(busy, address) != busy.end()) {
      peer.active_at = now;  // L32: reads are activity
      ++it;
    } else {
      idle.push_back(address);
      it = peers_.erase(it);
    }
  }
  return idle;
}

HandshakeState HandshakeTracker::state(const PeerAddress& address) const {
  const auto it = peers_.find(address);
  KVL_CHECK(it != peers_.end(), "only a known peer has a state");
  return it->second.state;
}

Instant HandshakeTracker::next_deadline(const Peer& peer) const {
  const bool may_start = in_flight_ < options_.in_flight_max;
  switch (peer.state) {
    case kDue:
    case kBackingOff:
    case kRefreshDue:
      return may_start ? peer.deadline : kNever;  // L43: when one under way has ended
    case kInFlight:
    case kRefreshing:
      return peer.deadline;
    case kReady:
      return saturating_add(peer.active_at, options_.peer_ttl);
    case kGaveUp:
      return peer.active_at;  // goes with the next turn, which is due: it takes a place (L43)
  }
  KVL_UNREACHABLE("every handshake state has a deadline");
}

Instant HandshakeTracker::next_deadline() const {
  Instant next = kNever;
  for (const auto& [address, peer] : peers_) next = earlier(next, next_deadline(peer));
  return next;
}

}  // namespace kvlease
