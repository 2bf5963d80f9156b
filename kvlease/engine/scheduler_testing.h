// A scheduler with its half of the connector, stepped by hand: the tests play the ranks and the
// model.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "kvlease/engine/engine_testing.h"
#include "kvlease/engine/scheduler.h"

namespace kvlease {

inline SchedulerConnectorOptions side_connector_options(const char* engine,
                                                        const SchedulerOptions& options,
                                                        const LeaseConfig& config) {
  return {.facts = {.engine_id = EngineId(engine),
                    .incarnation = Incarnation(1),
                    .word_high = 77,
                    .identity = {.num_kv_heads = 1, .block_size = options.block_size},
                    .tp_size = 1,
                    .advertise_host = "127.0.0.1",
                    .advertise_port = 8100},
          .config = config,
          .num_blocks = options.num_blocks,
          .allow_peers = {"127.0.0.1"}};
}

struct Side {
  explicit Side(const SchedulerOptions& options) : Side(options, LeaseConfig{}) {}
  Side(const SchedulerOptions& options, const LeaseConfig& config)
      : Side("engine", options, config) {}
  Side(const char* engine, const SchedulerOptions& options, const LeaseConfig& config)
      : connector(side_connector_options(engine, options, config)), scheduler(options, connector) {
    connector.set_xfer_handshake_metadata(
        {{.num_blocks = options.num_blocks, .entries_count = config.lease_slots}});
  }

  RequestId add(std::vector<TokenId> prompt, SamplingParams sampling) {
    return add(std::move(prompt), std::move(sampling), std::nullopt);
  }
  RequestId add(std::vector<TokenId> prompt, SamplingParams sampling,
                std::optional<KvTransferParams> params) {
    auto id = scheduler.add_request({.client_id = "client",
                                     .prompt_token_ids = std::move(prompt),
                                     .sampling = std::move(sampling),
                                     .kv_transfer_params = std::move(params)},
                                    at(0));
    KVL_CHECK(id.has_value(), "the test's request is accepted");
    return *id;
  }
  RequestId add_remote_decode(std::vector<TokenId> prompt) {
    return add(std::move(prompt), {.max_tokens = 1}, KvTransferParams{.do_remote_decode = true});
  }

  // Schedules, runs the forward in no time, gives out the orders. Returns what ran.
  std::optional<Batch> step(Instant now) {
    std::optional<Batch> batch = scheduler.schedule(now);
    if (batch) scheduler.update_from_output(sample(*batch), now);
    orders = connector.build_connector_meta(now);
    take_outputs();
    return batch;
  }

  // The one rank reports.
  void report(const WorkerOutput& output, Instant now) {
    scheduler.update_from_connector(connector.update_connector_output({&output, 1}, now), now);
    take_outputs();
    check_ledger();
  }

  void take_outputs() {
    for (RequestOutput& output : scheduler.take_outputs()) {
      std::vector<TokenId>& text = texts[output.request];
      text.insert(text.end(), output.new_token_ids.begin(), output.new_token_ids.end());
      if (!output.finish_reason) continue;
      const RequestId id = output.request;
      EXPECT_TRUE(last.emplace(id, std::move(output)).second) << "two last outputs";
    }
  }

  // L6: every reference of a lease is in the pool, and the pool is what a recount says.
  void check_ledger() const {
    const LeaseLedger& ledger = connector.leases().ledger();
    EXPECT_TRUE(ledger.balanced());
    EXPECT_EQ(ledger.live_blocks, scheduler.pool().counts().lease_refs);
    EXPECT_EQ(scheduler.pool().counts(), scheduler.pool().recount());
  }

  std::optional<FinishReason> finish_reason(const RequestId& id) const {
    const auto it = last.find(id);
    return it == last.end() ? std::nullopt : it->second.finish_reason;
  }

  SchedulerConnector connector;
  Scheduler scheduler;
  ConnectorMetadata orders;  // of the last step
  std::map<RequestId, std::vector<TokenId>> texts;
  std::map<RequestId, RequestOutput> last;  // with a finish_reason
};

}  // namespace kvlease
