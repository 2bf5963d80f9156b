// What one instance (P, D or both) tells Prometheus. It listens to the protocol's events, is told
// what events do not say, and takes everything that is counted elsewhere as one snapshot when it is
// scraped: nothing is counted twice on a hot path.
//
// Beside kvlease_* stand the names that vLLM exports and routers scrape (vllm:*), as far as they
// mean something here. docs/metrics.md lists them all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "kvlease/base/time.h"
#include "kvlease/core/counters.h"
#include "kvlease/core/engine_leases.h"
#include "kvlease/core/event.h"

namespace kvlease {

// Facts that do not change while the instance runs.
struct InstanceMetricsOptions {
  std::string model_name;  // these two label every series
  std::string engine;
  std::uint32_t tp_size = 1;
  std::uint32_t block_size = 16;  // tokens
  std::uint32_t num_blocks = 0;
  std::size_t max_num_waiting = 0;  // requests (L43)
  bool enable_prefix_caching = true;
};

// What is so now, filled by the host when it is scraped.
struct InstanceSnapshot {
  // Blocks: free + cached + in_use + quarantined is the pool; leased are those in use that a lease
  // pins, each counted once (L43).
  std::size_t blocks_free = 0;
  std::size_t blocks_cached = 0;
  std::size_t blocks_in_use = 0;
  std::size_t blocks_quarantined = 0;
  std::size_t blocks_leased = 0;

  std::size_t requests_running = 0;
  std::size_t requests_waiting = 0;
  std::size_t requests_waiting_for_remote_kvs = 0;
  std::size_t requests_tracked = 0;  // with a remote prefill that is not over (L15)
  std::size_t handshakes_in_flight = 0;
  std::size_t known_peers = 0;  // remote engines: connected, being connected, or backing off

  LeaseLedger ledger;
  Duration oldest_lease_age{};  // 0 without a lease (L48)
  Duration lease_duration{};    // of the next lease
  Counters counters;            // the engine's own and its ranks', summed

  // Since the start.
  std::uint64_t preemptions = 0;
  std::uint64_t prompt_tokens = 0;  // of requests that began to run
  std::uint64_t cached_tokens = 0;  // of these, not computed here: found or received (H10)
  std::uint64_t generated_tokens = 0;
};

class InstanceMetrics {
 public:
  explicit InstanceMetrics(const InstanceMetricsOptions& options);
  InstanceMetrics(const InstanceMetrics&) = delete;
  InstanceMetrics& operator=(const InstanceMetrics&) = delete;
  ~InstanceMetrics();

  // Every event of the connector, once.
  void on_event(const Event& event);

  // A request got its first token, `since_arrival` after it arrived.
  void on_first_token(Duration since_arrival);
  // A request got one more token, `since_last` after the one before.
  void on_next_token(Duration since_last);
  // A request is over. `reason`: as in the answer to the client (stop, length, abort, error).
  void on_request_finished(std::string_view reason, Duration since_arrival);

  // Prometheus text format 0.0.4.
  std::string scrape(const InstanceSnapshot& snapshot);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvlease
