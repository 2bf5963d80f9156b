// Implements engine_core.h: the order of one turn.
#include "kvlease/engine/engine_core.h"

#include <algorithm>
#include <utility>

#include "kvlease/base/check.h"

namespace kvlease {

EngineCore::EngineCore(const EngineCoreOptions& options, SchedulerConnector& connector,
                       std::vector<WorkerConnector*> workers, ModelRunner& runner)
    : options_(options),
      connector_(connector),
      workers_(std::move(workers)),
      runner_(runner),
      scheduler_(options.scheduler, connector) {
  KVL_CHECK(workers_.size() == connector_.facts().tp_size, "one worker half for each rank");
}

Result<RequestId> EngineCore::add_request(NewRequest incoming, Instant now) {
  return scheduler_.add_request(std::move(incoming), now);
}

void EngineCore::refuse_request(NewRequest incoming, Instant now) {
  scheduler_.refuse_request(std::move(incoming), now);
}

void EngineCore::abort(const RequestId& id, Instant now) { scheduler_.abort(id, now); }

bool EngineCore::release(const LeaseId& lease) { return connector_.release(lease); }

Instant EngineCore::turn(Instant now) {
  apply_rank_outputs(now);
  if (const auto output = forward_in_flight_ ? runner_.poll(now) : std::nullopt) {
    forward_in_flight_ = false;
    scheduler_.update_from_output(*output, now);
  }
  std::optional<Batch> batch = forward_in_flight_ ? std::nullopt : scheduler_.schedule(now);
  const bool ordered = order_ranks(now);
  if (batch) {
    runner_.launch(std::move(*batch), now);
    forward_in_flight_ = true;
  }
  KVL_CHECK(scheduler_.pool().counts().lease_refs == connector_.leases().ledger().live_blocks,
            "the ledger and the pool count the same references of leases (L6)");
  // An order may be done already; and what is overdue was not asked for earlier than now (L47).
  wake_requested_ = ordered ? now : std::max(now, next_deadline(now));
  return wake_requested_;
}

void EngineCore::apply_rank_outputs(Instant now) {
  std::vector<WorkerOutput> outputs;
  for (WorkerConnector* const worker : workers_) {
    worker->begin_turn(wake_requested_, now);  // L47
    outputs.push_back(worker->get_finished(now));
    if (options_.encode_steps) {
      auto decoded = decode_worker_output(encode(outputs.back()));
      KVL_CHECK(decoded.has_value(), "what a rank encodes can be decoded");
      outputs.back() = std::move(*decoded);
    }
  }
  scheduler_.update_from_connector(connector_.update_connector_output(outputs, now), now);
}

// Returns whether there were orders.
bool EngineCore::order_ranks(Instant now) {
  ConnectorMetadata metadata = connector_.build_connector_meta(now);
  if (metadata.empty()) return false;
  if (options_.encode_steps) {
    auto decoded = decode_connector_metadata(encode(metadata));
    KVL_CHECK(decoded.has_value(), "what the scheduler half encodes can be decoded");
    metadata = std::move(*decoded);
  }
  for (WorkerConnector* const worker : workers_) worker->start_load_kv(metadata, now);
  return true;
}

Instant EngineCore::next_deadline(Instant now) const {
  Instant deadline = earlier(connector_.next_deadline(), runner_.next_deadline());
  for (WorkerConnector* const worker : workers_) {
    deadline = earlier(deadline, worker->next_deadline(now));
  }
  return deadline;
}

bool EngineCore::has_work() const { return scheduler_.has_work() || connector_.has_work(); }

}  // namespace kvlease
