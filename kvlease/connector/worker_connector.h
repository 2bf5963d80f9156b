// The worker half of the connector, one per rank: drives the transport. P's part keeps this rank's copy
// of the leases; D's part reads, validates, probes and sends. Hooks have vLLM's names and order (L50):
// per step start_load_kv(metadata) … get_finished(); in between poll() as often as the loop turns.
//
// It decides nothing that the scheduler half can decide, and both share no memory (step_metadata.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvlease/base/ids.h"
#include "kvlease/base/result.h"
#include "kvlease/base/time.h"
#include "kvlease/connector/step_metadata.h"
#include "kvlease/core/lease_config.h"
#include "kvlease/core/lease_entries.h"
#include "kvlease/core/lease_table.h"
#include "kvlease/core/stall_grace.h"
#include "kvlease/core/transfer_tracker.h"
#include "kvlease/transport/transport.h"

namespace kvlease {

struct WorkerConnectorOptions {
  Rank rank;
  LeaseConfig config;
  std::uint32_t word_high = 0;  // of this start's lease entries, the same on all ranks (L22)
  // False only in tests and the demo, to show that validation matters: bytes are used unchecked.
  bool validate_reads = true;
};

// This rank's KV cache and the two small tables in host memory. The host owns the memory; it outlives
// the connector and its transport and is never unmapped before.
struct KvCaches {
  std::vector<KvRegion> regions;     // block b of region r: base_address + b * block_len_bytes
  std::uint32_t num_blocks = 0;
  std::span<LeaseEntry> entries;     // this rank's lease entries (L22)
  std::span<LeaseEntry> landing;     // cells that remote entries are read into (L26)
};

class WorkerConnector {
 public:
  // Requires: `transport` outlives this.
  WorkerConnector(const WorkerConnectorOptions& options, Transport& transport,
                  const KvCaches& caches);

  // Registers the memory and prepares the local lists. Errors: the transport's.
  // Requires: called once, before everything else.
  Result<void> register_kv_caches();

  // What peers need of this rank (without `rank`'s transport secrets nothing can be read).
  // Requires: register_kv_caches succeeded. Errors: the transport's.
  Result<RankMetadata> get_handshake_metadata();

  // Begins a turn of the loop: counts it in entry 0 (L22) and starts a grace when the loop woke late
  // (L47). `wake_requested`: when the loop had asked to be woken.
  void begin_turn(Instant wake_requested, Instant now);

  // Takes one step's orders, in this order: peers, leases (in batch, not processed, to send, to end),
  // reads, completions, heartbeats with their probes.
  void start_load_kv(const ConnectorMetadata& metadata, Instant now);

  // Drains and applies notifications in order of arrival, moves the reads on, sweeps, in this order
  // (L9). Never blocks.
  void poll(Instant now);

  // poll(), then takes this rank's reports.
  WorkerOutput get_finished(Instant now);

  // When poll() has something to do next: leases and reads at their deadlines, the transport when it
  // says so; once a second without anything outstanding, so that an idle inbox stays small (L11, L44).
  Instant next_deadline(Instant now);

  const LeaseTable& leases() const { return leases_; }
  std::size_t reads_in_flight() const { return reads_.size(); }
  std::size_t free_landing_cells() const { return free_cells_.size(); }

 private:
  struct Peer {
    EngineId engine;
    AgentName agent;
    std::uint32_t num_blocks = 0;
    std::uint32_t entries_count = 0;
    DescListHandle blocks_list;
    DescListHandle entries_list;
    std::uint32_t transfers = 0;        // posted and not final
    std::uint32_t send_failures = 0;    // in a row (L21)
    bool removing = false;
    bool suspect_reported = false;
    // The probe (L25).
    std::optional<TransferHandle> probe;
    std::vector<ProbedLease> probed;
    std::vector<std::uint32_t> probe_cells;
    Instant probe_posted_at{};
    std::uint64_t turns_seen = 0;
    Instant turns_moved_at{};
    std::map<LeaseId, std::uint64_t> renewals_seen;
    std::uint32_t stalled_intervals = 0;
    std::size_t probe_cursor = 0;
  };
  struct Read {
    RecvRequest order;
    std::optional<TransferHandle> transfer;  // what is in flight now; none: all that was posted is final
    std::uint32_t cell = 0;
    Instant posted_at{};
    std::uint64_t bytes = 0;
  };

  Result<void> add_peer(const PeerToAdd& order, Instant now);
  void remove_peer_when_quiet(PeerId id);
  void begin_read(const RecvRequest& order, Instant now);
  bool start_waiting_reads(Instant now);
  void post_blocks(Read& read, Peer& peer, Instant now);
  void post_entry(Read& read, Peer& peer, Instant now);
  void advance_read(Read& read, Instant now);
  void apply_read_event(Read& read, TransferEvent event, LoadFailure failure, Instant now);
  void send_heartbeat(const HeartbeatInfo& info, Instant now);
  void send(Peer& peer, PeerId id, std::span<const std::byte> payload);
  void post_probe(Peer& peer, PeerId id, const HeartbeatInfo& info, Instant now);
  void advance_probe(Peer& peer, PeerId id, Instant now);
  void judge_probe(Peer& peer, PeerId id, Instant now);
  void suspect(Peer& peer, PeerId id, std::string reason);
  void drain_notifs(Instant now);
  void emit(Event event) { output_.events.push_back(std::move(event)); }

  WorkerConnectorOptions options_;
  Transport& transport_;
  KvCaches caches_;
  LeaseEntries entries_;
  LeaseTable leases_;
  StallGrace grace_;
  TransferTracker tracker_;
  DescListHandle local_blocks_list_;
  DescListHandle landing_list_;
  std::map<PeerId, Peer> peers_;
  std::map<RequestId, Read> reads_;
  std::deque<RecvRequest> waiting_reads_;   // for a free landing cell
  std::vector<std::uint32_t> free_cells_;
  Counters lease_counters_taken_;
  WorkerOutput output_;
};

}  // namespace kvlease
