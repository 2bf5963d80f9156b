// The scheduler half of the connector, one per engine: admits and grants on P, tracks, judges and
// plans on D, and packs everything into the step's metadata. Hooks have vLLM's names and order
// (L50).
//
// P: admit ─ on_new_request ─ … request_finished (grant) ─ … update_connector_output (ends).
// D: on_new_request ─ get_num_new_matched_tokens ─ update_state_after_alloc (read) ─ …
//    update_connector_output (loaded, failed, quiet) ─ … request_finished.
// Handshakes: take_handshakes() says which to make; the host makes them and calls on_handshake().
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvlease/base/ids.h"
#include "kvlease/base/result.h"
#include "kvlease/base/time.h"
#include "kvlease/connector/step_metadata.h"
#include "kvlease/connector/transfer_plan.h"
#include "kvlease/core/adaptive_lease.h"
#include "kvlease/core/clock_offset.h"
#include "kvlease/core/counters.h"
#include "kvlease/core/engine_leases.h"
#include "kvlease/core/handshake_tracker.h"
#include "kvlease/core/heartbeat_tracker.h"
#include "kvlease/core/lease_config.h"
#include "kvlease/core/remote_request.h"
#include "kvlease/wire/handshake.h"
#include "kvlease/wire/kv_transfer_params.h"

namespace kvlease {

// One engine's own facts, as peers see them.
struct EngineFacts {
  EngineId engine_id;  // no '/' (L7)
  Incarnation incarnation;
  SealKey seal_key{};
  std::uint32_t word_high = 0;
  CompatibilityIdentity identity;
  ProtocolRange protocol = kProtocol;
  std::uint32_t tp_size = 1;
  std::string advertise_host;  // what peers are given
  std::uint16_t advertise_port = 0;
  Duration clock_epoch{};  // added to every reading of our clock that peers are told (L40)
};

EngineShape engine_shape(const EngineFacts& facts);

struct SchedulerConnectorOptions {
  EngineFacts facts;
  LeaseConfig config;
  std::uint32_t num_blocks = 0;          // of the pool, for the budget (L43)
  std::vector<std::string> allow_peers;  // hosts that D connects to (L51)
  std::uint64_t seed = 0;                // ids' suffixes, jitter
};

// What the hooks see of a request; the engine owns it.
struct RequestView {
  const RequestId& id;
  std::string_view client_id;  // X-Request-Id or the server's own
  std::span<const TokenId> prompt_token_ids;
  std::span<const TokenId> token_ids;       // the prompt and what was generated
  std::span<const std::string> cache_keys;  // what else keys the prefix cache (L52)
  const std::optional<KvTransferParams>& kv_transfer_params;
};

// How much of the pool a new remote-decode prefill would pin (L43).
struct AdmissionNeed {
  std::size_t prompt_blocks = 0;         // of the whole prompt
  std::size_t prompt_blocks_leased = 0;  // of these, leased already: they count once
  std::size_t leased_blocks = 0;         // distinct, in the whole pool, now
};

enum class FinishStatus : std::uint8_t { kLength, kStopped, kAborted, kFailed };

struct RequestFinished {
  bool delay_free = false;            // blocks are leased: keep them until the lease has ended …
  std::size_t num_leased_blocks = 0;  // … the first so many of the request's
  std::optional<KvTransferParams> kv_transfer_params;
};

// nullopt count: ask again later (the handshake is under way).
struct NewMatchedTokens {
  std::optional<std::uint32_t> count;
  bool is_async = false;
};

// What an allocation for a request is made of. block_ids: the request's blocks from its first token
// on.
struct Allocation {
  std::span<const BlockId> block_ids;
  std::uint32_t num_computed_tokens = 0;  // locally cached
  std::uint32_t num_external_tokens = 0;  // to come from the remote
};

// What a step's answers mean for the engine.
struct ConnectorUpdate {
  std::vector<RequestId> finished_recving;  // loaded on all ranks
  std::vector<FailedRecv> failed_recving;   // by kv_load_failure_policy (L27), once a request
  std::vector<RequestId> quiet_recving;     // a failed or aborted load's blocks may be reused
  std::vector<EngineLeaseEnded> finished_sending;  // leases that have ended on all ranks
  bool operator==(const ConnectorUpdate&) const = default;
};

class SchedulerConnector {
 public:
  explicit SchedulerConnector(const SchedulerConnectorOptions& options);

  // --- P: admission
  // -------------------------------------------------------------------------------

  // Reserves what a request with do_remote_decode needs; other requests pass. Errors:
  // kInvalidArgument when it could never fit the budget (400); kResourceExhausted when it does not
  // fit now or no slot is free (503; L22, L43).
  Result<void> admit(const RequestView& request, const AdmissionNeed& need);

  // --- hooks
  // --------------------------------------------------------------------------------------

  // A request enters the scheduler. D: begins handshake and tracking (L15). P: notes it for this
  // batch.
  void on_new_request(const RequestView& request, Instant now);

  // How many tokens beyond num_computed_tokens can come from the remote. Free of side effects.
  NewMatchedTokens get_num_new_matched_tokens(const RequestView& request,
                                              std::uint32_t num_computed_tokens, Instant now) const;

  // Blocks are allocated. D: plans the read, only what is missing (by count of locally cached
  // blocks), or the release of a full hit (L33). Called once per request that asked for external
  // tokens or that has a reference.
  void update_state_after_alloc(const RequestView& request, const Allocation& allocation,
                                Instant now);

  // This step's orders for the ranks; what was packed is not packed again.
  ConnectorMetadata build_connector_meta(Instant now);

  // The request has ended (or, for kAborted, is about to). P: grants (L1) when it ended by length
  // or stop, has do_remote_decode and blocks; those of the prompt are then leased and are pinned
  // before this returns is acted upon by anyone. D: stops tracking (L16), owes P a release (L33),
  // and holds all its blocks for the next turn (L39).
  // num_tokens_with_kv: tokens whose KV is in block_ids.
  RequestFinished request_finished(const RequestView& request, FinishStatus status,
                                   std::span<const BlockId> block_ids,
                                   std::uint32_t num_tokens_with_kv, Instant now);

  // The ranks' answers, index = rank. Requires: as many as tp_size.
  ConnectorUpdate update_connector_output(std::span<const WorkerOutput> outputs, Instant now);

  // --- handshake
  // ----------------------------------------------------------------------------------

  // This engine's side: the ranks' metadata, once, at start.
  void set_xfer_handshake_metadata(std::vector<RankMetadata> ranks);
  // The answer to a peer's request (checked by check_handshake_request).
  HandshakeReply handshake_reply(Instant now) const;

  struct HandshakeToMake {
    PeerAddress address;
    HandshakeRequest request;
  };
  // Handshakes to begin now; each must be reported by on_handshake or is failed at its time limit.
  std::vector<HandshakeToMake> take_handshakes(Instant now);
  // The host's report; a failed check of the reply counts as a failure. Late reports are ignored.
  void on_handshake(const PeerAddress& address, const Result<HandshakeReply>& reply, Instant now);

  // --- leases, by HTTP or by the host
  // --------------------------------------------------------------

  // Ends a live lease (L10, L34). False: not found.
  bool release(const LeaseId& lease);
  // Renews live leases on every rank with the next step's orders, as a heartbeat would (L2); one
  // that falls due before them is lost. Returns those that are not live, or are holds that nothing
  // renews.
  std::vector<LeaseId> renew(std::span<const LeaseId> leases);
  // Ends every live lease (drain limit, L36). Returns how many.
  std::size_t cut_leases();
  // From now on nothing is held for a next turn, and what is held is recalled (L36).
  void begin_drain();
  // Recalls the oldest holds until so many blocks are on their way back, or all are (L36, L49).
  void recall_holds(std::size_t blocks);
  // Whether a live lease is kept for the next turn.
  bool is_hold(const LeaseId& lease) const { return hold_numbers_.contains(lease); }
  std::size_t holds() const { return holds_.size(); }

  // --- the loop
  // -----------------------------------------------------------------------------------

  // When build_connector_meta() or take_handshakes() has something to do by itself; kTimeZero when
  // there are orders or reports that wait to be taken.
  Instant next_deadline() const;
  // True while a lease, read, release or handshake is outstanding (L11).
  bool has_work() const;

  // This half's and, merged, the ranks' counters and events.
  const Counters& counters() const { return counters_; }
  // Events that nobody takes are kept up to a bound; the newest are dropped and counted (L43).
  std::vector<Event> take_events();
  const EngineLeases& leases() const { return leases_; }
  // What the next lease gets: as configured, or what was observed makes of it.
  Duration lease_duration() const {
    return adaptive_ ? adaptive_->present() : options_.config.times.duration;
  }
  std::size_t tracked_requests() const { return loads_.size(); }
  std::size_t handshakes_in_flight() const { return handshakes_.in_flight(); }
  // Remote engines: connected, being connected, or backing off.
  std::size_t known_peers() const { return handshakes_.peers(); }
  const LeaseConfig& config() const { return options_.config; }
  const EngineFacts& facts() const { return options_.facts; }

 private:
  // D: one request with a reference.
  struct Load {
    RemoteRequestState state = RemoteRequestState::kWaitingForPeer;
    PeerAddress address;
    KvTransferParams params;
    bool prompt_matches = false;  // its digest is the prompt's (L52)
    std::uint32_t num_usable_tokens =
        0;                           // of the prompt, that the remote has and the digest covers
    bool hold = false;               // P: what D has held for this turn (L39)
    Instant waiting_until{};         // of kWaitingForPeer (L48)
    std::optional<PeerId> peer;      // the connection that it was accepted for
    bool tracked = false;            // counts as a user of the lease at heartbeats_
    std::size_t blocks_to_read = 0;  // 0: no read was planned
    std::set<Rank> validated;        // ranks whose read is over and good …
    std::set<Rank> quiet;            // … or over and not
    std::optional<LoadFailure> failure;
  };
  // D: one connection to one incarnation.
  struct Peer {
    PeerAddress address;
    HandshakeReply reply;
    ClockOffset clock;  // L40
  };
  // D: what one request's blocks are held for.
  struct Hold {
    LeaseId lease;
    std::size_t blocks = 0;
    bool recalled = false;
  };
  // D: P is to be told that a lease is not needed any more, when there is a connection again.
  struct OwedEnd {
    PeerAddress address;
    Incarnation incarnation;
    LeaseId lease;
    Instant until;
  };
  // P: one admitted request.
  struct Admitted {
    LeaseReservation reservation;
    std::size_t blocks = 0;  // counted against the budget
  };
  using LoadIt = std::map<RequestId, Load>::iterator;

  // What a reference is made of: blocks of a lease, or of a hold, which has an expiry on our clock.
  struct Handed {
    const LeaseReservation& reservation;
    std::span<const BlockId> block_ids;
    std::uint32_t num_tokens_with_kv = 0;
    std::span<const TokenId> digested;
    std::span<const std::string> cache_keys;
    LeaseTimes times{};
    std::optional<double> expires_at = {};  // seconds
  };

  bool has_news() const;

  // P
  void learn_lease_duration(std::span<const WorkerOutput> outputs, Instant now);
  RequestFinished finish_remote_decode(const RequestView& request, FinishStatus status,
                                       std::span<const BlockId> block_ids,
                                       std::uint32_t num_tokens_with_kv, Instant now);
  KvTransferParams make_params(const Handed& handed) const;

  double told_seconds(Instant instant) const;

  // Two-way transfer (scheduler_holds.cc)
  void reserve_hold(const RequestView& request);
  std::optional<RequestFinished> keep_hold(const RequestView& request, FinishStatus status,
                                           std::span<const BlockId> block_ids,
                                           std::uint32_t num_tokens_with_kv, Instant now);
  std::size_t hold_budget() const;  // blocks (L49)
  void make_room_for_hold(std::size_t blocks);
  void forget_hold(const LeaseId& lease);
  // Why a hold is not worth reading; none: it is.
  std::optional<Counter> declined(const Load& load, std::uint32_t num_computed_tokens,
                                  Instant now) const;

  // D: references
  void apply(Load& load, RemoteRequestEvent event);
  void note_prompt(Load& load, const RequestView& request);
  bool end_own_lease(const RequestView& request);
  void wait_for_peer(const RequestId& id, Load& load, Instant now);
  void stop_waiting(const RequestId& id, Load& load);
  void judge(LoadIt it, Instant now);
  Result<void> check_reference(const Load& load, const Peer& peer) const;
  void accept(LoadIt it, PeerId peer, Instant now);
  void refuse(LoadIt it, LoadFailure failure, const std::string& why);
  void fail_load(const RequestId& id, Load& load, RemoteRequestEvent event, LoadFailure failure,
                 const std::string& why);
  void finish_remote_prefill(LoadIt it, Instant now);
  void quarantine(const RequestId& id, const Load& load);

  // D: reads and what they owe
  void plan_read(const RequestId& id, Load& load, const Allocation& allocation);
  void merge_rank_output(Rank rank, const WorkerOutput& output, std::set<RequestId>& touched);
  void settle(LoadIt it, Instant now);
  void track(Load& load, PeerId peer, Instant now);
  void end_tracking(Load& load);
  void tell_end(const Load& load, Instant now);
  void owe_end(OwedEnd owed);
  void pay_owed_ends(const PeerAddress& address);
  bool is_over(const Load& load) const;
  static bool is_hit_without_peer(const Load& load, std::uint32_t num_computed_tokens);
  std::optional<PeerId> connection(const Load& load) const;

  // D: peers
  Result<void> check_reply(const PeerAddress& address, const Result<HandshakeReply>& reply) const;
  void on_new_peer(const PeerAddress& address, const HandshakeReply& reply, Instant now);
  void drop_peer(PeerId id, Instant now);
  void on_suspect(const SuspectPeer& suspected, Instant now);
  void on_agent_renewed(Rank rank, const RankMetadata& metadata, Instant now);
  void judge_waiting(const PeerAddress& address, Instant now);
  void fail_waiting(const PeerAddress& address, const std::string& why);
  void fail_overdue_waiting(Instant now);
  void forget_idle_peers(Instant now);
  HeartbeatInfo heartbeat_info(const DueHeartbeat& due) const;
  HandshakeRequest handshake_request(const PeerAddress& address) const;

  void emit(Event event);

  SchedulerConnectorOptions options_;
  EngineLeases leases_;
  std::optional<AdaptiveLease> adaptive_;  // with kv_lease_adaptive
  HeartbeatTracker heartbeats_;
  HandshakeTracker handshakes_;
  std::vector<RankMetadata> ranks_;
  std::map<RequestId, Admitted> admitted_;
  std::size_t admitted_blocks_ = 0;
  std::map<RequestId, LeaseReservation> hold_reservations_;
  std::map<std::uint64_t, Hold> holds_;  // live, in order of their grants
  std::map<LeaseId, std::uint64_t> hold_numbers_;
  std::uint64_t next_hold_ = 0;
  bool draining_ = false;
  std::map<PeerAddress, Instant> handshakes_sent_;  // in flight
  std::map<RequestId, Load> loads_;
  std::set<std::pair<Instant, RequestId>> waiting_;  // loads that wait for a peer, by their limit
  std::map<PeerId, Peer> peers_;
  std::map<PeerAddress, PeerId> ready_;  // the connection in use for each address
  std::deque<OwedEnd> owed_ends_;        // in order of `until`
  std::uint32_t next_peer_ = 1;
  ConnectorMetadata next_;  // the orders of the next step
  ConnectorUpdate update_;  // what the next update tells the engine
  Counters counters_;
  std::vector<Event> events_;
};

}  // namespace kvlease
