// Continuous batching: which requests run in the next forward, with which blocks, and what their
// output means. Calls the connector's hooks in vLLM's order (L50), and is the only one to move
// blocks between running requests, leases and quarantine.
//
//                  ┌──────── recompute after a failed load, or preempted ───────────┐
//                  ▼                                                                │
//   add ─► waiting ──► waiting for remote KVs ── validated ─► loaded ──► running ───┴─► finished
//             └────────────────────── nothing to receive ────────────────►┘
//
// A request gets the blocks of its whole sequence when it leaves the queue, whether it computes or
// receives them, and keeps them when it has to wait again: a loaded request needs nobody's blocks
// to go on, so loaded requests cannot lock each other out (F05), and what they received is not lost
// when the batch is full (F06). Only growth by output tokens can find the pool empty; then the
// request that began to run last gives way and is recomputed later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvlease/base/ids.h"
#include "kvlease/base/result.h"
#include "kvlease/base/time.h"
#include "kvlease/connector/scheduler_connector.h"
#include "kvlease/engine/block_hash.h"
#include "kvlease/engine/block_pool.h"
#include "kvlease/engine/model_runner.h"
#include "kvlease/engine/request.h"

namespace kvlease {

struct SchedulerOptions {
  std::uint32_t num_blocks = 0;  // as in the connector's options
  std::uint32_t block_size = 16;
  std::uint32_t max_num_seqs = 256;  // running at once
  std::uint32_t max_num_batched_tokens =
      8192;  // in one forward; longer prefills are cut into chunks
  // Tokens of a sequence whose KV is kept: all but the last one generated. 0, or more than the pool
  // holds: what the pool holds.
  std::uint32_t max_model_len = 0;
  std::size_t max_num_waiting = 4096;  // not running yet; more are refused (L43)
  bool enable_prefix_caching = true;
  std::optional<TokenId> eos_token_id;
  std::uint64_t hash_seed = 0;  // secret, drawn per start: see block_hash.h
};

struct SchedulerStats {
  BlockCounts blocks;
  std::size_t running = 0;
  std::size_t waiting = 0;  // not begun, or preempted
  std::size_t waiting_for_remote_kvs = 0;
  std::size_t loaded = 0;  // received, to be run
  std::uint64_t preemptions = 0;
  std::uint64_t prompt_tokens = 0;  // of requests that began to run
  std::uint64_t cached_tokens = 0;  // of these, found here or received
  std::uint64_t generated_tokens = 0;
};

class Scheduler {
 public:
  // Requires: num_blocks, block_size, max_num_seqs and max_num_batched_tokens > 0; `connector`
  // outlives this.
  Scheduler(const SchedulerOptions& options, SchedulerConnector& connector);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Takes a request in. Errors: kInvalidArgument for what can never run (then refuse_request() was
  // called for it); kResourceExhausted when the queue, the budget of leases or its slots are full.
  Result<RequestId> add_request(NewRequest incoming, Instant now);

  // A request that will not be added because it is wrong in itself: tells the holder of its blocks,
  // if it has a reference (L33; B07). Not for one that may be tried elsewhere.
  void refuse_request(NewRequest incoming, Instant now);

  // Ends a request in whatever state; one that is gone already is left alone. Blocks that a read
  // may still write are quarantined, blocks of a launched forward stay taken until its output
  // (L26).
  void abort(const RequestId& id, Instant now);

  // The next forward, nullopt when there is nothing to run.
  // Requires: the output of the last one was handed to update_from_output().
  std::optional<Batch> schedule(Instant now);

  // Applies the output of the forward that schedule() gave last.
  void update_from_output(const ModelOutput& output, Instant now);

  // Applies what the connector learned from the ranks. Reports about requests that are gone are
  // ignored (L35).
  void update_from_connector(const ConnectorUpdate& update, Instant now);

  // The outputs since the last call, in order.
  std::vector<RequestOutput> take_outputs();

  // True while a request is not finished, or blocks of one are not quiet (L11).
  bool has_work() const { return !requests_.empty() || !quarantined_.empty(); }

  const BlockPool& pool() const { return pool_; }
  SchedulerStats stats() const;
  // The longest sequence that can be kept, in tokens.
  std::uint32_t max_model_len() const { return options_.max_model_len; }

 private:
  struct Request;
  struct Step;
  enum class Start : std::uint8_t { kRunning, kParked, kAskAgain, kNoBlocks };
  // In order of arrival.
  using Queue = std::map<std::uint64_t, Request*>;

  Result<void> check_request(const NewRequest& incoming) const;
  std::unique_ptr<Request> make_request(NewRequest incoming);
  AdmissionNeed admission_need(Request& request) const;
  std::size_t blocks_for(std::size_t tokens) const;

  std::vector<BlockId> find_prefix(Request& request) const;
  void extend_hashes(Request& request) const;
  void cache_full_blocks(Request& request);

  bool schedule_running(Step& step);
  void schedule_loaded(Step& step);
  void schedule_waiting(Step& step, Instant now);
  Start try_start(Request& request, Instant now);
  bool grow(Request& request);
  void preempt_last();
  void run(Request& request, Step& step);
  void add_to_batch(Request& request, Step& step);

  void on_loaded(Request& request);
  void on_load_failed(Request& request, LoadFailure failure, Instant now);
  void quarantine_destination(Request& request);
  void release_quarantine(const RequestId& id);

  std::optional<FinishReason> stop_reason(const Request& request) const;
  void finish(Request& request, RequestOutput output, Instant now);
  void release_blocks(Request& request);

  SchedulerOptions options_;
  SchedulerConnector& connector_;
  BlockPool pool_;
  std::map<RequestId, std::unique_ptr<Request>> requests_;  // all that are not gone
  Queue waiting_;
  Queue parked_;  // waiting for remote KVs
  Queue loaded_;
  std::vector<Request*> running_;    // in the order in which they began to run
  std::vector<Request*> in_flight_;  // by item of the launched batch
  std::map<RequestId, std::vector<BlockId>> quarantined_;  // by whose read may still write them
  std::uint64_t next_arrival_ = 0;
  std::vector<RequestOutput> outputs_;
  std::uint64_t preemptions_ = 0;
  std::uint64_t prompt_tokens_ = 0;
  std::uint64_t cached_tokens_ = 0;
  std::uint64_t generated_tokens_ = 0;
};

}  // namespace kvlease
