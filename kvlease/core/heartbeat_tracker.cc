// The heartbeat clocks of D (L14–L18). No instant is stored as due: it follows from the last
// heartbeat and the smallest interval, so a lease that joins or leaves moves it both ways.
#include "kvlease/core/heartbeat_tracker.h"

#include <algorithm>

#include "kvlease/base/check.h"

namespace kvlease {

Instant HeartbeatTracker::Peer::due() const {
  return beaten ? saturating_add(clock_start, intervals.begin()->first)  // L14: the smallest
                : clock_start;                                           // L18: at once
}

void HeartbeatTracker::Peer::add_interval(Duration interval, Instant now) {
  if (intervals.empty() || interval < intervals.begin()->first) hurried_at = now;
  ++intervals[interval];
}

void HeartbeatTracker::Peer::remove_interval(Duration interval) {
  const auto it = intervals.find(interval);
  if (--it->second == 0) intervals.erase(it);
}

void HeartbeatTracker::track(PeerId peer_id, const LeaseId& lease_id, Duration heartbeat_interval,
                             Instant now) {
  KVL_CHECK(heartbeat_interval > Duration::zero(), "a heartbeat interval is positive (L13)");
  const auto [peer_it, peer_is_new] = peers_.try_emplace(peer_id);
  Peer& peer = peer_it->second;
  if (peer_is_new) peer.clock_start = now;

  const auto [lease_it, lease_is_new] = peer.leases.try_emplace(lease_id);
  Lease& lease = lease_it->second;
  ++lease.users;  // L16
  if (lease_is_new) {
    lease.interval = heartbeat_interval;
    peer.add_interval(heartbeat_interval, now);
  } else if (heartbeat_interval < lease.interval) {
    peer.add_interval(heartbeat_interval, now);
    peer.remove_interval(lease.interval);
    lease.interval = heartbeat_interval;
  }
}

bool HeartbeatTracker::untrack(PeerId peer_id, const LeaseId& lease_id) {
  const auto peer_it = peers_.find(peer_id);
  KVL_CHECK(peer_it != peers_.end(), "only a tracked lease can be untracked");
  Peer& peer = peer_it->second;
  const auto lease_it = peer.leases.find(lease_id);
  KVL_CHECK(lease_it != peer.leases.end(), "only a tracked lease can be untracked");

  if (--lease_it->second.users > 0) return false;  // L16: follow the last local user
  peer.remove_interval(lease_it->second.interval);
  peer.leases.erase(lease_it);
  if (peer.leases.empty()) peers_.erase(peer_it);
  return true;
}

void HeartbeatTracker::drop_peer(PeerId peer) { peers_.erase(peer); }

std::vector<DueHeartbeat> HeartbeatTracker::take_due(Instant now) {
  std::vector<DueHeartbeat> due;
  for (auto& [id, peer] : peers_) {
    if (now < peer.due()) continue;
    // L17: one message, also after a stall; what was missed is not made up for.
    DueHeartbeat& heartbeat = due.emplace_back(DueHeartbeat{
        .peer = id, .leases = {}, .late = now - std::max(peer.due(), peer.hurried_at)});
    heartbeat.leases.reserve(peer.leases.size());
    for (const auto& [lease_id, lease] : peer.leases) heartbeat.leases.push_back(lease_id);
    peer.clock_start = now;
    peer.beaten = true;
  }
  return due;
}

Instant HeartbeatTracker::next_deadline() const {
  Instant deadline = kNever;
  for (const auto& [id, peer] : peers_) deadline = earlier(deadline, peer.due());
  return deadline;
}

bool HeartbeatTracker::is_tracked(PeerId peer, const LeaseId& lease) const {
  const auto it = peers_.find(peer);
  return it != peers_.end() && it->second.leases.contains(lease);
}

std::size_t HeartbeatTracker::tracked() const {
  std::size_t leases = 0;
  for (const auto& [id, peer] : peers_) leases += peer.leases.size();
  return leases;
}

std::size_t HeartbeatTracker::tracked(PeerId peer) const {
  const auto it = peers_.find(peer);
  return it == peers_.end() ? 0 : it->second.leases.size();
}

Duration HeartbeatTracker::interval(PeerId peer) const {
  const auto it = peers_.find(peer);
  return it == peers_.end() ? kForever : it->second.intervals.begin()->first;
}

}  // namespace kvlease
