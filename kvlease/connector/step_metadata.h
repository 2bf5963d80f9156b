// What the two halves of a connector tell each other once a step: values only, each with an
// encoding, so that ranks may live in other processes (L50). The scheduler half's word is
// ConnectorMetadata, a rank's answer is WorkerOutput.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvlease/base/bytes.h"
#include "kvlease/base/ids.h"
#include "kvlease/base/result.h"
#include "kvlease/base/time.h"
#include "kvlease/core/counters.h"
#include "kvlease/core/engine_leases.h"
#include "kvlease/core/event.h"
#include "kvlease/core/heartbeat_tracker.h"
#include "kvlease/core/lease.h"
#include "kvlease/core/transfer_tracker.h"
#include "kvlease/wire/handshake.h"

namespace kvlease {

// A peer to load: every rank of one incarnation of a remote engine (L29, L31).
struct PeerToAdd {
  PeerId peer;
  EngineId engine;
  std::uint32_t block_size = 0;  // tokens; ours is a multiple of it (L30)
  std::vector<RankMetadata> ranks;
  bool operator==(const PeerToAdd&) const = default;
};

// One request's read, the same on every rank: the remote blocks fill the local ones in order, as
// many in each as the sizes of the blocks say; the last one may stay short.
struct RecvRequest {
  RequestId request;
  PeerId peer;
  LeaseId lease;
  SlotId slot;             // the lease's entry (L22) …
  std::uint64_t word = 0;  // … and what it must hold after the read (L24)
  std::vector<BlockId> local_block_ids;
  std::vector<BlockId> remote_block_ids;
  bool operator==(const RecvRequest&) const = default;
};

// A lease whose entry the probe reads (L25).
struct ProbedLease {
  LeaseId lease;
  SlotId slot;
  std::uint64_t word = 0;
  bool operator==(const ProbedLease&) const = default;
};

// One due heartbeat: what to name, and which of these are still waiting to be read (probed).
struct HeartbeatInfo {
  PeerId peer;
  std::vector<LeaseId> leases;
  std::vector<ProbedLease> probes;
  Duration interval{};
  Duration late{};  // since it was due
  bool operator==(const HeartbeatInfo&) const = default;
};

// A completion or release that every rank sends to its paired ranks of the peer (L24, L33).
struct CompletionToSend {
  PeerId peer;
  LeaseId lease;
  bool operator==(const CompletionToSend&) const = default;
};

struct ConnectorMetadata {
  // D
  std::vector<PeerId> peers_to_remove;
  std::vector<PeerToAdd> peers_to_add;
  std::vector<RecvRequest> reqs_to_recv;
  std::vector<CompletionToSend> completions_to_send;
  std::vector<HeartbeatInfo> heartbeat_by_engine;
  // P
  std::vector<LeaseId> reqs_in_batch;
  std::vector<LeaseId> reqs_not_processed;
  std::vector<LeaseGrant> reqs_to_send;
  std::vector<LeaseEndOrder> leases_to_end;
  std::vector<LeaseId> leases_to_renew;  // by HTTP (L2)
  bool operator==(const ConnectorMetadata&) const = default;

  bool empty() const { return *this == ConnectorMetadata{}; }
};

struct FailedRecv {
  RequestId request;
  LoadFailure failure = LoadFailure::kTransferFailed;
  bool operator==(const FailedRecv&) const = default;
};
struct LostLease {
  PeerId peer;
  LeaseId lease;
  bool operator==(const LostLease&) const = default;
};
struct SuspectPeer {
  PeerId peer;
  std::string reason;
  bool operator==(const SuspectPeer&) const = default;
};

// One rank's reports since its last answer.
struct WorkerOutput {
  std::vector<LeaseEnded> finished_sending;    // copies that ended, fenced (L6, L23)
  std::vector<LeaseWait> lease_waits;          // for signs of readers, with kv_lease_adaptive
  std::vector<RequestId> finished_recving;     // read and validated on this rank (L24)
  std::vector<FailedRecv> failed_recving;      // takes the failure path; not yet quiet (L27)
  std::vector<RequestId> quiet_recving;        // failed before, its destination may be reused (L26)
  std::vector<LostLease> lost_leases;          // found by the probe (L25)
  std::vector<SuspectPeer> suspect_peers;      // (L21)
  std::vector<RankMetadata> renewed_metadata;  // one when this rank's agent was made anew (L21)
  Counters counters;                           // since the last answer
  std::vector<Event> events;
  bool operator==(const WorkerOutput&) const = default;

  bool empty() const { return *this == WorkerOutput{}; }
};

Bytes encode(const ConnectorMetadata& metadata);
Bytes encode(const WorkerOutput& output);
// Errors: kInvalidArgument when the bytes are not of this form.
Result<ConnectorMetadata> decode_connector_metadata(std::span<const std::byte> bytes);
Result<WorkerOutput> decode_worker_output(std::span<const std::byte> bytes);

}  // namespace kvlease
