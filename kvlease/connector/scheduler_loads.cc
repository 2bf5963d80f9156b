// D's side of the scheduler half, one request at a time: is its reference good, what is to be read,
// how did it go, and what P is owed at the end (L15, L16, L24, L27, L33, L38, L52).
#include <algorithm>
#include <utility>

#include "kvlease/base/check.h"
#include "kvlease/connector/scheduler_connector.h"
#include "kvlease/core/lease_entries.h"
#include "kvlease/wire/notification.h"
#include "kvlease/wire/seal.h"

namespace kvlease {
namespace {

// More is not remembered: the leases then end by themselves.
constexpr std::size_t kOwedEndsMax = 65'536;

// Who tells P of an end without a read: we, unless the router has said that it will (L33).
bool decoder_releases(const KvTransferParams& params) {
  return !params.kvlease || params.kvlease->release_by == ReleaseBy::kDecoder;
}

}  // namespace

void SchedulerConnector::apply(Load& load, RemoteRequestEvent event) {
  const auto to = next_state(remote_request_transitions(), load.state, event);
  KVL_CHECK(to.has_value(), "an event that this state of a remote request does not know");
  load.state = *to;
}

void SchedulerConnector::note_prompt(Load& load, const RequestView& request) {
  const auto prompt_tokens = static_cast<std::uint32_t>(request.prompt_token_ids.size());
  const auto& reference = load.params.kvlease;
  const std::uint32_t covered = reference ? reference->digest_tokens : prompt_tokens;
  load.num_usable_tokens = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(load.params.remote_num_tokens.value_or(prompt_tokens), covered));
  load.prompt_matches =
      covered <= prompt_tokens &&
      (!reference || reference->digest == digest_tokens(request.prompt_token_ids.first(covered),
                                                        request.cache_keys));
}

// A router may choose one engine for both legs: what its reference names is in the engine's own
// prefix cache, and the lease is not needed any more. It must be this prompt's (L52).
bool SchedulerConnector::end_own_lease(const RequestView& request) {
  const KvTransferParams& params = *request.kv_transfer_params;
  if (params.remote_engine_id != options_.facts.engine_id || !params.remote_request_id ||
      !params.remote_block_ids || !params.kvlease) {
    return false;
  }
  Load own{.params = params};
  note_prompt(own, request);
  const Seal seal = seal_reference(options_.facts.seal_key, sealed_reference(params));
  if (!own.prompt_matches || !seal_matches(params.kvlease->seal, seal)) return false;
  leases_.end(*params.remote_request_id, LeaseEnd::kReleased);
  return true;
}

void SchedulerConnector::wait_for_peer(const RequestId& id, Load& load, Instant now) {
  load.waiting_until = saturating_add(now, options_.config.handshake_timeout);  // L48
  waiting_.emplace(load.waiting_until, id);
}

void SchedulerConnector::stop_waiting(const RequestId& id, Load& load) {
  waiting_.erase({load.waiting_until, id});
}

void SchedulerConnector::judge(LoadIt it, Instant now) {
  Load& load = it->second;
  const PeerId id = ready_.at(load.address);
  const Peer& peer = peers_.at(id);
  const bool other_incarnation =
      load.params.kvlease && load.params.kvlease->incarnation != peer.reply.incarnation;
  if (other_incarnation && handshakes_.refresh(load.address, now)) return;  // L31: ask again first
  if (const auto good = check_reference(load, peer); !good) {
    const bool stale = good.error().code == ErrorCode::kStaleReference;
    refuse(it, stale ? LoadFailure::kStaleReference : LoadFailure::kInvalidReference,
           good.error().message);
    return;
  }
  accept(it, id, now);
}

Result<void> SchedulerConnector::check_reference(const Load& load, const Peer& peer) const {
  const KvTransferParams& params = load.params;
  const auto invalid = [](std::string why) {
    return error(ErrorCode::kInvalidReference, "kv_transfer_params: " + std::move(why));
  };
  const RankMetadata& rank = peer.reply.ranks.front();
  const auto& groups = *params.remote_block_ids;
  if (params.tp_size.value_or(1) != peer.reply.ranks.size() || params.dcp_size.value_or(1) != 1 ||
      params.pp_size.value_or(1) != 1) {  // L28: geometry comes from the handshake
    return invalid("tp_size, dcp_size or pp_size differ from the handshake's");
  }
  if (params.transfer_mode.value_or("pull") != "pull") {
    return invalid("transfer_mode is " + *params.transfer_mode + ", which is not supported: pull");
  }
  if (groups.size() != 1) return invalid("remote_block_ids must hold one group");
  if (!is_wire_id(params.remote_request_id->str())) {
    return invalid("remote_request_id cannot be sent in a notification");
  }
  for (const BlockId block : groups.front()) {
    if (block.value() >= rank.num_blocks) {
      return invalid("remote block " + std::to_string(block.value()) + " of " +
                     std::to_string(rank.num_blocks));
    }
  }
  const std::uint64_t capacity =
      groups.front().size() * std::uint64_t{peer.reply.identity.block_size};
  if (groups.front().empty() || params.remote_num_tokens.value_or(0) > capacity ||
      load.num_usable_tokens > capacity) {
    return invalid("remote_block_ids lists fewer blocks than the tokens need");
  }
  if (rank.entries_count == 0) {  // L28: a foreign peer, by its handshake
    if (options_.config.allow_unvalidated_peers) return {};
    return invalid("engine " + peer.reply.engine_id.str() +
                   " has no lease entries: its reads cannot be validated "
                   "(allow_unvalidated_peers)");
  }
  if (!params.kvlease) return invalid("the field kvlease is missing");
  const LeaseReference& reference = *params.kvlease;
  if (reference.incarnation != peer.reply.incarnation) {
    return error(ErrorCode::kStaleReference, "kv_transfer_params name an incarnation of engine " +
                                                 peer.reply.engine_id.str() + " that is gone");
  }
  if (!seal_matches(reference.seal,
                    seal_reference(peer.reply.seal_key, sealed_reference(params)))) {  // L52
    return invalid("the seal does not fit: the reference was mixed or changed");
  }
  if (reference.slot == kRankSlot || reference.slot.value() >= rank.entries_count) {
    return invalid("slot " + std::to_string(reference.slot.value()) + " is no lease's");
  }
  if (!load.prompt_matches) return invalid("the prompt is not the one that was prefilled");
  if (reference.heartbeat_interval_ms == 0) return invalid("heartbeat_interval_ms is 0");
  return {};
}

void SchedulerConnector::accept(LoadIt it, PeerId peer, Instant now) {
  auto& [id, load] = *it;
  stop_waiting(id, load);
  load.peer = peer;
  const RemoteRequestState before = load.state;
  apply(load, RemoteRequestEvent::kReferenceAccepted);
  if (before == RemoteRequestState::kHitWaiting) {
    if (decoder_releases(load.params)) tell_end(load, now);  // L33, L52: had waited with the peer
    return;
  }
  if (before == RemoteRequestState::kAbortedWaiting) {
    tell_end(load, now);
    loads_.erase(it);
    return;
  }
  handshakes_.touch(load.address, now);
  if (load.hold) return;   // L39: not renewed
  track(load, peer, now);  // L15
  emit({.kind = EventKind::kTrackingStarted,
        .request = id,
        .lease = *load.params.remote_request_id,
        .peer = load.address.engine.str()});
}

void SchedulerConnector::refuse(LoadIt it, LoadFailure failure, const std::string& why) {
  auto& [id, load] = *it;
  stop_waiting(id, load);
  if (failure == LoadFailure::kInvalidReference) counters_.add(Counter::kInvalidReferences);
  if (failure == LoadFailure::kStaleReference) counters_.add(Counter::kStaleReferences);
  if (load.state == RemoteRequestState::kAbortedWaiting) {
    loads_.erase(it);
    return;
  }
  if (load.state == RemoteRequestState::kHitWaiting) {  // it needs nothing of P
    apply(load, RemoteRequestEvent::kReferenceRefused);
    return;
  }
  fail_load(id, load, RemoteRequestEvent::kReferenceRefused, failure, why);
}

// The request takes the failure path (L27). Tracking ends; P is told when the load is quiet
// (settle).
void SchedulerConnector::fail_load(const RequestId& id, Load& load, RemoteRequestEvent event,
                                   LoadFailure failure, const std::string& why) {
  apply(load, event);
  load.failure = failure;
  end_tracking(load);
  update_.failed_recving.push_back({id, failure});
  if (load.blocks_to_read == 0) {
    update_.quiet_recving.push_back(id);
  } else {
    quarantine(id, load);
  }
  if (options_.config.load_failure_policy == LoadFailurePolicy::kRecompute) {
    counters_.add(Counter::kFallbacks);
  }
  emit({.kind = EventKind::kLoadFailed,
        .request = id,
        .lease = load.params.remote_request_id.value_or(LeaseId{}),
        .peer = load.address.engine.str(),
        .detail = std::string(load_failure_name(failure)) + ": " + why + "; policy " +
                  std::string(load_failure_policy_name(options_.config.load_failure_policy))});
}

// Says that the read's destination may still be written; the engine keeps the blocks aside (L26).
void SchedulerConnector::quarantine(const RequestId& id, const Load& load) {
  emit({.kind = EventKind::kQuarantined, .request = id, .count = load.blocks_to_read});
}

NewMatchedTokens SchedulerConnector::get_num_new_matched_tokens(const RequestView& request,
                                                                std::uint32_t num_computed_tokens,
                                                                Instant now) const {
  const auto it = loads_.find(request.id);
  if (it == loads_.end()) return {.count = 0, .is_async = false};
  const Load& load = it->second;
  if (load.state == RemoteRequestState::kWaitingForPeer &&
      !is_hit_without_peer(load, num_computed_tokens)) {
    return {.count = {}, .is_async = true};
  }
  if (load.state != RemoteRequestState::kQueued || load.num_usable_tokens <= num_computed_tokens ||
      declined(load, num_computed_tokens, now)) {
    return {.count = 0, .is_async = false};
  }
  return {.count = load.num_usable_tokens - num_computed_tokens, .is_async = true};
}

void SchedulerConnector::update_state_after_alloc(const RequestView& request,
                                                  const Allocation& allocation, Instant now) {
  const auto it = loads_.find(request.id);
  if (it == loads_.end()) return;
  Load& load = it->second;
  if (load.state == RemoteRequestState::kWaitingForPeer) {
    apply(load, RemoteRequestEvent::kFullHit);
    return;
  }
  if (load.state != RemoteRequestState::kQueued) return;
  handshakes_.touch(load.address, now);  // L32
  if (allocation.num_external_tokens > 0) {
    plan_read(request.id, load, allocation);
    return;
  }
  if (const auto why = declined(load, allocation.num_computed_tokens, now)) counters_.add(*why);
  apply(load, RemoteRequestEvent::kFullHit);  // L33: nothing to read; P is told in this step
  end_tracking(load);
  if (decoder_releases(load.params)) tell_end(load, now);
}

// Pairs by position, and only what is not cached here: what P has beyond our prompt is not read
// (H06).
void SchedulerConnector::plan_read(const RequestId& id, Load& load, const Allocation& allocation) {
  const std::uint32_t block_size = options_.facts.identity.block_size;
  const std::uint32_t remote_block_size = peers_.at(*load.peer).reply.identity.block_size;
  const auto& remote = load.params.remote_block_ids->front();
  const std::size_t first = allocation.num_computed_tokens / block_size;
  const std::size_t end = (load.num_usable_tokens + block_size - 1) / block_size;
  const std::size_t remote_first = first * (block_size / remote_block_size);
  const std::size_t remote_end =
      (load.num_usable_tokens + remote_block_size - 1) / remote_block_size;
  KVL_CHECK(remote_end <= remote.size() && end <= allocation.block_ids.size() && first < end,
            "the reference was checked and the engine has allocated for it");
  RecvRequest order{.request = id,
                    .peer = *load.peer,
                    .lease = *load.params.remote_request_id,
                    .slot = load.params.kvlease ? load.params.kvlease->slot : kRankSlot,
                    .word = load.params.kvlease ? load.params.kvlease->word : 0};
  const auto take = [](std::span<const BlockId> list, std::size_t from, std::size_t to) {
    const auto taken = list.subspan(from, to - from);
    return std::vector<BlockId>(taken.begin(), taken.end());
  };
  order.local_block_ids = take(allocation.block_ids, first, end);
  order.remote_block_ids = take(remote, remote_first, remote_end);
  next_.reqs_to_recv.push_back(std::move(order));
  load.blocks_to_read = end - first;
  apply(load, RemoteRequestEvent::kReadPosted);
}

void SchedulerConnector::finish_remote_prefill(LoadIt it, Instant now) {
  auto& [id, load] = *it;
  const bool unread = load.state == RemoteRequestState::kQueued;
  apply(load, RemoteRequestEvent::kFinished);
  switch (load.state) {
    case RemoteRequestState::kAbortedWaiting:
      if (decoder_releases(load.params))
        return;  // until the handshake, at most handshake_timeout (L52)
      stop_waiting(id, load);
      break;
    case RemoteRequestState::kAbortedLoading:
      quarantine(id, load);
      return;  // the read runs on, renewed (L16); settle() ends it
    case RemoteRequestState::kEnded:
      end_tracking(load);
      if (unread && decoder_releases(load.params)) tell_end(load, now);  // L33
      break;
    case RemoteRequestState::kWaitingForPeer:
    case RemoteRequestState::kHitWaiting:
    case RemoteRequestState::kQueued:
    case RemoteRequestState::kLoading:
    case RemoteRequestState::kLoaded:
    case RemoteRequestState::kFailed:
      KVL_UNREACHABLE("a finished request is aborted or ended");
  }
  if (is_over(load)) loads_.erase(it);
}

// One local user more of the lease, renewed over this connection (L14, L16).
void SchedulerConnector::track(Load& load, PeerId peer, Instant now) {
  const auto& reference = load.params.kvlease;
  const Duration interval =
      reference ? Duration(std::chrono::milliseconds(reference->heartbeat_interval_ms))
                : peers_.at(peer).reply.times.heartbeat_interval;
  heartbeats_.track(peer, *load.params.remote_request_id, interval, now);
  load.peer = peer;
  load.tracked = true;
}

// This local user of the lease is gone; renewal follows the last one (L16).
void SchedulerConnector::end_tracking(Load& load) {
  if (!load.tracked) return;
  load.tracked = false;
  heartbeats_.untrack(*load.peer, *load.params.remote_request_id);
}

// Tells P that nobody here needs the lease any more: after the last local user (L16, L24, L33).
// Without a connection it waits for the next one (L52).
void SchedulerConnector::tell_end(const Load& load, Instant now) {
  const LeaseId& lease = *load.params.remote_request_id;
  if (const auto peer = connection(load)) {
    if (!heartbeats_.is_tracked(*peer, lease)) next_.completions_to_send.push_back({*peer, lease});
  } else if (load.params.kvlease && handshakes_.is_known(load.address)) {
    owe_end({load.address, load.params.kvlease->incarnation, lease,
             saturating_add(now, options_.config.handshake_timeout)});
  }
}

void SchedulerConnector::owe_end(OwedEnd owed) {
  if (owed_ends_.size() < kOwedEndsMax) owed_ends_.push_back(std::move(owed));  // L43
}

// A new connection: what waited for it goes out in this step, except for a living request's lease.
void SchedulerConnector::pay_owed_ends(const PeerAddress& address) {
  const PeerId peer = ready_.at(address);
  std::erase_if(owed_ends_, [&](const OwedEnd& owed) {
    if (owed.address != address) return false;
    if (owed.incarnation == peers_.at(peer).reply.incarnation &&
        !heartbeats_.is_tracked(peer, owed.lease)) {
      next_.completions_to_send.push_back({peer, owed.lease});
    }
    return true;
  });
}

// What is cached here covers all that the reference promises, and the prompt is the one that it
// names: no answer of P could add anything (L33).
bool SchedulerConnector::is_hit_without_peer(const Load& load, std::uint32_t num_computed_tokens) {
  return load.prompt_matches && load.num_usable_tokens > 0 &&
         load.num_usable_tokens <= num_computed_tokens;
}

bool SchedulerConnector::is_over(const Load& load) const {
  return load.blocks_to_read == 0 ||
         load.validated.size() + load.quiet.size() == options_.facts.tp_size;
}

// The connection over which P can be told something about this load: its own, or the one that has
// replaced it for the same incarnation.
std::optional<PeerId> SchedulerConnector::connection(const Load& load) const {
  if (load.peer && peers_.contains(*load.peer)) return load.peer;
  const auto it = ready_.find(load.address);
  if (it == ready_.end() || !load.params.kvlease) return {};
  const bool same = peers_.at(it->second).reply.incarnation == load.params.kvlease->incarnation;
  return same ? std::optional(it->second) : std::nullopt;
}

void SchedulerConnector::merge_rank_output(Rank rank, const WorkerOutput& output,
                                           std::set<RequestId>& touched) {
  counters_.merge(output.counters);
  for (const Event& event : output.events) emit(event);
  for (const LeaseEnded& ended : output.finished_sending) {
    if (!leases_.on_rank_ended(rank, ended)) counters_.add(Counter::kLateReports);  // L35
  }
  const auto note = [&](const RequestId& id, auto&& what) {
    if (const auto it = loads_.find(id); it != loads_.end() && it->second.blocks_to_read > 0) {
      what(it->second);
      touched.insert(id);
    } else {
      counters_.add(Counter::kLateReports);  // L35
    }
  };
  for (const RequestId& id : output.finished_recving) {
    note(id, [&](Load& load) { load.validated.insert(rank); });
  }
  for (const FailedRecv& failed : output.failed_recving) {
    note(failed.request, [&](Load& load) {
      if (!load.failure) load.failure = failed.failure;
    });
  }
  for (const RequestId& id : output.quiet_recving) {
    note(id, [&](Load& load) { load.quiet.insert(rank); });
  }
  for (const LostLease& lost : output.lost_leases) {  // L25
    for (auto& [id, load] : loads_) {
      if (load.state == RemoteRequestState::kQueued && load.peer == lost.peer &&
          load.params.remote_request_id == lost.lease) {
        emit({.kind = EventKind::kLeaseLost,
              .request = id,
              .lease = lost.lease,
              .peer = load.address.engine.str()});
        fail_load(id, load, RemoteRequestEvent::kLeaseLost, LoadFailure::kLeaseLost,
                  "found by the probe");
      }
    }
  }
}

// Draws the conclusion from what the ranks have said of one load (L38: one outcome for all ranks).
void SchedulerConnector::settle(LoadIt it, Instant now) {
  auto& [id, load] = *it;
  if (load.failure && load.state == RemoteRequestState::kLoading) {
    fail_load(id, load, RemoteRequestEvent::kReadFailed, *load.failure, "the read was dropped");
  } else if (load.failure) {
    end_tracking(load);  // L16, L48: an aborted request's read that has failed
  }
  if (!is_over(load)) return;
  if (load.state == RemoteRequestState::kLoading) {
    apply(load, RemoteRequestEvent::kReadValidated);
    update_.finished_recving.push_back(id);
    end_tracking(load);
    tell_end(load, now);  // L24: only now
    return;
  }
  update_.quiet_recving.push_back(id);  // L26
  end_tracking(load);
  if (load.state == RemoteRequestState::kAbortedLoading) {
    apply(load,
          load.failure ? RemoteRequestEvent::kReadFailed : RemoteRequestEvent::kReadValidated);
  }
  const bool lost = load.failure == LoadFailure::kLeaseLost;        // then P has ended it already
  if (!lost && decoder_releases(load.params)) tell_end(load, now);  // L33
  if (load.state == RemoteRequestState::kEnded) loads_.erase(it);
}

}  // namespace kvlease
