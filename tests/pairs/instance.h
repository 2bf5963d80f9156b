// One whole engine on the fabric, for tests in virtual time: memory, agents, both halves of the
// connector, scheduler and synthetic model, checked against its invariants after every turn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvlease/base/time.h"
#include "kvlease/connector/scheduler_connector.h"
#include "kvlease/connector/worker_connector.h"
#include "kvlease/engine/engine_core.h"
#include "kvlease/fabric/fault.h"
#include "kvlease/fabric/network.h"
#include "kvlease/synthetic/synthetic_runner.h"

namespace kvlease::pairs {

inline constexpr std::uint32_t kBlockSize = 4;

struct InstanceOptions {
  std::uint32_t tp = 1;
  std::uint32_t num_kv_heads = 2;
  LeaseConfig lease = {.lease_slots = 128};
  SchedulerOptions scheduler = {.num_blocks = 64, .block_size = kBlockSize};
  Duration prefill_time_per_token{};
  Duration inter_token_latency{};
  std::vector<fabric::FaultPlan> faults;  // by rank; none for those that are missing
  bool validate_reads = true;
  std::vector<std::string> allow_peers = {"127.0.0.1"};
  std::uint32_t landing_cells = 64;
  Duration clock_epoch{};
  ProtocolRange protocol = kProtocol;  // of an older or a later version
};

// Who an instance is, this time.
struct InstanceIdentity {
  std::string name;  // also its engine id
  std::uint16_t port = 0;
  std::uint64_t start = 0;  // random: everything that is drawn per start follows from it
};

class Instance {
 public:
  Instance(const InstanceOptions& options, const InstanceIdentity& identity,
           fabric::Network& network);

  // One turn, with the checks of the invariants after it.
  Instant turn(Instant now);
  // When the loop has to wake: what the last turn asked for, or an arrival since.
  Instant next_deadline(Instant now);

  EngineCore& core() { return *core_; }
  SchedulerConnector& connector() { return *connector_; }
  const SchedulerConnector& connector() const { return *connector_; }
  const InstanceOptions& options() const { return options_; }
  std::uint64_t counter(Counter counter) const { return connector_->counters().value(counter); }
  std::vector<AgentName> agents() const;
  WorkerConnector& worker(std::size_t rank) { return *ranks_[rank]->worker; }
  const BlockCounts& blocks() const { return core_->pool().counts(); }

  // Everything that was lent, reserved or remembered for requests is back.
  void expect_all_back() const;
  bool is_at_rest() const;

 private:
  struct RankParts {
    std::vector<std::byte> kv;
    std::vector<LeaseEntry> entries;
    std::vector<LeaseEntry> landing;
    std::unique_ptr<Transport> transport;
    std::optional<WorkerConnector> worker;
  };

  void check_invariants() const;

  InstanceOptions options_;
  std::vector<std::unique_ptr<RankParts>> ranks_;
  std::optional<SyntheticModel> model_;
  std::optional<SyntheticRunner> runner_;
  std::optional<SchedulerConnector> connector_;
  std::optional<EngineCore> core_;
  Instant wake_ = kTimeZero;
};

}  // namespace kvlease::pairs
