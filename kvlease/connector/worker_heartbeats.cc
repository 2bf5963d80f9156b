// What one rank of D sends to its peers, and the probe that reads back whether it arrived and
// whether the leases still stand (L17, L21, L25, L33).
#include <algorithm>
#include <utility>

#include "kvlease/connector/worker_connector.h"
#include "kvlease/wire/notification.h"

namespace kvlease {
namespace {

constexpr std::uint32_t kSendFailuresMax = 3;    // L21
constexpr std::uint32_t kUnacknowledgedMax = 3;  // intervals (L25)

}  // namespace

bool WorkerConnector::send(PeerId id, Peer& peer, std::span<const std::byte> payload) {
  const auto sent = transport_->send_notif(peer.agent, payload);
  if (sent) {
    peer.send_failures = 0;
    return true;
  }
  output_.counters.add(Counter::kSendFailures);
  if (++peer.send_failures >= kSendFailuresMax) suspect(id, sent.error().message);
  return false;
}

// Once a connection, whichever rank of it gave the reason.
void WorkerConnector::suspect(PeerId id, std::string reason) {
  bool reported = false;
  for (auto& [key, peer] : ranks_of(id)) {
    reported = reported || peer.suspect_reported;
    peer.suspect_reported = true;
  }
  if (!reported) output_.suspect_peers.push_back({id, std::move(reason)});
}

void WorkerConnector::send_completion(const CompletionToSend& order) {
  for (auto& [key, peer] : ranks_of(order.peer)) {
    if (!send(order.peer, peer, encode_completion(order.lease, peer.readers))) continue;
    output_.counters.add(Counter::kCompletionsSent);
    emit({.kind = EventKind::kCompletionSent, .lease = order.lease, .peer = peer.engine.str()});
  }
}

void WorkerConnector::send_heartbeat(const HeartbeatInfo& info, Instant now) {
  const std::size_t bytes_max = std::min<std::size_t>(options_.config.notification_bytes_max,
                                                      transport_->notification_bytes_max());
  const std::vector<Bytes> messages = encode_heartbeat(info.leases, bytes_max);
  for (auto& [key, peer] : ranks_of(info.peer)) {  // L19: read or not
    const bool sent = std::ranges::all_of(messages, [&](const Bytes& message) {
      if (!send(info.peer, peer, message)) return false;
      output_.counters.add(Counter::kHeartbeatsSent);
      return true;
    });
    if (!sent) continue;
    emit({.kind = EventKind::kHeartbeatSent,
          .peer = peer.engine.str(),
          .count = info.leases.size(),
          .length = info.late});
    post_probe(info.peer, peer, info, now);
  }
}

// One small read for entry 0 and the queued leases' entries, as many as there are landing cells;
// the next probe goes on where this one ended.
void WorkerConnector::post_probe(PeerId id, Peer& peer, const HeartbeatInfo& info, Instant now) {
  Probe& probe = peer.probe;
  std::erase_if(probe.seen, [&](const auto& entry) {
    return !std::ranges::binary_search(info.leases, entry.first);
  });
  if (peer.entries_count == 0 || info.probes.empty() || free_cells_.size() < 2) return;
  if (probe.transfer) {  // at most one in flight; without an answer P is stalled (L25)
    if (now - probe.posted_at >= options_.config.load_timeout) {
      suspect(id, "no answer to a probe of " + peer.agent.str());
    }
    return;
  }
  const std::size_t count = std::min(info.probes.size(), free_cells_.size() - 1);
  probe.leases.clear();
  probe.cells.assign(1, take_cell());
  std::vector<std::uint32_t> slots{kRankSlot.value()};
  for (std::size_t i = 0; i < count; ++i) {
    const ProbedLease& lease = info.probes[(probe.cursor + i) % info.probes.size()];
    probe.leases.push_back(lease);
    probe.cells.push_back(take_cell());
    slots.push_back(lease.slot.value());
  }
  probe.cursor = (probe.cursor + count) % info.probes.size();
  const auto posted = transport_->post_read(landing_list_, *peer.entries_list,
                                            {.local = probe.cells, .remote = slots});
  if (!posted) {
    for (const std::uint32_t cell : probe.cells) put_back_cell(cell);
    suspect(id, posted.error().message);
    return;
  }
  probe.transfer = *posted;
  probe.posted_at = now;
  ++peer.transfers;
  output_.counters.add(Counter::kProbes);
}

void WorkerConnector::advance_probe(PeerId id, Peer& peer, Instant now) {
  Probe& probe = peer.probe;
  if (!probe.transfer) return;
  const TransferState state = transport_->poll(*probe.transfer);
  if (state == TransferState::kInProgress) return;
  transport_->release(*probe.transfer);
  probe.transfer.reset();
  --peer.transfers;
  if (state == TransferState::kDone && !peer.removing) judge_probe(id, peer, now);
  if (state == TransferState::kError) {
    suspect(id, "a probe of " + peer.agent.str() + " failed");
  }
  for (const std::uint32_t cell : probe.cells) put_back_cell(cell);
}

void WorkerConnector::judge_probe(PeerId id, Peer& peer, Instant now) {
  Probe& probe = peer.probe;
  const std::uint64_t turns = landed(probe.cells[0]).renewals;
  const bool turns_moved = turns != probe.turns_seen;
  if (turns_moved) {
    probe.turns_seen = turns;
    probe.turns_moved_at = now;
  } else if (now - probe.turns_moved_at >= options_.config.load_timeout) {
    suspect(id, peer.agent.str() + " has stopped turning");
  }
  for (std::size_t i = 0; i < probe.leases.size(); ++i) {
    const ProbedLease& lease = probe.leases[i];
    const LeaseEntry entry = landed(probe.cells[i + 1]);
    if (entry.word != lease.word) {
      output_.counters.add(Counter::kLeasesLost);
      output_.lost_leases.push_back({id, lease.lease});
      continue;
    }
    const auto [it, first_time] = probe.seen.try_emplace(lease.lease);
    Acknowledgement& seen = it->second;
    if (first_time || entry.renewals != seen.renewals) {
      seen = {.renewals = entry.renewals, .unchanged = 0};
    } else if (turns_moved && ++seen.unchanged >= kUnacknowledgedMax) {
      output_.counters.add(Counter::kHeartbeatsUnacknowledged);
      seen.unchanged = 0;
      suspect(id, "heartbeats_unacknowledged: " + lease.lease.str() + " at " + peer.agent.str());
    }
  }
}

}  // namespace kvlease
