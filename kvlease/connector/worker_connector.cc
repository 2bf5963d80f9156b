// Implements worker_connector.h: peers, P's side and the loop. The reads are in worker_reads.cc,
// what is sent and probed in worker_heartbeats.cc.
#include "kvlease/connector/worker_connector.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "kvlease/base/check.h"
#include "kvlease/core/agent_name.h"
#include "kvlease/wire/notification.h"

namespace kvlease {
namespace {

// What is read of one notification at most. Above our own sending limit, because vLLM does not
// split its heartbeats.
constexpr std::size_t kNotifReceiveBytesMax = std::size_t{1} << 20;

// How often an idle rank empties its inbox, so that nothing from outside grows there (L44).
constexpr Duration kIdleDrainInterval = std::chrono::seconds{1};

// How often one peer's metadata may be refused before our own agent is made anew (L21).
constexpr std::uint32_t kRefusalsMax = 3;
// How soon that is tried again when it fails, twice as late each time.
constexpr Duration kRenewalBackOffMin = std::chrono::seconds{1};
constexpr Duration kRenewalBackOffMax = std::chrono::seconds{60};

// A loop is late when it is so for the shortest lease that it may keep (L47).
LeaseTimes shortest_lease(const LeaseConfig& config) {
  return config.lease_adaptive ? derive_lease_times(config.lease_duration_min) : config.times;
}

std::vector<MemoryRegion> entry_descriptors(std::uint64_t address, std::uint32_t count) {
  std::vector<MemoryRegion> descriptors;
  descriptors.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    descriptors.push_back(
        {.address = address + i * sizeof(LeaseEntry), .length_bytes = sizeof(LeaseEntry)});
  }
  return descriptors;
}

std::uint64_t address_of(std::span<LeaseEntry> memory) {
  return reinterpret_cast<std::uint64_t>(memory.data());
}

}  // namespace

WorkerConnector::WorkerConnector(const WorkerConnectorOptions& options, Transport& transport,
                                 const KvCaches& caches)
    : options_(options),
      transport_(&transport),
      caches_(caches),
      entries_(caches.entries, options.word_high),
      leases_({.early_completion_ttl = std::chrono::seconds{60}, .early_completions_max = 10'000},
              entries_),
      grace_(shortest_lease(options.config)),
      tracker_({.load_timeout = options.config.load_timeout}) {
  KVL_CHECK(caches.landing.size() >= 2, "a probe needs two landing cells at least");
  for (auto cell = static_cast<std::uint32_t>(caches.landing.size()); cell-- > 0;) {
    free_cells_.push_back(cell);
  }
}

Result<void> WorkerConnector::register_kv_caches() {
  has_memory_ = false;
  std::vector<MemoryRegion> memory;
  for (const KvRegion& region : caches_.regions) {
    memory.push_back({.address = region.base_address,
                      .length_bytes = region.block_len_bytes * caches_.num_blocks,
                      .kind = region.kind,
                      .device = region.device});
  }
  for (const std::span<LeaseEntry> table : {caches_.entries, caches_.landing}) {
    memory.push_back({.address = address_of(table), .length_bytes = table.size_bytes()});
  }
  for (const MemoryRegion& region : memory) {
    if (const auto registered = transport_->register_memory(region); !registered) return registered;
  }
  const auto landing = transport_->prepare_local(entry_descriptors(
      address_of(caches_.landing), static_cast<std::uint32_t>(caches_.landing.size())));
  if (!landing) return std::unexpected(landing.error());
  landing_list_ = *landing;
  has_memory_ = true;
  return {};
}

Result<RankMetadata> WorkerConnector::get_handshake_metadata() {
  auto metadata = transport_->local_metadata();
  if (!metadata) return std::unexpected(metadata.error());
  return RankMetadata{.rank = options_.rank,
                      .agent_name = transport_->name(),
                      .agent_metadata = std::move(*metadata),
                      .num_blocks = caches_.num_blocks,
                      .regions = caches_.regions,
                      .entries_address = address_of(caches_.entries),
                      .entries_count = entries_.size()};
}

void WorkerConnector::begin_turn(Instant wake_requested, Instant now) {
  entries_.turn();                               // L22: peers see a live loop
  if (grace_.begin_turn(wake_requested, now)) {  // L47
    output_.counters.add(Counter::kStallGraces);
    emit({.kind = EventKind::kStallGrace, .length = grace_.until() - now});
  }
}

void WorkerConnector::start_load_kv(const ConnectorMetadata& metadata, Instant now) {
  for (const PeerId id : metadata.peers_to_remove) {
    for (auto& [key, peer] : ranks_of(id)) peer.removing = true;
    std::erase_if(peers_waiting_, [id](const PeerToAdd& order) { return order.peer == id; });
  }
  remove_quiet_peers();
  peers_waiting_.insert(peers_waiting_.end(), metadata.peers_to_add.begin(),
                        metadata.peers_to_add.end());
  add_waiting_peers(now);

  for (const LeaseId& id : metadata.reqs_in_batch) leases_.admit(id);
  for (const LeaseId& id : metadata.reqs_not_processed) leases_.forget(id);
  for (const LeaseGrant& grant : metadata.reqs_to_send) leases_.grant(grant, now);
  if (!metadata.leases_to_renew.empty()) {
    std::vector<std::string_view> ids;
    for (const LeaseId& id : metadata.leases_to_renew) ids.push_back(id.str());
    leases_.renew(ids, now);  // L2
  }
  for (const LeaseEndOrder& order : metadata.leases_to_end) leases_.end(order.id, order.end, now);

  for (const RecvRequest& order : metadata.reqs_to_recv) begin_read(order, now);
  start_waiting_reads(now);
  for (const CompletionToSend& order : metadata.completions_to_send) send_completion(order);
  for (const HeartbeatInfo& info : metadata.heartbeat_by_engine) send_heartbeat(info, now);
}

void WorkerConnector::poll(Instant now) {
  drain_notifs(now);
  for (auto it = reads_.begin(); it != reads_.end();) {
    it = advance_read(it->second, now) ? reads_.erase(it) : std::next(it);
  }
  fail_due_reads(now);
  for (auto& [key, peer] : peers_) advance_probe(key.first, peer, now);
  remove_quiet_peers();
  renew_refused_agent(now);
  add_waiting_peers(now);
  start_waiting_reads(now);
  if (grace_.may_expire(now)) leases_.sweep(now);  // L9: after what had arrived; L47
}

WorkerOutput WorkerConnector::get_finished(Instant now) {
  poll(now);
  output_.finished_sending = leases_.take_ended();
  if (leases_.has_waits()) output_.lease_waits = leases_.take_waits();
  if (!(leases_.counters() == lease_counters_taken_)) {  // mostly they are: nothing is copied then
    for (std::size_t i = 0; i < kCounterCount; ++i) {
      output_.counters.values()[i] +=
          leases_.counters().values()[i] - lease_counters_taken_.values()[i];
    }
    lease_counters_taken_ = leases_.counters();
  }
  return std::exchange(output_, {});
}

Instant WorkerConnector::next_deadline(Instant now) {
  if (!output_.empty()) return now;
  Instant next = saturating_add(now, kIdleDrainInterval);
  next = earlier(next, std::max(leases_.next_deadline(), grace_.until()));
  next = earlier(next, tracker_.next_deadline());
  if (renewal_due_ && *renewal_due_ > now) next = earlier(next, *renewal_due_);
  const bool probing = std::ranges::any_of(
      peers_, [](const auto& entry) { return entry.second.probe.transfer.has_value(); });
  const bool reading = probing || std::ranges::any_of(reads_, [](const auto& entry) {
                         return entry.second.in_flight();
                       });
  if (reading || leases_.live() > 0 || leases_.in_batch() > 0) {
    next = earlier(next, transport_->next_poll(reading, now));  // L11
  }
  return next;
}

EngineShape WorkerConnector::shape_of(const PeerToAdd& order) const {
  return {.tp_size = static_cast<std::uint32_t>(order.ranks.size()),
          .num_kv_heads = options_.shape.num_kv_heads,
          .block_size = order.block_size};
}

void WorkerConnector::add_waiting_peers(Instant now) {
  if (!has_memory_) return;  // they wait for the next renewal (L21)
  std::vector<PeerToAdd> still_waiting;
  for (PeerToAdd& order : peers_waiting_) {
    const auto paired = paired_ranks(options_.shape, shape_of(order), options_.rank);
    const bool name_in_use = std::ranges::any_of(peers_, [&](const auto& entry) {
      return std::ranges::any_of(paired, [&](const PairedRank& pair) {
        return entry.second.agent == order.ranks[pair.remote.value()].agent_name;
      });
    });
    if (name_in_use) {  // L31: never loaded twice; the old one goes when its transfers are final
      still_waiting.push_back(std::move(order));
    } else if (const auto added = add_peer(order, now); !added) {
      output_.suspect_peers.push_back({order.peer, added.error().message});
    }
  }
  peers_waiting_ = std::move(still_waiting);
}

// All ranks that this one is paired with, or none.
Result<void> WorkerConnector::add_peer(const PeerToAdd& order, Instant now) {
  for (const PairedRank& pair : paired_ranks(options_.shape, shape_of(order), options_.rank)) {
    const auto added = add_rank(order, pair, now);
    if (added) continue;
    for (auto& [key, peer] : ranks_of(order.peer)) peer.removing = true;
    return added;
  }
  return {};
}

Result<void> WorkerConnector::add_rank(const PeerToAdd& order, const PairedRank& paired,
                                       Instant now) {
  const RankMetadata& rank = order.ranks[paired.remote.value()];  // L37
  const auto name = transport_->add_peer(rank.agent_metadata);
  if (!name) {
    count_refusal(rank.agent_name);
    return std::unexpected(name.error());
  }
  refusals_.erase(*name);
  const EngineShape theirs = shape_of(order);
  Peer peer{.engine = order.engine,
            .agent = *name,
            .num_blocks = rank.num_blocks,
            .entries_count = rank.entries_count,
            .readers = readers_per_rank(options_.shape, theirs)};
  if (paired.num_heads > 0) peer.plan = plan_block(options_.shape, theirs, paired);
  Result<void> good = prepare_lists(rank, theirs, peer);
  if (*name != rank.agent_name) {
    good = error(ErrorCode::kIncompatible, "the handshake names agent " + rank.agent_name.str() +
                                               " but its metadata belongs to " + name->str());
  }
  if (!good) {
    release_lists(peer);
    transport_->remove_peer(*name);
    return good;
  }
  peer.probe.turns_moved_at = now;
  peers_.emplace(PeerKey{order.peer, paired.remote}, std::move(peer));
  return {};
}

Result<void> WorkerConnector::prepare_lists(const RankMetadata& rank, const EngineShape& shape,
                                            Peer& peer) {
  if (peer.plan) {
    const auto local = local_list(peer.plan->local);
    if (!local) return std::unexpected(local.error());
    peer.local_list = *local;
    const auto blocks = transport_->prepare_remote(
        peer.agent, run_descriptors(rank.regions, rank.num_blocks, shape, peer.plan->remote));
    if (!blocks) return std::unexpected(blocks.error());
    peer.blocks_list = *blocks;
  }
  if (peer.entries_count > 0) {
    const auto entries = transport_->prepare_remote(
        peer.agent, entry_descriptors(rank.entries_address, rank.entries_count));
    if (!entries) return std::unexpected(entries.error());
    peer.entries_list = *entries;
  }
  return {};
}

// Our blocks, cut in this way; prepared once.
Result<DescListHandle> WorkerConnector::local_list(const BlockRuns& runs) {
  const auto known =
      std::ranges::find(local_lists_, runs, &decltype(local_lists_)::value_type::first);
  if (known != local_lists_.end()) return known->second;
  const auto list = transport_->prepare_local(
      run_descriptors(caches_.regions, caches_.num_blocks, options_.shape, runs));
  if (list) local_lists_.emplace_back(runs, *list);
  return list;
}

void WorkerConnector::release_lists(const Peer& peer) {
  for (const auto& list : {peer.blocks_list, peer.entries_list}) {
    if (list) transport_->release_list(*list);
  }
}

void WorkerConnector::count_refusal(const AgentName& agent) {
  if (!renewed_for_.contains(agent)) ++refusals_[agent];
}

// L21: what a transport holds against a peer that is alive is cured by a new agent of our own.
void WorkerConnector::renew_refused_agent(Instant now) {
  const auto refused = std::ranges::find_if(
      refusals_, [](const auto& entry) { return entry.second >= kRefusalsMax; });
  if (refused != refusals_.end() && renew_agent_ && !renewal_due_) {
    renewed_for_.insert(refused->first);
    refusals_.clear();
    renewal_due_ = now;
    renewal_back_off_ = kRenewalBackOffMin;
  }
  const bool busy =
      std::ranges::any_of(peers_, [](const auto& entry) { return entry.second.transfers > 0; });
  if (!renewal_due_ || now < *renewal_due_ || busy) return;
  if (auto metadata = renew_agent()) {
    output_.renewed_metadata.push_back(std::move(*metadata));
    renewal_due_.reset();
  } else {
    renewal_due_ = now + renewal_back_off_;
    renewal_back_off_ = std::min(renewal_back_off_ * 2, kRenewalBackOffMax);
  }
}

// Errors: the host's, then the old agent goes on; the new agent's, then nothing is sent or read
// until the next attempt.
Result<RankMetadata> WorkerConnector::renew_agent() {
  const auto renewed = renew_agent_(agent_number_ + 1);
  if (!renewed) return std::unexpected(renewed.error());
  ++agent_number_;
  peers_.clear();
  local_lists_.clear();
  transport_ = *renewed;
  if (const auto registered = register_kv_caches(); !registered) {
    return std::unexpected(registered.error());
  }
  return get_handshake_metadata();
}

void WorkerConnector::remove_quiet_peers() {
  for (auto it = peers_.begin(); it != peers_.end();) {
    const Peer& peer = it->second;
    if (!peer.removing || peer.transfers > 0) {
      ++it;
      continue;
    }
    release_lists(peer);
    transport_->remove_peer(peer.agent);
    it = peers_.erase(it);
  }
}

void WorkerConnector::drain_notifs(Instant now) {
  for (const Notification& notif : transport_->take_notifs()) {
    const ParsedNotif parsed = parse_notif(notif.payload, kNotifReceiveBytesMax);
    const auto sender = parse_agent_name(notif.sender.str());
    if (!sender && !std::holds_alternative<MalformedNotif>(parsed)) {
      output_.counters.add(Counter::kSignsForeign);  // L28
    }
    if (const auto* heartbeat = std::get_if<HeartbeatNotif>(&parsed)) {
      output_.counters.add(Counter::kNotifEmptyId, heartbeat->empty_pieces);
      leases_.renew(heartbeat->ids, notif.sender, now);
      emit({.kind = EventKind::kLeasesRenewed,
            .peer = std::string(sender ? sender->engine_id : notif.sender.str()),
            .count = heartbeat->ids.size()});
    } else if (const auto* completion = std::get_if<CompletionNotif>(&parsed)) {
      leases_.complete({.id = completion->id, .readers_expected = completion->readers_expected},
                       notif.sender, now);
    } else {  // L44
      output_.counters.add(Counter::kNotifMalformed);
      emit({.kind = EventKind::kNotifRejected,
            .peer = notif.sender.str(),
            .detail = std::string(malformed_cause_name(std::get<MalformedNotif>(parsed).cause))});
    }
  }
}

}  // namespace kvlease
