// The worker half of the connector, one per rank: drives the transport. P's part keeps this rank's
// copy of the leases; D's part reads, validates, probes and sends. Hooks have vLLM's names and
// order (L50): per step start_load_kv(metadata) … get_finished(); in between poll() as often as the
// loop turns.
//
// It decides nothing that the scheduler half can decide, and both share no memory
// (step_metadata.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <ranges>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvlease/base/ids.h"
#include "kvlease/base/result.h"
#include "kvlease/base/time.h"
#include "kvlease/connector/step_metadata.h"
#include "kvlease/connector/transfer_plan.h"
#include "kvlease/core/lease_config.h"
#include "kvlease/core/lease_entries.h"
#include "kvlease/core/lease_table.h"
#include "kvlease/core/stall_grace.h"
#include "kvlease/core/transfer_tracker.h"
#include "kvlease/transport/transport.h"

namespace kvlease {

struct WorkerConnectorOptions {
  Rank rank;
  EngineShape shape;  // of this engine
  LeaseConfig config;
  std::uint32_t word_high = 0;  // of this start's lease entries, the same on all ranks (L22)
  // False only in tests and the demo, to show that validation matters: bytes are used unchecked.
  bool validate_reads = true;
};

// This rank's KV cache and the two small tables in host memory. The host owns the memory; it
// outlives the connector and its transport and is never unmapped before.
struct KvCaches {
  std::vector<KvRegion> regions;  // block b of region r: base_address + b * block_len_bytes
  std::uint32_t num_blocks = 0;
  std::span<LeaseEntry> entries;  // this rank's lease entries (L22)
  std::span<LeaseEntry> landing;  // cells that remote entries are read into (L26)
};

class WorkerConnector {
 public:
  // Requires: `transport` outlives this.
  WorkerConnector(const WorkerConnectorOptions& options, Transport& transport,
                  const KvCaches& caches);

  // Registers the memory and prepares the local lists. Errors: the transport's.
  // Requires: called once, before everything else.
  Result<void> register_kv_caches();

  // Lets this rank's agent be made anew under the given number when the transport has refused one
  // peer's metadata three times, once all transfers are final (L21). The host replaces the agent
  // that it owns and returns the new one; when it cannot, or the new one takes no memory, it is
  // asked again with back-off. Without this, the peer stays refused.
  using RenewAgent = std::move_only_function<Result<Transport*>(std::uint32_t agent_number)>;
  void set_renew_agent(RenewAgent renew_agent) { renew_agent_ = std::move(renew_agent); }

  // What peers need of this rank (without `rank`'s transport secrets nothing can be read).
  // Requires: register_kv_caches succeeded. Errors: the transport's.
  Result<RankMetadata> get_handshake_metadata();

  // Begins a turn of the loop: counts it in entry 0 (L22) and starts a grace when the loop woke
  // late (L47). `wake_requested`: when the loop had asked to be woken.
  void begin_turn(Instant wake_requested, Instant now);

  // Takes one step's orders, in this order: peers, leases (in batch, not processed, to send, to
  // renew, to end), reads, completions, heartbeats with their probes.
  void start_load_kv(const ConnectorMetadata& metadata, Instant now);

  // Drains and applies notifications in order of arrival, moves the reads on, sweeps, in this order
  // (L9). Never blocks.
  void poll(Instant now);

  // poll(), then takes this rank's reports.
  WorkerOutput get_finished(Instant now);

  // When poll() has something to do next: leases and reads at their deadlines, the transport when
  // it says so; once a second without anything outstanding, so that an idle inbox stays small (L11,
  // L44).
  Instant next_deadline(Instant now);

  const LeaseTable& leases() const { return leases_; }
  std::size_t reads_in_flight() const { return reads_.size(); }
  std::size_t free_landing_cells() const { return free_cells_.size(); }

 private:
  // What the probe has seen of one lease.
  struct Acknowledgement {
    std::uint64_t renewals = 0;
    std::uint32_t unchanged =
        0;  // probes in a row that saw turns move but not this lease's renewals
  };
  // One probe in flight or the last one's memory (L25).
  struct Probe {
    std::optional<TransferHandle> transfer;
    std::vector<ProbedLease> leases;
    std::vector<std::uint32_t> cells;  // [0] for entry 0, then one a lease
    Instant posted_at{};
    std::uint64_t turns_seen = 0;
    Instant turns_moved_at{};
    std::map<LeaseId, Acknowledgement> seen;
    std::size_t cursor = 0;  // where the next probe goes on when the cells are too few
  };
  // One rank of one connection that this rank is paired with (L37).
  struct Peer {
    EngineId engine;
    AgentName agent;
    std::uint32_t num_blocks = 0;
    std::uint32_t entries_count = 0;
    std::uint32_t readers = 1;                  // of our ranks that report to it (L7)
    std::optional<BlockPlan> plan;              // none: nothing is read from it, it is only told
    DescListHandle local_list;                  // our blocks as the plan cuts them; shared by peers
    std::optional<DescListHandle> blocks_list;  // theirs; none without a plan
    std::optional<DescListHandle> entries_list;  // none for a foreign peer (L28)
    std::uint32_t transfers = 0;                 // posted and not final
    std::uint32_t send_failures = 0;             // in a row (L21)
    bool removing = false;
    bool suspect_reported = false;
    Probe probe;
  };
  using PeerKey = std::pair<PeerId, Rank>;
  // A read's part from one rank.
  struct ReadPart {
    Rank remote;
    std::uint32_t cell = 0;                  // for the lease's entry there
    std::optional<TransferHandle> transfer;  // what is in flight; none: what was posted is final
  };
  struct Read {
    RecvRequest order;
    std::vector<ReadPart> parts;  // none: waits for landing cells, or for its peer to be loaded
    std::uint64_t bytes = 0;
    std::uint64_t descriptors = 0;
    Duration posting{};  // the transport's time to start it, the entries' reads left out
    Instant begun_at{};

    bool in_flight() const {
      return std::ranges::any_of(parts,
                                 [](const ReadPart& part) { return part.transfer.has_value(); });
    }
  };
  using ReadIt = std::map<RequestId, Read>::iterator;

  void add_waiting_peers(Instant now);
  auto ranks_of(PeerId id) {
    return std::ranges::subrange(peers_.lower_bound({id, Rank(0)}),
                                 peers_.upper_bound({id, Rank(UINT32_MAX)}));
  }
  EngineShape shape_of(const PeerToAdd& order) const;
  Result<void> add_peer(const PeerToAdd& order, Instant now);
  Result<void> add_rank(const PeerToAdd& order, const PairedRank& paired, Instant now);
  Result<void> prepare_lists(const RankMetadata& rank, const EngineShape& shape, Peer& peer);
  Result<DescListHandle> local_list(const BlockRuns& runs);
  void release_lists(const Peer& peer);
  void remove_quiet_peers();
  void count_refusal(const AgentName& agent);
  void renew_refused_agent(Instant now);
  Result<RankMetadata> renew_agent();

  void begin_read(const RecvRequest& order, Instant now);
  void start_waiting_reads(Instant now);
  void post_blocks(Read& read, Instant now);
  bool post_part(Read& read, ReadPart& part);
  void post_entries(Read& read);
  void poll_parts(Read& read);
  bool advance_read(Read& read, Instant now);
  void on_blocks_done(Read& read, Instant now);
  void on_entries_done(Read& read, Instant now);
  void validated(Read& read, Instant now);
  void fail_read(Read& read, TransferEvent event, LoadFailure failure);
  void fail_due_reads(Instant now);

  void send_heartbeat(const HeartbeatInfo& info, Instant now);
  void send_completion(const CompletionToSend& order);
  bool send(PeerId id, Peer& peer, std::span<const std::byte> payload);
  void post_probe(PeerId id, Peer& peer, const HeartbeatInfo& info, Instant now);
  void advance_probe(PeerId id, Peer& peer, Instant now);
  void judge_probe(PeerId id, Peer& peer, Instant now);
  void suspect(PeerId id, std::string reason);

  void drain_notifs(Instant now);
  std::uint32_t take_cell();
  void put_back_cell(std::uint32_t cell) { free_cells_.push_back(cell); }
  LeaseEntry landed(std::uint32_t cell) const;
  void emit(Event event) { output_.events.push_back(std::move(event)); }

  WorkerConnectorOptions options_;
  Transport* transport_;
  KvCaches caches_;
  LeaseEntries entries_;
  LeaseTable leases_;
  StallGrace grace_;
  TransferTracker tracker_;
  std::vector<std::pair<BlockRuns, DescListHandle>> local_lists_;  // one for each way to cut blocks
  DescListHandle landing_list_;
  std::map<PeerKey, Peer> peers_;
  std::vector<PeerToAdd> peers_waiting_;  // until an older connection to the same agent is gone
  RenewAgent renew_agent_;
  std::uint32_t agent_number_ = 0;
  std::map<AgentName, std::uint32_t> refusals_;  // in a row, by peer
  std::set<AgentName> renewed_for_;     // refused by the new agent too: the peer's own fault
  std::optional<Instant> renewal_due_;  // when our own agent is to be made anew
  Duration renewal_back_off_{};         // before the next attempt, when one fails
  bool has_memory_ = false;             // false after a renewal that went half-way
  std::map<RequestId, Read> reads_;
  std::vector<std::uint32_t> free_cells_;
  Counters lease_counters_taken_;
  WorkerOutput output_;
};

}  // namespace kvlease
