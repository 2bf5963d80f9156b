// Implements scheduler_connector.h: P's side and the step. D's references and reads are in
// scheduler_loads.cc, its peers in scheduler_peers.cc.
#include "kvlease/connector/scheduler_connector.h"

#include <algorithm>
#include <utility>

#include "kvlease/base/check.h"
#include "kvlease/wire/seal.h"

namespace kvlease {
namespace {

constexpr std::size_t kEventsMax = 65'536;

}  // namespace

EngineShape engine_shape(const EngineFacts& facts) {
  return {.tp_size = facts.tp_size,
          .num_kv_heads = facts.identity.num_kv_heads,
          .block_size = facts.identity.block_size};
}

SchedulerConnector::SchedulerConnector(const SchedulerConnectorOptions& options)
    : options_(options),
      leases_({.tp = options.facts.tp_size,
               .slots = options.config.lease_slots,
               .word_high = options.facts.word_high,
               .id_seed = options.seed}),
      handshakes_({.timeout = options.config.handshake_timeout,
                   // So that a peer is asked again before those who wait for it give up.
                   .back_off_min = options.config.handshake_timeout / 40,
                   .back_off_max = options.config.handshake_timeout / 4,
                   .refresh_interval_min = options.config.times.heartbeat_interval,
                   .peer_ttl = options.config.engine_ttl,
                   .jitter_seed = options.seed + 1}) {
  if (!options.config.lease_adaptive) return;
  adaptive_.emplace(AdaptiveLeaseOptions{.duration_min = options.config.lease_duration_min,
                                         .duration_max = options.config.times.duration,
                                         .ranks = options.facts.tp_size});
}

Result<void> SchedulerConnector::admit(const RequestView& request, const AdmissionNeed& need) {
  const auto& params = request.kv_transfer_params;
  if (params && params->do_remote_prefill && !params->do_remote_decode) reserve_hold(request);
  if (!params || !params->do_remote_decode) return {};
  if (params->do_remote_prefill) {
    return error(
        ErrorCode::kInvalidArgument,
        "kv_transfer_params: do_remote_decode and do_remote_prefill are both true; set the "
        "one that this instance is to be");
  }
  const auto budget = static_cast<std::size_t>(options_.config.lease_max_blocks_fraction *
                                               static_cast<double>(options_.num_blocks));
  const std::size_t new_blocks = need.prompt_blocks - need.prompt_blocks_leased;
  if (need.prompt_blocks > budget) {  // L43
    return error(ErrorCode::kInvalidArgument,
                 "the prompt needs " + std::to_string(need.prompt_blocks) +
                     " blocks, the budget of leased blocks is " + std::to_string(budget) +
                     " (kv_lease_max_blocks_fraction): it can never be handed over");
  }
  if (need.leased_blocks + admitted_blocks_ + new_blocks > budget) {
    counters_.add(Counter::kRefusedAdmissions);
    return error(ErrorCode::kResourceExhausted,
                 std::to_string(need.leased_blocks) + " blocks are leased and " +
                     std::to_string(admitted_blocks_) + " admitted of a budget of " +
                     std::to_string(budget) + " (kv_lease_max_blocks_fraction): try again later");
  }
  auto reservation = leases_.reserve(request.client_id);
  if (!reservation) {
    counters_.add(Counter::kRefusedAdmissions);
    return std::unexpected(reservation.error());
  }
  admitted_blocks_ += new_blocks;
  admitted_.emplace(request.id, Admitted{std::move(*reservation), new_blocks});
  return {};
}

void SchedulerConnector::on_new_request(const RequestView& request, Instant now) {
  if (const auto it = admitted_.find(request.id); it != admitted_.end()) {
    next_.reqs_in_batch.push_back(it->second.reservation.id);  // L8
  }
  const auto& params = request.kv_transfer_params;
  const bool hold = params && params->do_remote_decode && params->remote_block_ids &&
                    options_.config.bidirectional;  // L39: D's, of the turn before
  if (!params || (!params->do_remote_prefill && !hold)) return;
  if (end_own_lease(request)) return;
  const auto [it, is_new] = loads_.emplace(request.id, Load{.params = *params, .hold = hold});
  KVL_CHECK(is_new, "an engine's request ids are unique");
  Load& load = it->second;
  note_prompt(load, request);
  wait_for_peer(request.id, load, now);
  if (!params->remote_engine_id || !params->remote_request_id || !params->remote_host ||
      !params->remote_port || !params->remote_block_ids) {
    refuse(it, LoadFailure::kInvalidReference,
           "kv_transfer_params names no engine, request, host, port or blocks");
    return;
  }
  load.address = {*params->remote_engine_id, *params->remote_host, *params->remote_port};
  if (load.address.engine == options_.facts.engine_id) {  // no agent is its own peer
    refuse(it, LoadFailure::kInvalidReference, "kv_transfer_params name this very engine");
    return;
  }
  if (std::ranges::find(options_.allow_peers, load.address.host) == options_.allow_peers.end()) {
    refuse(it, LoadFailure::kInvalidReference,
           "remote_host " + load.address.host + " is not allowed: --allow-peer");  // L51
    return;
  }
  if (!handshakes_.want(load.address, now)) {  // L15, L29, L43
    refuse(it, LoadFailure::kHandshakeFailed,
           "as many remote engines are known as may be at once; those that cannot be reached make "
           "room soon, idle ones after engine_ttl");
    return;
  }
  if (ready_.contains(load.address)) judge(it, now);
}

RequestFinished SchedulerConnector::request_finished(const RequestView& request,
                                                     FinishStatus status,
                                                     std::span<const BlockId> block_ids,
                                                     std::uint32_t num_tokens_with_kv,
                                                     Instant now) {
  if (const auto it = loads_.find(request.id); it != loads_.end()) finish_remote_prefill(it, now);
  if (const auto held = keep_hold(request, status, block_ids, num_tokens_with_kv, now))
    return *held;
  return finish_remote_decode(request, status, block_ids, num_tokens_with_kv, now);
}

RequestFinished SchedulerConnector::finish_remote_decode(const RequestView& request,
                                                         FinishStatus status,
                                                         std::span<const BlockId> block_ids,
                                                         std::uint32_t num_tokens_with_kv,
                                                         Instant now) {
  const auto it = admitted_.find(request.id);
  if (it == admitted_.end()) return {};
  const Admitted admitted = std::move(it->second);
  admitted_.erase(it);
  admitted_blocks_ -= admitted.blocks;
  const LeaseId& lease = admitted.reservation.id;
  const bool ended_well = status == FinishStatus::kLength || status == FinishStatus::kStopped;
  if (!ended_well || block_ids.empty()) {  // L1, L34
    leases_.cancel(lease);
    next_.reqs_not_processed.push_back(lease);
    return {};
  }
  // Only the prompt is handed over: what was generated here is the reader's to generate, and was
  // not counted against the budget of leases (L43).
  const std::size_t prompt_tokens = request.prompt_token_ids.size();
  const std::uint32_t block_size = options_.facts.identity.block_size;
  const auto leased =
      block_ids.first(std::min(block_ids.size(), (prompt_tokens + block_size - 1) / block_size));
  const LeaseTimes times =
      adaptive_ ? derive_lease_times(adaptive_->duration(now)) : options_.config.times;
  LeaseGrant grant = leases_.grant(lease, leased, times, now);  // L1
  grant.lifetime_max = options_.config.lease_max_hold;
  grant.observed = adaptive_.has_value();
  next_.reqs_to_send.push_back(std::move(grant));
  emit({.kind = EventKind::kLeaseGranted,
        .request = request.id,
        .lease = lease,
        .count = leased.size(),
        .length = times.duration});
  return {.delay_free = true,
          .num_leased_blocks = leased.size(),
          .kv_transfer_params =
              make_params({.reservation = admitted.reservation,
                           .block_ids = leased,
                           .num_tokens_with_kv = static_cast<std::uint32_t>(
                               std::min<std::size_t>(num_tokens_with_kv, prompt_tokens)),
                           .digested = request.prompt_token_ids,
                           .cache_keys = request.cache_keys,
                           .times = times})};
}

KvTransferParams SchedulerConnector::make_params(const Handed& handed) const {
  using std::chrono::duration_cast;
  using std::chrono::milliseconds;
  const EngineFacts& facts = options_.facts;
  const auto in_ms = [](Duration length) {
    return static_cast<std::uint64_t>(duration_cast<milliseconds>(length).count());
  };
  KvTransferParams params{
      .do_remote_decode = handed.expires_at.has_value(),
      .do_remote_prefill = !handed.expires_at,
      .remote_block_ids = {{{handed.block_ids.begin(), handed.block_ids.end()}}},
      .remote_engine_id = facts.engine_id,
      .remote_request_id = handed.reservation.id,
      .remote_host = facts.advertise_host,
      .remote_port = facts.advertise_port,
      .tp_size = facts.tp_size,
      .dcp_size = 1,
      .pp_size = 1,
      .remote_num_tokens = handed.num_tokens_with_kv,
      .remote_blocks_expiry_time = handed.expires_at,
      .transfer_mode = facts.identity.transfer_mode,
      .kvlease = LeaseReference{.incarnation = facts.incarnation,
                                .slot = handed.reservation.slot,
                                .word = handed.reservation.word,
                                .digest = digest_tokens(handed.digested, handed.cache_keys),
                                .digest_tokens = static_cast<std::uint32_t>(handed.digested.size()),
                                .lease_duration_ms = in_ms(handed.times.duration),  // L14
                                .heartbeat_interval_ms = in_ms(handed.times.heartbeat_interval)}};
  params.kvlease->seal = seal_reference(facts.seal_key, sealed_reference(params));  // L52
  return params;
}

ConnectorMetadata SchedulerConnector::build_connector_meta(Instant now) {
  for (const HandshakeTracker::TimedOut& timed_out : handshakes_.take_timed_out(now)) {
    handshakes_sent_.erase(timed_out.address);
    counters_.add(Counter::kHandshakesFailed);
    emit({.kind = EventKind::kHandshakeFailed,
          .peer = timed_out.address.engine.str(),
          .detail = "no answer within handshake_timeout"});
    if (timed_out.gave_up) fail_waiting(timed_out.address, "no answer within handshake_timeout");
  }
  fail_overdue_waiting(now);
  while (!owed_ends_.empty() && owed_ends_.front().until <= now) owed_ends_.pop_front();  // L52
  forget_idle_peers(now);
  for (const DueHeartbeat& due : heartbeats_.take_due(now)) {
    handshakes_.touch(peers_.at(due.peer).address, now);  // L32
    next_.heartbeat_by_engine.push_back(heartbeat_info(due));
  }
  for (LeaseGrant& grant : next_.reqs_to_send) {  // L46: what is left of it, not a deadline
    const Instant granted_at = leases_.live_leases().at(grant.id).granted_at;
    grant.remaining = remaining(saturating_add(granted_at, grant.remaining), now);
  }
  next_.leases_to_end = leases_.take_orders();
  return std::exchange(next_, {});
}

ConnectorUpdate SchedulerConnector::update_connector_output(std::span<const WorkerOutput> outputs,
                                                            Instant now) {
  KVL_CHECK(outputs.size() == options_.facts.tp_size, "one answer of every rank");
  std::set<RequestId> touched;
  for (std::uint32_t rank = 0; rank < outputs.size(); ++rank) {
    merge_rank_output(Rank(rank), outputs[rank], touched);
  }
  for (const RequestId& id : touched) settle(loads_.find(id), now);
  for (std::uint32_t rank = 0; rank < outputs.size(); ++rank) {
    const WorkerOutput& output = outputs[rank];
    if (!output.renewed_metadata.empty()) {
      on_agent_renewed(Rank(rank), output.renewed_metadata.front(), now);
    }
    for (const SuspectPeer& suspected : output.suspect_peers) on_suspect(suspected, now);
  }
  for (EngineLeaseEnded& ended : leases_.take_ended()) {
    if (adaptive_ && ended.end == LeaseEnd::kExpired && !is_hold(ended.id)) {
      adaptive_->on_expired(ended.duration, now);
    }
    forget_hold(ended.id);
    emit({.kind = EventKind::kLeaseEnded,
          .lease = ended.id,
          .detail = std::string(lease_end_name(ended.end)),
          .count = ended.blocks.size(),
          .length = ended.held,
          .left = ended.left,
          .silent = ended.silent});
    update_.finished_sending.push_back(std::move(ended));
  }
  learn_lease_duration(outputs, now);
  return std::exchange(update_, {});
}

// What the ranks saw of leases' waits for their readers decides on the next leases' duration (L14).
void SchedulerConnector::learn_lease_duration(std::span<const WorkerOutput> outputs, Instant now) {
  if (!adaptive_) return;
  for (const WorkerOutput& output : outputs) {
    for (const LeaseWait& wait : output.lease_waits) adaptive_->observe(wait, now);
    if (output.counters.value(Counter::kSignsForeign) > 0) adaptive_->on_foreign_reader(now);
  }
  adaptive_->duration(now);  // shrinks while the engine turns
}

bool SchedulerConnector::release(const LeaseId& lease) {
  return leases_.end(lease, LeaseEnd::kReleased);  // L10
}

std::vector<LeaseId> SchedulerConnector::renew(std::span<const LeaseId> leases) {
  std::vector<LeaseId> unknown;
  const bool holds_renew = options_.config.hold_max_lifetime > Duration::zero();
  for (const LeaseId& lease : std::set<LeaseId>(leases.begin(), leases.end())) {
    const bool renewable = leases_.is_live(lease) && (holds_renew || !is_hold(lease));
    (renewable ? next_.leases_to_renew : unknown).push_back(lease);
  }
  return unknown;
}

std::size_t SchedulerConnector::cut_leases() {
  std::vector<LeaseId> ids;
  for (const auto& [id, lease] : leases_.live_leases()) ids.push_back(id);
  return static_cast<std::size_t>(std::ranges::count_if(
      ids, [this](const LeaseId& id) { return leases_.end(id, LeaseEnd::kDrained); }));
}

Instant SchedulerConnector::next_deadline() const {
  if (has_news()) return kTimeZero;
  const Instant waiting = waiting_.empty() ? kNever : waiting_.begin()->first;
  const Instant owing = owed_ends_.empty() ? kNever : owed_ends_.front().until;
  return earlier(earlier(waiting, owing),
                 earlier(heartbeats_.next_deadline(), handshakes_.next_deadline()));
}

bool SchedulerConnector::has_news() const {
  return !next_.empty() || !(update_ == ConnectorUpdate{});
}

bool SchedulerConnector::has_work() const {
  return leases_.live() > 0 || !loads_.empty() || !owed_ends_.empty() || has_news();
}

void SchedulerConnector::emit(Event event) {
  if (events_.size() >= kEventsMax) return counters_.add(Counter::kEventsDropped);
  events_.push_back(std::move(event));
}

std::vector<Event> SchedulerConnector::take_events() { return std::exchange(events_, {}); }

}  // namespace kvlease
