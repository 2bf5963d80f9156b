// Which leases this engine (D) keeps alive at its peers and when the next heartbeat to each is due
// (L15–L18). Pure: the scheduler half asks take_due() once a step and puts the answer into the
// step's metadata; the worker half sends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "kvlease/base/ids.h"
#include "kvlease/base/time.h"

namespace kvlease {

// One connection to one incarnation of a remote engine, numbered by the scheduler half; never
// reused.
using PeerId = IntId<struct PeerIdTag, std::uint32_t>;

// What one heartbeat to one peer names, in order of the ids.
struct DueHeartbeat {
  PeerId peer;
  std::vector<LeaseId> leases;
  Duration late{};  // since it was due
  bool operator==(const DueHeartbeat&) const = default;
};

// A peer's clock runs while something is tracked there: its first heartbeat is due at once, each
// next one an interval after the last was taken (L18). A lease that joins a running clock is named
// by the next heartbeat, at most one of its own intervals later; its grant lasts several (L12).
class HeartbeatTracker {
 public:
  // Begins to renew a lease at a peer that is ready (L15).
  // The peer's interval becomes the smallest of its tracked leases' (L14). Counted per (peer,
  // lease): several local users of one lease renew it, at the smallest interval that one asked for,
  // until the last one is gone (L16). Requires: heartbeat_interval > 0. O(log n).
  void track(PeerId peer, const LeaseId& lease, Duration heartbeat_interval, Instant now);

  // One local user of the lease is gone. Returns true when it was the last: the lease is no longer
  // renewed (L16). Requires: tracked. O(log n).
  bool untrack(PeerId peer, const LeaseId& lease);

  // Forgets all that is tracked at a peer, for all users (L21, L31).
  void drop_peer(PeerId peer);

  // The heartbeats that are due, in order of the peers. A heartbeat names every tracked lease of
  // its peer once (L17); however late the call, a peer gets one, and its next is due an interval
  // after `now`.
  std::vector<DueHeartbeat> take_due(Instant now);

  // When the next heartbeat is due; kNever when nothing is tracked. O(peers).
  Instant next_deadline() const;

  bool is_tracked(PeerId peer, const LeaseId& lease) const;
  std::size_t tracked() const;
  std::size_t tracked(PeerId peer) const;
  // Intervals between heartbeats to a peer; kForever when nothing is tracked there.
  Duration interval(PeerId peer) const;

 private:
  struct Lease {
    std::size_t users = 0;
    Duration interval{};
  };
  struct Peer {
    std::map<LeaseId, Lease> leases;  // never empty
    std::map<Duration, std::size_t>
        intervals;          // how many leases want which: the first is the peer's
    Instant clock_start{};  // the last heartbeat, or the first track
    bool beaten = false;    // whether there was a heartbeat
    Instant hurried_at{};   // when a lease last made the interval smaller: due no earlier than that

    Instant due() const;
    void add_interval(Duration interval, Instant now);
    void remove_interval(Duration interval);
  };
  std::map<PeerId, Peer> peers_;
};

}  // namespace kvlease
