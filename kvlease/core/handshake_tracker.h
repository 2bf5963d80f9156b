// The handshakes of one engine with its remote engines: one at a time for each address, in the
// background, with back-off, re-made for a suspect or restarted peer (L21, L29–L32). Pure: it says
// which handshakes to start; the host makes them and reports back.
//
//           want           started               succeeded
//   idle ─────────► due ────────────► in flight ───────────► ready ─── peer_ttl ──► idle
//                    ▲                 │     │ limit          │ ▲ │
//      back-off over │         failed  │     ▼        suspect │ │ │ refresh
//                    └── backing off ◄─┘  gave up             │ │ ▼
//                          ▲                                  │ │ refresh due ── started ──┐
//                          └──────────────────────────────────┘ └── succeeded, limit ── refreshing
//
// While a refresh is due or under way the old connection stays in use; when it becomes suspect
// then, the refresh is the handshake that makes it anew. A refresh has one attempt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvlease/base/ids.h"
#include "kvlease/base/prng.h"
#include "kvlease/base/time.h"
#include "kvlease/core/transition_table.h"

namespace kvlease {

// Where a reference says its engine is: one handshake serves all requests that name the same (L29).
struct PeerAddress {
  EngineId engine;
  std::string host;
  std::uint16_t port = 0;
  auto operator<=>(const PeerAddress&) const = default;
};

enum class HandshakeState : std::uint8_t {
  kDue,
  kInFlight,
  kReady,
  kBackingOff,
  kGaveUp,      // for the requests that wait; gone with the next take_idle()
  kRefreshDue,  // as kDue and …
  kRefreshing,  // … kInFlight, with a connection in use
};
enum class HandshakeEvent : std::uint8_t {
  kStarted,  // the host was told to start
  kSucceeded,
  kFailed,  // refused, unreachable or timed out; attempts are left
  kLimit,   // failed, and no attempt is left
  kBackOffOver,
  kSuspect,  // a connection must be made anew (L21); the first time the back-off is zero
  kRefresh,  // a reference names another incarnation (L31): ask again, the old one stays in use
  kWanted,   // a new request names a peer that was given up: try again
};
std::string_view handshake_state_name(HandshakeState state);
std::string_view handshake_event_name(HandshakeEvent event);
std::span<const Transition<HandshakeState, HandshakeEvent>> handshake_transitions();

struct HandshakeTrackerOptions {
  Duration timeout = std::chrono::seconds{10};  // handshake_timeout (L48), of one attempt
  // The n-th back-off in a row lasts min · 2ⁿ, at most max; jitter takes off up to half of it.
  Duration back_off_min = std::chrono::milliseconds{250};
  Duration back_off_max = std::chrono::seconds{10};
  std::uint32_t attempts_max = 4;  // in a row; then waiting requests get the failure
  Duration refresh_interval_min = std::chrono::seconds{5};  // between two of one peer (L31)
  Duration peer_ttl = std::chrono::seconds{3600};           // engine_ttl (L32)
  std::uint64_t jitter_seed = 0;
  std::size_t peers_max = 4096;    // known at once; no request makes it more (L43)
  std::size_t in_flight_max = 64;  // handshakes under way at once; others stay due (L43)
};

class HandshakeTracker {
 public:
  explicit HandshakeTracker(const HandshakeTrackerOptions& options);

  // A request names this address: a handshake is due unless one is there, under way or backing off
  // (L29). Also counts as activity (L32). Returns false, and does nothing, for a new one above
  // peers_max (L43): its requests take the failure policy.
  bool want(const PeerAddress& address, Instant now);

  // Heartbeats, reads and messages to a peer keep it (L32). Nothing for an unknown one.
  void touch(const PeerAddress& address, Instant now);

  // The connection in use has become suspect (L21): the handshake is due at once the first time,
  // else after a back-off that grows with each suspicion; a connection that held for back_off_max
  // counts as healthy, and the next suspicion as the first. Nothing when no connection is in use.
  void suspect(const PeerAddress& address, Instant now);

  // A reference names an incarnation that is not the ready one (L31). Returns true when an answer
  // is to come: wait for it. False when it was asked less than refresh_interval_min ago: judge by
  // what is known.
  bool refresh(const PeerAddress& address, Instant now);

  // The handshakes to start now, each once, those that are due longest first; they are in flight
  // until reported or timed out.
  std::vector<PeerAddress> take_due(Instant now);

  // The host's report of the handshake in flight. A report for one that timed out is ignored
  // (false). failed() returns true when this was the last attempt: the requests that wait fail
  // (L27, L29).
  bool succeeded(const PeerAddress& address, Instant now);
  bool failed(const PeerAddress& address, Instant now);

  // Handshakes whose time limit has passed since the last call: the host cancels them, so that no
  // report of theirs meets a later attempt; each then counts as failed() and is listed with whether
  // it was the last attempt.
  struct TimedOut {
    PeerAddress address;
    bool gave_up = false;
    bool operator==(const TimedOut&) const = default;
  };
  std::vector<TimedOut> take_timed_out(Instant now);

  // Ready peers without activity for peer_ttl, forgotten by this call (L32). `busy` names those
  // that may not go (transfers not final): they count as active now. Peers that were given up go
  // unmentioned: nothing is held for them, and they do not pile up (L43).
  std::vector<PeerAddress> take_idle(std::span<const PeerAddress> busy, Instant now);

  bool is_known(const PeerAddress& address) const { return peers_.contains(address); }
  // Requires: known.
  HandshakeState state(const PeerAddress& address) const;

  // The earliest instant at which take_due(), take_timed_out() or take_idle() has something to do;
  // kNever when there is none. O(peers).
  Instant next_deadline() const;
  std::size_t peers() const { return peers_.size(); }
  std::size_t in_flight() const { return in_flight_; }

 private:
  struct Peer {
    HandshakeState state = HandshakeState::kDue;
    std::uint32_t failures = 0;    // in a row, of this round of attempts
    std::uint32_t suspicions = 0;  // in a row, none of them after a healthy time
    // Due: since when. In flight: its time limit. Backing off: the end of it. Else unused.
    Instant deadline{};
    Instant connected_at{};               // when this connection was made
    std::optional<Instant> refreshed_at;  // when a refresh was last begun or answered
    Instant active_at{};
  };

  bool advance(Peer& peer, HandshakeEvent event);
  bool fail(Peer& peer, Instant now);
  Duration back_off(std::uint32_t n);
  Instant next_deadline(const Peer& peer) const;

  std::map<PeerAddress, Peer> peers_;
  std::size_t in_flight_ = 0;
  HandshakeTrackerOptions options_;
  Prng prng_;
};

}  // namespace kvlease
