// D's peers: which handshakes to make, which connection is in use for an address, and what happens
// to the requests that wait for one (L21, L29–L32).
#include <algorithm>
#include <utility>

#include "kvlease/connector/scheduler_connector.h"

namespace kvlease {
namespace {

// What is prepared for one rank of a peer at most: blocks times regions (L43).
constexpr std::size_t kDescriptorsMax = std::size_t{1} << 24;

// Region by region, a token of one head must be as long in a peer's block as in ours: what does not
// pair is refused before anything is read (L30, L37).
Result<void> check_regions(const EngineShape& our_shape, const RankMetadata& ours,
                           const EngineShape& their_shape, const RankMetadata& theirs) {
  if (ours.regions.size() != theirs.regions.size()) {
    return error(ErrorCode::kIncompatible, "the peer has " + std::to_string(theirs.regions.size()) +
                                               " regions on a rank, this engine " +
                                               std::to_string(ours.regions.size()));
  }
  for (std::size_t i = 0; i < ours.regions.size(); ++i) {
    const std::uint64_t our_len = ours.regions[i].block_len_bytes;
    const std::uint64_t their_len = theirs.regions[i].block_len_bytes;
    const std::uint64_t our_units = units_per_block(our_shape);
    const std::uint64_t their_units = units_per_block(their_shape);
    const bool same = our_units == their_units && our_len == their_len;
    const bool fits = our_len % our_units == 0 && their_len % their_units == 0 &&
                      our_len / our_units == their_len / their_units;
    if (same || fits) continue;
    return error(ErrorCode::kIncompatible,
                 "a block of the peer's region " + std::to_string(i) + " has " +
                     std::to_string(their_len) + " bytes, here it has " + std::to_string(our_len) +
                     ", for " + std::to_string(their_units) + " and " + std::to_string(our_units) +
                     " heads times tokens of K and V");
  }
  return {};
}

}  // namespace

// Everything that must hold before a reply's peer is used.
Result<void> SchedulerConnector::check_reply(const PeerAddress& address,
                                             const Result<HandshakeReply>& reply) const {
  if (!reply) return std::unexpected(reply.error());
  const auto fits = check_handshake_reply(*reply, handshake_request(address),
                                          options_.config.enforce_handshake_compat);
  if (!fits) return fits;
  const EngineShape ours = engine_shape(options_.facts);
  const EngineShape theirs_shape{.tp_size = static_cast<std::uint32_t>(reply->ranks.size()),
                                 .num_kv_heads = ours.num_kv_heads,
                                 .block_size = reply->identity.block_size};
  if (const auto divide = check_shapes(ours, theirs_shape); !divide) return divide;
  for (std::size_t rank = 0; rank < reply->ranks.size(); ++rank) {
    const RankMetadata& theirs = reply->ranks[rank];
    const auto regions_fit = check_regions(ours, ranks_.front(), theirs_shape, theirs);
    if (!regions_fit) return regions_fit;
    if (theirs.num_blocks != reply->ranks.front().num_blocks ||
        theirs.num_blocks * theirs.regions.size() > kDescriptorsMax) {
      return error(ErrorCode::kIncompatible,
                   "rank " + std::to_string(rank) + " of the peer has " +
                       std::to_string(theirs.num_blocks) + " blocks in " +
                       std::to_string(theirs.regions.size()) + " regions, its first rank " +
                       std::to_string(reply->ranks.front().num_blocks) + " (at most " +
                       std::to_string(kDescriptorsMax) + " blocks times regions, alike on all)");
    }
  }
  return {};
}

void SchedulerConnector::set_xfer_handshake_metadata(std::vector<RankMetadata> ranks) {
  ranks_ = std::move(ranks);
}

double SchedulerConnector::told_seconds(Instant instant) const {
  return to_seconds(saturating_add(instant, options_.facts.clock_epoch).time_since_epoch());
}

HandshakeReply SchedulerConnector::handshake_reply(Instant now) const {
  return {.engine_id = options_.facts.engine_id,
          .incarnation = options_.facts.incarnation,
          .seal_key = options_.facts.seal_key,
          .protocol = options_.facts.protocol,
          .identity = options_.facts.identity,
          .times = options_.config.times,
          .clock_seconds = told_seconds(now),
          .ranks = ranks_};
}

HandshakeRequest SchedulerConnector::handshake_request(const PeerAddress& address) const {
  return {.engine_id = options_.facts.engine_id,
          .incarnation = options_.facts.incarnation,
          .expected_engine_id = address.engine,
          .protocol = options_.facts.protocol,
          .identity = options_.facts.identity,
          .tp_size = options_.facts.tp_size};
}

std::vector<SchedulerConnector::HandshakeToMake> SchedulerConnector::take_handshakes(Instant now) {
  std::vector<HandshakeToMake> handshakes;
  for (const PeerAddress& address : handshakes_.take_due(now)) {
    counters_.add(Counter::kHandshakesStarted);
    emit({.kind = EventKind::kHandshakeStarted,
          .peer = address.engine.str(),
          .detail = address.host + ':' + std::to_string(address.port)});
    handshakes_sent_[address] = now;
    handshakes.push_back({address, handshake_request(address)});
  }
  return handshakes;
}

void SchedulerConnector::on_handshake(const PeerAddress& address,
                                      const Result<HandshakeReply>& reply, Instant now) {
  const Result<void> good = check_reply(address, reply);
  const HandshakeState state =
      handshakes_.is_known(address) ? handshakes_.state(address) : HandshakeState::kGaveUp;
  if (state != HandshakeState::kInFlight &&
      state != HandshakeState::kRefreshing) {  // L35: too late
    counters_.add(Counter::kLateReports);
    return;
  }
  const Instant sent = handshakes_sent_.at(address);
  handshakes_sent_.erase(address);
  if (!good) {
    counters_.add(Counter::kHandshakesFailed);
    emit({.kind = EventKind::kHandshakeFailed,
          .peer = address.engine.str(),
          .detail = good.error().message});
    if (handshakes_.failed(address, now)) fail_waiting(address, good.error().message);
    return;
  }
  handshakes_.succeeded(address, now);
  counters_.add(Counter::kHandshakesDone);
  const auto version = choose_protocol(options_.facts.protocol, reply->protocol);
  emit({.kind = EventKind::kHandshakeDone,
        .peer = address.engine.str(),
        .detail = "protocol " + std::to_string(version.value())});  // L30
  const auto ready = ready_.find(address);
  if (ready == ready_.end() || peers_.at(ready->second).reply.incarnation != reply->incarnation) {
    on_new_peer(address, *reply, now);
  }
  peers_.at(ready_.at(address)).clock.add_sample(sent, now, reply->clock_seconds);  // L40
  judge_waiting(address, now);  // L18: what waited goes out in this step
  pay_owed_ends(address);
}

void SchedulerConnector::on_new_peer(const PeerAddress& address, const HandshakeReply& reply,
                                     Instant now) {
  if (const auto old = ready_.find(address); old != ready_.end())
    drop_peer(old->second, now);  // L31
  const PeerId id(next_peer_++);
  peers_.emplace(id, Peer{.address = address, .reply = reply, .clock = {}});
  ready_.emplace(address, id);
  next_.peers_to_add.push_back({.peer = id,
                                .engine = reply.engine_id,
                                .block_size = reply.identity.block_size,
                                .ranks = reply.ranks});
  for (auto& [request, load] : loads_) {  // L16: reads that run on are renewed over the successor
    const bool reading = load.state == RemoteRequestState::kLoading ||
                         load.state == RemoteRequestState::kAbortedLoading;
    if (reading && !load.hold && !load.tracked && !load.failure && load.address == address &&
        load.params.kvlease && load.params.kvlease->incarnation == reply.incarnation) {
      track(load, id, now);
    }
  }
}

// The peer is made anew (L21), unless another rank has said so already.
void SchedulerConnector::on_suspect(const SuspectPeer& suspected, Instant now) {
  const auto it = peers_.find(suspected.peer);
  if (it == peers_.end()) return;
  const PeerAddress address = it->second.address;
  counters_.add(Counter::kPeersSuspect);
  emit({.kind = EventKind::kPeerSuspect, .peer = address.engine.str(), .detail = suspected.reason});
  drop_peer(suspected.peer, now);
  handshakes_.suspect(address, now);
}

// One rank's agent has a new name: later handshakes publish it, and every connection of the old one
// is gone (L21).
void SchedulerConnector::on_agent_renewed(Rank rank, const RankMetadata& metadata, Instant now) {
  ranks_.at(rank.value()) = metadata;
  std::vector<PeerId> ids;
  for (const auto& [id, peer] : peers_) ids.push_back(id);
  for (const PeerId id : ids) {
    on_suspect({.peer = id, .reason = "agent made anew: " + metadata.agent_name.str()}, now);
  }
}

// Stops using a connection. Its queued requests are judged anew after the next handshake; its reads
// run on until the transport is done with them (L21, L26).
void SchedulerConnector::drop_peer(PeerId id, Instant now) {
  const auto peer = peers_.find(id);
  const Peer gone = std::move(peer->second);
  ready_.erase(gone.address);
  peers_.erase(peer);
  heartbeats_.drop_peer(id);
  const auto unsent =
      std::erase_if(next_.peers_to_add, [id](const PeerToAdd& order) { return order.peer == id; });
  if (unsent == 0) next_.peers_to_remove.push_back(id);
  std::erase_if(next_.completions_to_send, [&](const CompletionToSend& order) {
    if (order.peer != id) return false;
    owe_end({gone.address, gone.reply.incarnation, order.lease,
             saturating_add(now, options_.config.handshake_timeout)});
    return true;
  });
  for (auto& [request, load] : loads_) {
    if (load.peer != id) continue;
    load.tracked = false;
    if (load.state != RemoteRequestState::kQueued) continue;
    apply(load, RemoteRequestEvent::kPeerDropped);
    wait_for_peer(request, load, now);
  }
}

void SchedulerConnector::judge_waiting(const PeerAddress& address, Instant now) {
  std::vector<RequestId> ids;
  for (const auto& [deadline, id] : waiting_) {
    if (loads_.at(id).address == address) ids.push_back(id);
  }
  // Those that read come first, so that the release of another one finds its lease in use (L16).
  for (const auto state : {RemoteRequestState::kWaitingForPeer, RemoteRequestState::kHitWaiting,
                           RemoteRequestState::kAbortedWaiting}) {
    for (const RequestId& id : ids) {
      const auto it = loads_.find(id);
      if (it != loads_.end() && it->second.state == state) judge(it, now);
    }
  }
}

void SchedulerConnector::fail_waiting(const PeerAddress& address, const std::string& why) {
  std::vector<RequestId> ids;
  for (const auto& [deadline, id] : waiting_) {
    if (loads_.at(id).address == address) ids.push_back(id);
  }
  for (const RequestId& id : ids) refuse(loads_.find(id), LoadFailure::kHandshakeFailed, why);
}

void SchedulerConnector::fail_overdue_waiting(Instant now) {
  while (!waiting_.empty() && waiting_.begin()->first <= now) {  // L48
    const auto it = loads_.find(waiting_.begin()->second);
    refuse(it, LoadFailure::kHandshakeFailed, "no connection within handshake_timeout");
  }
}

void SchedulerConnector::forget_idle_peers(Instant now) {
  if (handshakes_.next_deadline() > now) return;
  std::vector<PeerAddress> busy;
  for (const auto& [id, load] : loads_) busy.push_back(load.address);
  for (const PeerAddress& address : handshakes_.take_idle(busy, now)) {  // L32
    if (const auto it = ready_.find(address); it != ready_.end()) drop_peer(it->second, now);
    counters_.add(Counter::kPeersForgotten);
    emit({.kind = EventKind::kPeerForgotten, .peer = address.engine.str()});
  }
}

HeartbeatInfo SchedulerConnector::heartbeat_info(const DueHeartbeat& due) const {
  HeartbeatInfo info{.peer = due.peer,
                     .leases = due.leases,
                     .probes = {},
                     .interval = heartbeats_.interval(due.peer),
                     .late = due.late};
  std::set<LeaseId> probed;
  for (const auto& [id, load] : loads_) {
    if (load.state == RemoteRequestState::kQueued && load.peer == due.peer && !load.hold &&
        load.params.kvlease && probed.insert(*load.params.remote_request_id).second) {
      info.probes.push_back({.lease = *load.params.remote_request_id,
                             .slot = load.params.kvlease->slot,
                             .word = load.params.kvlease->word});
    }
  }
  return info;
}

}  // namespace kvlease
