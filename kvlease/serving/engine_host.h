// One engine with everything below it, for a process that serves: memory, NIXL agents, both halves
// of the connector, the model on its thread. Turned by the process's loop; makes the handshakes
// that the connector asks for.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvlease/base/result.h"
#include "kvlease/base/time.h"
#include "kvlease/connector/scheduler_connector.h"
#include "kvlease/connector/worker_connector.h"
#include "kvlease/engine/engine_core.h"
#include "kvlease/fabric/fault.h"
#include "kvlease/nixl/library.h"
#include "kvlease/runtime/http_client.h"
#include "kvlease/runtime/loop.h"
#include "kvlease/runtime/memory.h"
#include "kvlease/serving/threaded_runner.h"
#include "kvlease/synthetic/synthetic_model.h"
#include "kvlease/wire/kv_transfer_config.h"

namespace kvlease {

inline constexpr std::string_view kHandshakePath = "/kvlease/v1/handshake";

struct EngineHostOptions {
  KvTransferConfig kv_transfer_config;
  std::string model_name = "synthetic";
  SyntheticConfig model;
  SchedulerOptions scheduler;
  std::string advertise_host = "127.0.0.1";
  std::uint16_t advertise_port = 0;
  std::vector<std::string> allow_peers;
  std::string peer_key;   // empty: none
  std::string nixl_path;  // empty: see nixl::LibraryOptions
  // Only for tests and the demo: what the transport of every rank does wrong, and whether reads are
  // validated (they are, or a stale byte is decoded).
  fabric::FaultPlan faults;
  bool validate_reads = true;
};

class EngineHost {
 public:
  struct Sinks {
    std::move_only_function<void(RequestOutput)> on_output;
    std::move_only_function<void(const Event&)> on_event;
  };

  // Errors: kUnavailable without NIXL; kResourceExhausted without memory; kInvalidArgument for
  // shapes that do not divide. `loop` outlives this. Threads: starts the model's, and NIXL's own.
  static Result<std::unique_ptr<EngineHost>> start(EventLoop& loop, EngineHostOptions options,
                                                   Sinks sinks);
  EngineHost(const EngineHost&) = delete;
  EngineHost& operator=(const EngineHost&) = delete;
  ~EngineHost();

  EngineCore& core() { return *core_; }
  const EngineCore& core() const { return *core_; }
  const EngineHostOptions& options() const { return options_; }

  // What the ranks know of a live lease: its earliest deadline and a reader. nullopt: no rank has
  // it yet, or any more.
  std::optional<LeaseStatus> lease_status(const LeaseId& lease) const;

  // One turn of the engine; hands out outputs and events, starts handshakes. Returns when the next
  // is due.
  Instant turn(Instant now);

 private:
  struct RankParts {
    PageMemory kv;
    PageMemory entries;
    PageMemory landing;
    std::unique_ptr<Transport> transport;
    std::unique_ptr<WorkerConnector> worker;
  };

  EngineHost(EventLoop& loop, EngineHostOptions options, Sinks sinks);
  Result<void> start_rank(Rank rank, const EngineFacts& facts);
  Result<std::unique_ptr<Transport>> make_transport(Rank rank, const EngineFacts& facts,
                                                    std::uint32_t agent_number);
  Result<void> build();
  void start_handshake(SchedulerConnector::HandshakeToMake handshake);

  EventLoop& loop_;
  EngineHostOptions options_;
  Sinks sinks_;
  nixl::Library library_;
  std::vector<RankParts> ranks_;
  std::unique_ptr<SyntheticModel> model_;
  std::unique_ptr<ThreadedRunner> runner_;
  std::unique_ptr<SchedulerConnector> connector_;
  std::unique_ptr<EngineCore> core_;
  struct Handshake {
    std::uint64_t number;
    HttpCall call;
  };
  std::map<PeerAddress, Handshake> handshakes_;  // under way
  std::uint64_t next_handshake_ = 1;
};

}  // namespace kvlease
