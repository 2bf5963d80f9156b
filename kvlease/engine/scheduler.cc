// Implements scheduler.h: arrivals, blocks, the choice of a forward, what answers mean, ends.
#include "kvlease/engine/scheduler.h"

#include <algorithm>
#include <iterator>
#include <ranges>
#include <utility>

#include "kvlease/base/check.h"

namespace kvlease {
namespace {

FinishStatus finish_status(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return FinishStatus::kStopped;
    case FinishReason::kLength:
      return FinishStatus::kLength;
    case FinishReason::kAbort:
      return FinishStatus::kAborted;
    case FinishReason::kError:
      return FinishStatus::kFailed;
  }
  KVL_UNREACHABLE("every reason has a status");
}

}  // namespace

// Where it is: in one of the queues, among the running, or, when it has ended while its forward was
// in flight, only in requests_.
struct Scheduler::Request {
  enum class State : std::uint8_t { kWaiting, kParked, kLoaded, kRunning, kEndedInFlight };

  RequestId id;
  std::string client_id;
  SamplingParams sampling;
  std::vector<std::string> cache_keys;
  std::optional<KvTransferParams> kv_transfer_params;
  std::uint64_t arrival = 0;
  State state = State::kWaiting;

  std::vector<TokenId> token_ids;  // the prompt, then what was generated
  std::uint32_t num_prompt_tokens = 0;
  std::uint32_t num_computed_tokens = 0;   // where the next forward begins
  std::uint32_t num_tokens_with_kv = 0;    // at least that; more by the last token after a full hit
  std::uint32_t num_scheduled_tokens = 0;  // of the launched forward
  std::uint32_t num_external_tokens = 0;   // that the present load brings
  std::optional<std::uint32_t> num_cached_tokens;  // as it began to run for the first time
  // The connector was asked and told about the allocation, or has given the load up: from then on
  // everything is computed here.
  bool remote_settled = false;

  std::vector<BlockId> block_ids;
  std::size_t num_shared_blocks = 0;    // of these, found in the prefix cache
  std::size_t num_named_blocks = 0;     // of these, with a content hash or a twin that has it
  std::vector<BlockHash> block_hashes;  // of the full blocks of token_ids, as far as needed

  std::uint32_t num_tokens() const { return static_cast<std::uint32_t>(token_ids.size()); }
  std::uint32_t num_output_tokens() const { return num_tokens() - num_prompt_tokens; }
  RequestView view() const {
    return {.id = id,
            .client_id = client_id,
            .prompt_token_ids = std::span(token_ids).first(num_prompt_tokens),
            .token_ids = token_ids,
            .cache_keys = cache_keys,
            .kv_transfer_params = kv_transfer_params};
  }
};

// One call of schedule().
struct Scheduler::Step {
  std::uint32_t tokens_left = 0;
  Batch batch;
};

Scheduler::Scheduler(const SchedulerOptions& options, SchedulerConnector& connector)
    : options_(options), connector_(connector), pool_(options.num_blocks) {
  KVL_CHECK(
      options.block_size > 0 && options.max_num_seqs > 0 && options.max_num_batched_tokens > 0,
      "the host has checked its options");
  const std::uint64_t fits = std::uint64_t{options.num_blocks} * options.block_size;
  if (options_.max_model_len == 0 || options_.max_model_len > fits) {
    options_.max_model_len = static_cast<std::uint32_t>(fits);
  }
}

Scheduler::~Scheduler() = default;

// --- arrivals
// --------------------------------------------------------------------------------------

Result<void> Scheduler::check_request(const NewRequest& incoming) const {
  const auto invalid = [](std::string why) {
    return error(ErrorCode::kInvalidArgument, std::move(why));
  };
  if (incoming.prompt_token_ids.empty()) return invalid("the prompt is empty");
  if (incoming.sampling.max_tokens == 0) return invalid("max_tokens is 0; ask for one at least");
  if (incoming.prompt_token_ids.size() > options_.max_model_len) {
    return invalid("the prompt has " + std::to_string(incoming.prompt_token_ids.size()) +
                   " tokens; this engine holds " + std::to_string(options_.max_model_len) +
                   " (max_model_len, num_gpu_blocks)");
  }
  return {};
}

std::unique_ptr<Scheduler::Request> Scheduler::make_request(NewRequest incoming) {
  auto request = std::make_unique<Request>();
  request->arrival = next_arrival_++;
  request->id = RequestId(incoming.client_id + "-" + std::to_string(request->arrival));
  request->client_id = std::move(incoming.client_id);
  request->sampling = std::move(incoming.sampling);
  request->cache_keys = std::move(incoming.cache_keys);
  request->kv_transfer_params = std::move(incoming.kv_transfer_params);
  request->num_prompt_tokens = static_cast<std::uint32_t>(incoming.prompt_token_ids.size());
  request->token_ids = std::move(incoming.prompt_token_ids);
  return request;
}

AdmissionNeed Scheduler::admission_need(Request& request) const {
  AdmissionNeed need{.prompt_blocks = blocks_for(request.num_prompt_tokens),
                     .leased_blocks = pool_.counts().leased};
  for (const BlockId block : find_prefix(request)) {
    if (pool_.is_leased(block)) ++need.prompt_blocks_leased;
  }
  return need;
}

Result<RequestId> Scheduler::add_request(NewRequest incoming, Instant now) {
  if (auto valid = check_request(incoming); !valid) {
    refuse_request(std::move(incoming), now);
    return std::unexpected(std::move(valid.error()));
  }
  const std::size_t queued = waiting_.size() + parked_.size() + loaded_.size();
  if (queued >= options_.max_num_waiting) {  // L43
    return error(
        ErrorCode::kResourceExhausted,
        std::to_string(queued) + " requests are waiting (max_num_waiting): try again later");
  }
  std::unique_ptr<Request> request = make_request(std::move(incoming));
  if (auto admitted = connector_.admit(request->view(), admission_need(*request)); !admitted) {
    return std::unexpected(std::move(admitted.error()));
  }
  connector_.on_new_request(request->view(), now);
  waiting_.emplace(request->arrival, request.get());
  RequestId id = request->id;
  requests_.emplace(id, std::move(request));
  return id;
}

void Scheduler::refuse_request(NewRequest incoming, Instant now) {
  if (!incoming.kv_transfer_params || !incoming.kv_transfer_params->do_remote_prefill) return;
  const std::unique_ptr<Request> request = make_request(std::move(incoming));
  connector_.on_new_request(request->view(), now);
  connector_.request_finished(request->view(), FinishStatus::kFailed, {}, 0, now);  // L33
}

// --- blocks
// ----------------------------------------------------------------------------------------

std::size_t Scheduler::blocks_for(std::size_t tokens) const {
  return (tokens + options_.block_size - 1) / options_.block_size;
}

void Scheduler::extend_hashes(Request& request) const {
  const std::size_t full = request.token_ids.size() / options_.block_size;
  while (request.block_hashes.size() < full) {
    const BlockHash parent = request.block_hashes.empty()
                                 ? root_block_hash(options_.hash_seed, request.cache_keys)
                                 : request.block_hashes.back();
    const std::size_t begin = request.block_hashes.size() * options_.block_size;
    request.block_hashes.push_back(extend_block_hash(
        parent, std::span(request.token_ids).subspan(begin, options_.block_size)));
  }
}

// The blocks that hold the longest known beginning of the sequence, perhaps all of it.
std::vector<BlockId> Scheduler::find_prefix(Request& request) const {
  std::vector<BlockId> found;
  if (!options_.enable_prefix_caching) return found;
  extend_hashes(request);
  for (const BlockHash& hash : request.block_hashes) {
    const std::optional<BlockId> block = pool_.find(hash);
    if (!block) break;
    found.push_back(*block);
  }
  return found;
}

// Lets others find what is computed or validated by now, and never anything else (L24; F03).
void Scheduler::cache_full_blocks(Request& request) {
  if (!options_.enable_prefix_caching) return;
  extend_hashes(request);
  const std::size_t full = request.num_tokens_with_kv / options_.block_size;
  for (std::size_t& i = request.num_named_blocks; i < full; ++i) {
    pool_.set_hash(request.block_ids[i], request.block_hashes[i]);
  }
}

void Scheduler::release_blocks(Request& request) {
  pool_.release_run_refs(request.block_ids);
  request.block_ids.clear();
  request.num_shared_blocks = 0;
  request.num_named_blocks = 0;
  request.num_computed_tokens = 0;
  request.num_tokens_with_kv = 0;
}

// A read may still write what it was to fill: those blocks are set aside, the found ones go back
// (L26).
void Scheduler::quarantine_destination(Request& request) {
  const auto first =
      request.block_ids.begin() + static_cast<std::ptrdiff_t>(request.num_shared_blocks);
  std::vector<BlockId> destination(first, request.block_ids.end());
  request.block_ids.erase(first, request.block_ids.end());
  pool_.quarantine(destination);
  quarantined_.emplace(request.id, std::move(destination));
  release_blocks(request);
}

void Scheduler::release_quarantine(const RequestId& id) {
  const auto it = quarantined_.find(id);
  if (it == quarantined_.end()) return;
  pool_.release_quarantine(it->second);
  quarantined_.erase(it);
}

// --- scheduling
// ------------------------------------------------------------------------------------

std::optional<Batch> Scheduler::schedule(Instant now) {
  KVL_CHECK(in_flight_.empty(), "one forward at a time");
  Step step{.tokens_left = options_.max_num_batched_tokens, .batch = {}};
  const bool preempted = schedule_running(step);
  schedule_loaded(step);
  if (!preempted) schedule_waiting(step, now);
  if (in_flight_.empty()) return {};
  return std::move(step.batch);
}

// Returns whether a request had to give way.
bool Scheduler::schedule_running(Step& step) {
  bool preempted = false;
  for (std::size_t i = 0; i < running_.size() && step.tokens_left > 0; ++i) {
    Request* const request = running_[i];
    while (i < running_.size() && !grow(*request)) {
      preempt_last();  // the last one may be this one itself
      preempted = true;
    }
    if (i < running_.size()) add_to_batch(*request, step);
  }
  return preempted;
}

void Scheduler::schedule_loaded(Step& step) {
  while (!loaded_.empty() && running_.size() < options_.max_num_seqs && step.tokens_left > 0) {
    Request& request = *loaded_.begin()->second;
    loaded_.erase(loaded_.begin());
    run(request, step);
  }
}

// First come, first served, but nobody waits behind a request whose peer has not answered yet.
void Scheduler::schedule_waiting(Step& step, Instant now) {
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (running_.size() >= options_.max_num_seqs || step.tokens_left == 0) return;
    Request& request = *it->second;
    switch (try_start(request, now)) {
      case Start::kRunning:
        it = waiting_.erase(it);
        run(request, step);
        break;
      case Start::kParked:
        it = waiting_.erase(it);
        request.state = Request::State::kParked;
        parked_.emplace(request.arrival, &request);
        break;
      case Start::kAskAgain:
        ++it;
        break;
      case Start::kNoBlocks:
        return;
    }
  }
}

// The hooks in their order (L50): local prefix, what the remote can add, blocks for the whole
// sequence, and what the allocation is made of.
Scheduler::Start Scheduler::try_start(Request& request, Instant now) {
  std::vector<BlockId> blocks = find_prefix(request);
  const auto num_local_tokens = static_cast<std::uint32_t>(blocks.size() * options_.block_size);
  std::uint32_t num_external_tokens = 0;
  if (!request.remote_settled) {
    const NewMatchedTokens matched =
        connector_.get_num_new_matched_tokens(request.view(), num_local_tokens, now);
    if (!matched.count) return Start::kAskAgain;
    KVL_CHECK(*matched.count == 0 || matched.is_async, "loads run beside the forward");
    num_external_tokens = *matched.count;
  }
  const std::size_t num_shared_blocks = blocks.size();
  pool_.add_run_refs(blocks);  // first, so that the allocation does not evict them
  const std::size_t missing = blocks_for(request.num_tokens()) - num_shared_blocks;
  const auto own = pool_.allocate(missing);
  if (!own) {
    connector_.recall_holds(missing - pool_.available());  // L49
    pool_.release_run_refs(blocks);
    return Start::kNoBlocks;
  }
  blocks.insert(blocks.end(), own->begin(), own->end());
  request.block_ids = std::move(blocks);
  request.num_shared_blocks = num_shared_blocks;
  request.num_named_blocks = num_shared_blocks;
  request.num_tokens_with_kv = num_local_tokens;
  // After a full hit the last token is computed once more, for its output.
  request.num_computed_tokens = std::min(num_local_tokens, request.num_tokens() - 1);
  if (!request.remote_settled) {
    request.remote_settled = true;
    connector_.update_state_after_alloc(request.view(),
                                        {.block_ids = request.block_ids,
                                         .num_computed_tokens = num_local_tokens,
                                         .num_external_tokens = num_external_tokens},
                                        now);
  }
  request.num_external_tokens = num_external_tokens;
  return num_external_tokens > 0 ? Start::kParked : Start::kRunning;
}

// Makes room for the KV of all tokens; false when the pool is empty.
bool Scheduler::grow(Request& request) {
  const std::size_t needed = blocks_for(request.num_tokens());
  if (needed <= request.block_ids.size()) return true;
  const std::size_t missing = needed - request.block_ids.size();
  const auto more = pool_.allocate(missing);
  if (!more) {
    connector_.recall_holds(missing - pool_.available());  // L49
    return false;
  }
  request.block_ids.insert(request.block_ids.end(), more->begin(), more->end());
  return true;
}

void Scheduler::preempt_last() {
  Request& victim = *running_.back();
  running_.pop_back();
  release_blocks(victim);
  victim.state = Request::State::kWaiting;
  waiting_.emplace(victim.arrival, &victim);
  ++preemptions_;
}

void Scheduler::run(Request& request, Step& step) {
  request.state = Request::State::kRunning;
  running_.push_back(&request);
  if (!request.num_cached_tokens) {
    request.num_cached_tokens = request.num_computed_tokens;
    prompt_tokens_ += request.num_prompt_tokens;
    cached_tokens_ += request.num_computed_tokens;
  }
  add_to_batch(request, step);
}

void Scheduler::add_to_batch(Request& request, Step& step) {
  const std::uint32_t count =
      std::min(request.num_tokens() - request.num_computed_tokens, step.tokens_left);
  step.tokens_left -= count;
  request.num_scheduled_tokens = count;
  const std::uint32_t end = request.num_computed_tokens + count;
  step.batch.items.push_back(
      {.request = request.id,
       .token_ids = {request.token_ids.begin(), request.token_ids.begin() + end},
       .num_computed_tokens = request.num_computed_tokens,
       .num_tokens_with_kv = request.num_tokens_with_kv,
       .block_ids = request.block_ids,
       .sample = end == request.num_tokens()});
  in_flight_.push_back(&request);
}

// --- answers
// ---------------------------------------------------------------------------------------

void Scheduler::update_from_output(const ModelOutput& output, Instant now) {
  const std::vector<Request*> in_flight = std::exchange(in_flight_, {});
  KVL_CHECK(output.sampled_token_ids.size() == in_flight.size(), "one answer for each item");
  for (std::size_t i = 0; i < in_flight.size(); ++i) {
    Request& request = *in_flight[i];
    if (request.state == Request::State::kEndedInFlight) {  // L26: written to the end, and unused
      release_blocks(request);
      requests_.erase(request.id);
      continue;
    }
    request.num_computed_tokens += std::exchange(request.num_scheduled_tokens, 0);
    request.num_tokens_with_kv = std::max(request.num_tokens_with_kv, request.num_computed_tokens);
    cache_full_blocks(request);
    const std::optional<TokenId> token = output.sampled_token_ids[i];
    KVL_CHECK(token.has_value() == (request.num_computed_tokens == request.num_tokens()),
              "a token is sampled exactly after the last known one");
    if (!token) continue;
    request.token_ids.push_back(*token);
    ++generated_tokens_;
    RequestOutput step{.request = request.id,
                       .new_token_ids = {*token},
                       .finish_reason = stop_reason(request),
                       .num_cached_tokens = *request.num_cached_tokens};
    if (step.finish_reason) {
      finish(request, std::move(step), now);
    } else {
      outputs_.push_back(std::move(step));
    }
  }
}

std::optional<FinishReason> Scheduler::stop_reason(const Request& request) const {
  const TokenId last = request.token_ids.back();
  const bool may_stop = request.num_output_tokens() >= request.sampling.min_tokens;
  const bool at_end = last == options_.eos_token_id && !request.sampling.ignore_eos;
  const bool at_stop = std::ranges::count(request.sampling.stop_token_ids, last) > 0;
  if (may_stop && (at_end || at_stop)) return FinishReason::kStop;
  if (request.num_output_tokens() >= request.sampling.max_tokens ||
      request.num_tokens() > options_.max_model_len) {
    return FinishReason::kLength;
  }
  return {};
}

void Scheduler::update_from_connector(const ConnectorUpdate& update, Instant now) {
  for (const EngineLeaseEnded& ended : update.finished_sending) pool_.unlease(ended.blocks);  // L6
  for (const RequestId& id : update.finished_recving) {
    const auto it = requests_.find(id);
    if (it != requests_.end() && it->second->state == Request::State::kParked) {
      on_loaded(*it->second);
    }
  }
  for (const FailedRecv& failed : update.failed_recving) {
    const auto it = requests_.find(failed.request);
    if (it != requests_.end()) on_load_failed(*it->second, failed.failure, now);
  }
  for (const RequestId& id : update.quiet_recving) release_quarantine(id);
}

void Scheduler::on_loaded(Request& request) {
  parked_.erase(request.arrival);
  request.state = Request::State::kLoaded;
  loaded_.emplace(request.arrival, &request);
  request.num_tokens_with_kv += request.num_external_tokens;
  request.num_computed_tokens = std::min(request.num_tokens_with_kv, request.num_tokens() - 1);
  cache_full_blocks(request);
}

// L27. A load can fail before it has blocks, while the request still waits for its turn.
void Scheduler::on_load_failed(Request& request, LoadFailure failure, Instant now) {
  switch (request.state) {
    case Request::State::kWaiting:
      if (request.remote_settled) return;
      request.remote_settled = true;
      break;
    case Request::State::kParked:
      quarantine_destination(request);
      parked_.erase(request.arrival);
      request.state = Request::State::kWaiting;
      waiting_.emplace(request.arrival, &request);
      break;
    case Request::State::kLoaded:
    case Request::State::kRunning:
    case Request::State::kEndedInFlight:
      return;  // L35: it computes for itself already
  }
  switch (connector_.config().load_failure_policy) {
    case LoadFailurePolicy::kRecompute:
      break;
    case LoadFailurePolicy::kFail:
      finish(request,
             {.request = request.id,
              .finish_reason = FinishReason::kError,
              .error_message = "the KV of the prompt could not be loaded: " +
                               std::string(load_failure_name(failure)) +
                               " (kv_load_failure_policy is fail)"},
             now);
  }
}

// --- ends
// ------------------------------------------------------------------------------------------

void Scheduler::abort(const RequestId& id, Instant now) {
  const auto it = requests_.find(id);
  if (it == requests_.end() || it->second->state == Request::State::kEndedInFlight) return;
  Request& request = *it->second;
  if (request.state == Request::State::kParked) quarantine_destination(request);
  finish(request,
         {.request = id,
          .finish_reason = FinishReason::kAbort,
          .num_cached_tokens = request.num_cached_tokens.value_or(0)},
         now);
}

// Takes the request out of its queue and tells the connector. Leased blocks are pinned before the
// request lets go of them, so that nobody ever sees them as free (L1; F07).
void Scheduler::finish(Request& request, RequestOutput output, Instant now) {
  const auto with_kv =
      std::span<const BlockId>(request.block_ids)
          .first(std::min(request.block_ids.size(), blocks_for(request.num_tokens_with_kv)));
  RequestFinished finished =
      connector_.request_finished(request.view(), finish_status(*output.finish_reason), with_kv,
                                  request.num_tokens_with_kv, now);
  if (finished.delay_free) pool_.lease(with_kv.first(finished.num_leased_blocks));
  output.kv_transfer_params = std::move(finished.kv_transfer_params);
  outputs_.push_back(std::move(output));
  waiting_.erase(request.arrival);
  parked_.erase(request.arrival);
  loaded_.erase(request.arrival);
  std::erase(running_, &request);
  if (request.num_scheduled_tokens > 0) {  // L26: a launched forward may still write its blocks
    request.state = Request::State::kEndedInFlight;
    return;
  }
  release_blocks(request);
  requests_.erase(request.id);
}

std::vector<RequestOutput> Scheduler::take_outputs() { return std::exchange(outputs_, {}); }

SchedulerStats Scheduler::stats() const {
  return {.blocks = pool_.counts(),
          .running = running_.size(),
          .waiting = waiting_.size(),
          .waiting_for_remote_kvs = parked_.size(),
          .loaded = loaded_.size(),
          .preemptions = preemptions_,
          .prompt_tokens = prompt_tokens_,
          .cached_tokens = cached_tokens_,
          .generated_tokens = generated_tokens_};
}

}  // namespace kvlease
