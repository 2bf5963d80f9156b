// One engine: scheduler, both halves of the connector, and the model runner, turned by the host's
// loop. A turn does what is due and says when the next one is; it never blocks and computes nothing
// itself.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "kvlease/base/ids.h"
#include "kvlease/base/result.h"
#include "kvlease/base/time.h"
#include "kvlease/connector/scheduler_connector.h"
#include "kvlease/connector/worker_connector.h"
#include "kvlease/engine/model_runner.h"
#include "kvlease/engine/request.h"
#include "kvlease/engine/scheduler.h"

namespace kvlease {

struct EngineCoreOptions {
  SchedulerOptions scheduler;
  // Sends every step's metadata and outputs through their encoding, as between processes (L50).
  bool encode_steps = false;
};

using EngineStats = SchedulerStats;

// After add_request(), abort(), release(), or a change of the connector by the host, the next turn
// is due at once, whatever the last one returned.
class EngineCore {
 public:
  // workers: by rank. Requires: as many as the connector's tp_size; all outlive this.
  EngineCore(const EngineCoreOptions& options, SchedulerConnector& connector,
             std::vector<WorkerConnector*> workers, ModelRunner& runner);
  EngineCore(const EngineCore&) = delete;
  EngineCore& operator=(const EngineCore&) = delete;

  // Errors: kInvalidArgument (HTTP 400), kResourceExhausted (503); see Scheduler.
  Result<RequestId> add_request(NewRequest incoming, Instant now);
  // For a request with a reference that the host answers with 4xx by itself (L33).
  void refuse_request(NewRequest incoming, Instant now);
  void abort(const RequestId& id, Instant now);
  // Ends a live lease (L10). False: not found.
  bool release(const LeaseId& lease);

  // One turn: what the ranks report and the model's output are applied, the next forward is chosen,
  // the ranks get their orders, the forward is launched. All but the choice and the launch happen
  // while a forward is in flight, too. Returns when the next turn is due; not later than `now`: at
  // once.
  Instant turn(Instant now);

  // The outputs since the last call, in order.
  std::vector<RequestOutput> take_outputs() { return scheduler_.take_outputs(); }

  // True while a request, lease, read, release or handshake is outstanding: the host keeps turning
  // (L11).
  bool has_work() const;

  // Handshakes, events, counters and the drain are between the host and the connector.
  SchedulerConnector& connector() { return connector_; }
  const SchedulerConnector& connector() const { return connector_; }
  const BlockPool& pool() const { return scheduler_.pool(); }
  EngineStats stats() const { return scheduler_.stats(); }
  std::uint32_t max_model_len() const { return scheduler_.max_model_len(); }

 private:
  void apply_rank_outputs(Instant now);
  bool order_ranks(Instant now);
  Instant next_deadline(Instant now) const;

  EngineCoreOptions options_;
  SchedulerConnector& connector_;
  std::vector<WorkerConnector*> workers_;
  ModelRunner& runner_;
  Scheduler scheduler_;
  bool forward_in_flight_ = false;
  Instant wake_requested_ = kNever;  // what the last turn returned (L47)
};

}  // namespace kvlease
