// The families of an instance, and how events and snapshots fill them.
#include "kvlease/obs/instance_metrics.h"

#include <utility>
#include <vector>

#include "kvlease/base/check.h"
#include "kvlease/core/lease.h"
#include "kvlease/core/transfer_tracker.h"
#include "kvlease/obs/counter_families.h"
#include "kvlease/obs/metric_registry.h"

namespace kvlease {
namespace {

using enum MetricType;

// vLLM's buckets, so that dashboards made for it read ours, too.
const std::vector<double> kFirstTokenSeconds{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                             0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                             20,    40,    80,   160,  640,  2560};
const std::vector<double> kNextTokenSeconds{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                            0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
const std::vector<double> kRequestSeconds{0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                          30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
const std::vector<double> kPostSeconds{0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1,
                                       0.2,   0.3,   0.5,  0.75,  1,    5};
const std::vector<double> kReadSeconds{0.005, 0.01, 0.025, 0.05, 0.075, 0.1,
                                       0.2,   0.3,  0.5,   0.75, 1,     5};
// 2^11, 2^13, … 2^33.
const std::vector<double> kReadBytes{2048.,      8192.,      32768.,      131072.,
                                     524288.,    2097152.,   8388608.,    33554432.,
                                     134217728., 536870912., 2147483648., 8589934592.};
const std::vector<double> kDescriptors{10,  20,   30,   50,   75,    100,   200,
                                       400, 1000, 2000, 4000, 10000, 20000, 50000};
// Ours: reads on loopback take less than vLLM's first bucket, leases live for seconds to minutes.
const std::vector<double> kFineReadSeconds{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005,
                                           0.01,   0.025,   0.05,   0.1,   0.25,   0.5,
                                           1,      2.5,     5,      10,    30,     60};
const std::vector<double> kHeldSeconds{0.01, 0.05, 0.1, 0.25, 0.5, 1,   2.5, 5,
                                       10,   20,   30,  60,   120, 300, 600};
const std::vector<double> kSlackSeconds{0, 0.05, 0.1, 0.25, 0.5, 1,  2, 3,
                                        5, 10,   15,  20,   25,  30, 60};
const std::vector<double> kLagSeconds{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                      0.25,  0.5,    1,     2.5,  5,     10};

constexpr LeaseEnd kLeaseEnds[] = {LeaseEnd::kCompleted, LeaseEnd::kReleased, LeaseEnd::kRecalled,
                                   LeaseEnd::kDrained, LeaseEnd::kExpired};
static_assert(std::size(kLeaseEnds) == kLeaseEndCount);

constexpr LoadFailure kLoadFailures[] = {
    LoadFailure::kHandshakeFailed, LoadFailure::kInvalidReference, LoadFailure::kStaleReference,
    LoadFailure::kLeaseLost,       LoadFailure::kTransferFailed,   LoadFailure::kTimedOut};

double number(auto value) { return static_cast<double>(value); }

}  // namespace

struct InstanceMetrics::Impl {
  explicit Impl(const InstanceMetricsOptions& options);

  void on_event(const Event& event);
  void on_lease_ended(const Event& event);
  void take_snapshot(const InstanceSnapshot& snapshot);
  void add_constants(const InstanceMetricsOptions& options);
  void take_blocks(const InstanceSnapshot& snapshot);
  void take_ledger(const LeaseLedger& ledger);
  void take_counters(const Counters& counters, const LeaseLedger& ledger);
  void take_vllm(const InstanceSnapshot& snapshot);

  MetricFamily& gauge(std::string name, std::string help, std::vector<std::string> labels) {
    return registry.add({std::move(name), std::move(help), kGauge, std::move(labels), {}});
  }
  MetricFamily& counter(std::string name, std::string help, std::vector<std::string> labels) {
    return registry.add({std::move(name), std::move(help), kCounter, std::move(labels), {}});
  }
  MetricFamily& histogram(std::string name, std::string help, std::vector<std::string> labels,
                          const std::vector<double>& buckets) {
    return registry.add({std::move(name), std::move(help), kHistogram, std::move(labels), buckets});
  }

  std::uint32_t num_blocks;
  MetricRegistry registry;

  // Leases.
  MetricFamily& leases_live = gauge("kvlease_leases_live", "Leases granted and not ended.", {});
  MetricFamily& leases_granted =
      counter("kvlease_leases_granted_total", "Leases granted, once an engine (L1).", {});
  MetricFamily& leases_ended =
      counter("kvlease_leases_ended_total", "Leases that ended, once an engine, by how (L6, H01).",
              {"end"});
  MetricFamily& lease_block_refs =
      gauge("kvlease_lease_block_refs",
            "Blocks of live leases; a block under two leases counts twice (L6).", {});
  MetricFamily& ledger_balanced =
      gauge("kvlease_ledger_balanced",
            "1 when granted = live + ended, in leases and in their blocks (L6); 0 is a bug.", {});
  MetricFamily& lease_held =
      histogram("kvlease_lease_held_seconds", "How long leases lived, by how they ended.", {"end"},
                kHeldSeconds);
  MetricFamily& lease_slack =
      histogram("kvlease_lease_slack_seconds",
                "How much longer a completed lease had, by P's clock, when its last reader's "
                "completion was counted (L3, L7).",
                {}, kSlackSeconds);
  MetricFamily& dead_block_seconds =
      counter("kvlease_dead_block_seconds_total",
              "Blocks of expired leases, each times the seconds from the lease's last renewal, or "
              "its grant, to its end (L3).",
              {});
  MetricFamily& oldest_lease_age = gauge("kvlease_oldest_lease_age_seconds",
                                         "Since the oldest live lease was granted; 0 without "
                                         "one (L48).",
                                         {});
  MetricFamily& lease_duration =
      gauge("kvlease_lease_duration_seconds", "What the next lease gets (L1, L14).", {});

  // Blocks.
  MetricFamily& blocks = gauge("kvlease_blocks",
                               "Blocks of the pool by state; quarantined: a read that is over may "
                               "still write them (L26).",
                               {"state"});
  MetricFamily& leased_blocks = gauge(
      "kvlease_leased_blocks",
      "Blocks in use that a lease pins, each counted once: what the budget counts (L43).", {});

  // Loads, reads and peers.
  MetricFamily& requests_tracked =
      gauge("kvlease_requests_tracked", "Requests whose remote prefill is not over yet (L15).", {});
  MetricFamily& handshakes_in_flight =
      gauge("kvlease_handshakes_in_flight", "Handshakes under way (L29).", {});
  MetricFamily& known_peers =
      gauge("kvlease_known_peers",
            "Remote engines that are connected, being connected, or backing off (L43).", {});
  MetricFamily& load_failures =
      counter("kvlease_load_failures_total",
              "Loads that took the failure policy, once a request, by cause (L27).", {"cause"});
  MetricFamily& rank_read_bytes =
      counter("kvlease_rank_read_bytes_total", "Bytes of validated reads, on all ranks (H02).", {});
  MetricFamily& rank_read_seconds = histogram(
      "kvlease_rank_read_seconds", "From the post of a rank's read until it was validated (H02).",
      {}, kFineReadSeconds);
  MetricFamily& heartbeat_lag = histogram(
      "kvlease_heartbeat_lag_seconds",
      "How late D's heartbeats left, after they were due, by all ranks (L18).", {}, kLagSeconds);
  MetricFamily& notifs_rejected =
      counter("kvlease_notifications_rejected_total",
              "Notifications that are not of the wire's forms, by cause (L44).", {"cause"});

  // The engine.
  MetricFamily& waiting_for_remote_kvs =
      gauge("kvlease_requests_waiting_for_remote_kvs", "Requests parked while they load.", {});

  // vLLM's names.
  MetricFamily& running = gauge("vllm:num_requests_running", "Requests in the running batch.", {});
  MetricFamily& waiting = gauge("vllm:num_requests_waiting",
                                "Requests that wait to run, those that load included.", {});
  MetricFamily& cache_usage = gauge("vllm:kv_cache_usage_perc",
                                    "Share of the blocks that cannot be allocated; 1 is all.", {});
  MetricFamily& prefix_queries =
      counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up.", {});
  MetricFamily& prefix_hits =
      counter("vllm:prefix_cache_hits_total",
              "Prompt tokens found here or received, not computed (H10).", {});
  MetricFamily& prompt_tokens =
      counter("vllm:prompt_tokens_total", "Prompt tokens of requests that began to run.", {});
  MetricFamily& generation_tokens =
      counter("vllm:generation_tokens_total", "Tokens generated.", {});
  MetricFamily& preemptions = counter("vllm:num_preemptions_total", "Requests preempted.", {});
  MetricFamily& nixl_seconds =
      histogram("vllm:nixl_xfer_time_seconds", "As kvlease_rank_read_seconds, in vLLM's buckets.",
                {}, kReadSeconds);
  MetricFamily& nixl_bytes = histogram("vllm:nixl_bytes_transferred",
                                       "Bytes of one validated read of one rank.", {}, kReadBytes);
  MetricFamily& nixl_post_seconds = histogram(
      "vllm:nixl_post_time_seconds",
      "How long the transport took to start one validated read of one rank.", {}, kPostSeconds);
  MetricFamily& nixl_descriptors = histogram(
      "vllm:nixl_num_descriptors",
      "Descriptors of one validated read of one rank, before NIXL merges any.", {}, kDescriptors);
  MetricFamily& nixl_failed_transfers =
      counter("vllm:nixl_num_failed_transfers_total",
              "Reads, handshakes and sends that failed, as vLLM adds them up.", {});
  MetricFamily& nixl_failed_notifs =
      counter("vllm:nixl_num_failed_notifications_total", "As kvlease_sends_failed_total.", {});
  MetricFamily& nixl_expired =
      counter("vllm:nixl_num_kv_expired_reqs_total",
              "Leases that expired and holds declined for being about to; once an engine, where "
              "vLLM counts ranks (H01).",
              {});
  MetricFamily& nixl_after_expiry = counter("vllm:nixl_num_notifications_after_expiry_total",
                                            "Completions for no live lease, on all ranks.", {});
  MetricFamily& first_token =
      histogram("vllm:time_to_first_token_seconds", "From a request's arrival to its first token.",
                {}, kFirstTokenSeconds);
  MetricFamily& next_token = histogram("vllm:inter_token_latency_seconds",
                                       "Between two tokens of a request.", {}, kNextTokenSeconds);
  MetricFamily& request_seconds =
      histogram("vllm:e2e_request_latency_seconds", "From a request's arrival to its end.", {},
                kRequestSeconds);
  MetricFamily& requests_finished =
      counter("vllm:request_success_total", "Requests that ended, by reason.", {"finished_reason"});

  std::vector<std::pair<const CounterFamily*, MetricFamily*>> counted;
};

InstanceMetrics::Impl::Impl(const InstanceMetricsOptions& options)
    : num_blocks(options.num_blocks),
      registry({{"model_name", options.model_name}, {"engine", options.engine}}) {
  add_constants(options);
  for (const CounterFamily& family : counter_families()) {
    std::vector<std::string> labels;
    if (!family.label_name.empty()) labels.emplace_back(family.label_name);
    counted.emplace_back(
        &family, &counter(std::string(family.name), std::string(family.help), std::move(labels)));
  }
  for (const LeaseEnd end : kLeaseEnds) lease_held.declare({lease_end_name(end)});
  for (const LoadFailure failure : kLoadFailures)
    load_failures.declare({load_failure_name(failure)});
  for (const std::string_view reason : {"stop", "length", "abort", "error"}) {
    requests_finished.declare({reason});
  }
}

void InstanceMetrics::Impl::add_constants(const InstanceMetricsOptions& options) {
  gauge("kvlease_ranks", "Tensor-parallel ranks of the engine (H02).", {}).set(options.tp_size, {});
  gauge("kvlease_requests_waiting_max", "Requests that may wait; more get 503 (L43).", {})
      .set(number(options.max_num_waiting), {});
  gauge("vllm:cache_config_info", "The shape of the KV cache; always 1.",
        {"block_size", "num_gpu_blocks", "enable_prefix_caching"})
      .set(1, {std::to_string(options.block_size), std::to_string(options.num_blocks),
               options.enable_prefix_caching ? "True" : "False"});
}

void InstanceMetrics::Impl::on_event(const Event& event) {
  switch (event.kind) {
    case EventKind::kLeaseEnded:
      on_lease_ended(event);
      return;
    case EventKind::kReadValidated:
      rank_read_bytes.add(number(event.count), {});
      rank_read_seconds.observe(to_seconds(event.length), {});
      nixl_seconds.observe(to_seconds(event.length), {});
      nixl_bytes.observe(number(event.count), {});
      nixl_post_seconds.observe(to_seconds(event.posting), {});
      nixl_descriptors.observe(number(event.descriptors), {});
      return;
    case EventKind::kHeartbeatSent:
      heartbeat_lag.observe(to_seconds(event.length), {});
      return;
    case EventKind::kLoadFailed:  // "cause: what happened"
      load_failures.add(1, {std::string_view(event.detail).substr(0, event.detail.find(':'))});
      return;
    case EventKind::kNotifRejected:
      notifs_rejected.add(1, {event.detail});
      return;
    // What these say is in the counters and the ledger of the snapshot.
    case EventKind::kLeaseGranted:
    case EventKind::kLeasesRenewed:
    case EventKind::kStallGrace:
    case EventKind::kHandshakeStarted:
    case EventKind::kHandshakeDone:
    case EventKind::kHandshakeFailed:
    case EventKind::kTrackingStarted:
    case EventKind::kReadPosted:
    case EventKind::kReadRejected:
    case EventKind::kCompletionSent:
    case EventKind::kLeaseLost:
    case EventKind::kPeerSuspect:
    case EventKind::kPeerForgotten:
    case EventKind::kQuarantined:
    case EventKind::kQuiet:
      return;
  }
  KVL_UNREACHABLE("every kind of event is known");
}

void InstanceMetrics::Impl::on_lease_ended(const Event& event) {
  lease_held.observe(to_seconds(event.length), {event.detail});
  if (event.detail == lease_end_name(LeaseEnd::kExpired)) {
    dead_block_seconds.add(number(event.count) * to_seconds(event.silent), {});
  }
  // A lease that never expires has no slack to speak of.
  if (event.detail == lease_end_name(LeaseEnd::kCompleted) && event.left != kForever) {
    lease_slack.observe(to_seconds(event.left), {});
  }
}

void InstanceMetrics::Impl::take_snapshot(const InstanceSnapshot& snapshot) {
  take_blocks(snapshot);
  take_ledger(snapshot.ledger);
  take_counters(snapshot.counters, snapshot.ledger);
  take_vllm(snapshot);
  lease_duration.set(to_seconds(snapshot.lease_duration), {});
  oldest_lease_age.set(to_seconds(snapshot.oldest_lease_age), {});
  requests_tracked.set(number(snapshot.requests_tracked), {});
  handshakes_in_flight.set(number(snapshot.handshakes_in_flight), {});
  known_peers.set(number(snapshot.known_peers), {});
  waiting_for_remote_kvs.set(number(snapshot.requests_waiting_for_remote_kvs), {});
}

void InstanceMetrics::Impl::take_blocks(const InstanceSnapshot& snapshot) {
  blocks.set(number(snapshot.blocks_free), {"free"});
  blocks.set(number(snapshot.blocks_cached), {"cached"});
  blocks.set(number(snapshot.blocks_in_use), {"in_use"});
  blocks.set(number(snapshot.blocks_quarantined), {"quarantined"});
  leased_blocks.set(number(snapshot.blocks_leased), {});
  const std::size_t taken = snapshot.blocks_in_use + snapshot.blocks_quarantined;
  cache_usage.set(num_blocks == 0 ? 0 : number(taken) / num_blocks, {});
}

void InstanceMetrics::Impl::take_ledger(const LeaseLedger& ledger) {
  leases_live.set(number(ledger.live), {});
  leases_granted.set(number(ledger.granted), {});
  lease_block_refs.set(number(ledger.live_blocks), {});
  ledger_balanced.set(ledger.balanced() ? 1 : 0, {});
  for (const LeaseEnd end : kLeaseEnds) {
    leases_ended.set(number(ledger.ended[static_cast<std::size_t>(end)]), {lease_end_name(end)});
  }
}

void InstanceMetrics::Impl::take_counters(const Counters& counters, const LeaseLedger& ledger) {
  for (const auto& [table, family] : counted) {
    for (const auto& [counter, label_value] : table->series) {
      const double value = number(counters.value(counter));
      table->label_name.empty() ? family->set(value, {}) : family->set(value, {label_value});
    }
  }
  nixl_failed_transfers.set(
      number(counters.value(Counter::kReadsFailed) + counters.value(Counter::kReadsTimedOut) +
             counters.value(Counter::kHandshakesFailed) + counters.value(Counter::kSendFailures)),
      {});
  const std::uint64_t expired = ledger.ended[static_cast<std::size_t>(LeaseEnd::kExpired)];
  nixl_expired.set(number(expired + counters.value(Counter::kHoldsDeclined)), {});
  nixl_failed_notifs.set(number(counters.value(Counter::kSendFailures)), {});
  nixl_after_expiry.set(number(counters.value(Counter::kCompletionUnknown)), {});
}

void InstanceMetrics::Impl::take_vllm(const InstanceSnapshot& snapshot) {
  running.set(number(snapshot.requests_running), {});
  waiting.set(number(snapshot.requests_waiting + snapshot.requests_waiting_for_remote_kvs), {});
  prefix_queries.set(number(snapshot.prompt_tokens), {});
  prefix_hits.set(number(snapshot.cached_tokens), {});
  prompt_tokens.set(number(snapshot.prompt_tokens), {});
  generation_tokens.set(number(snapshot.generated_tokens), {});
  preemptions.set(number(snapshot.preemptions), {});
}

InstanceMetrics::InstanceMetrics(const InstanceMetricsOptions& options)
    : impl_(std::make_unique<Impl>(options)) {}

InstanceMetrics::~InstanceMetrics() = default;

void InstanceMetrics::on_event(const Event& event) { impl_->on_event(event); }

void InstanceMetrics::on_first_token(Duration since_arrival) {
  impl_->first_token.observe(to_seconds(since_arrival), {});
}

void InstanceMetrics::on_next_token(Duration since_last) {
  impl_->next_token.observe(to_seconds(since_last), {});
}

void InstanceMetrics::on_request_finished(std::string_view reason, Duration since_arrival) {
  impl_->requests_finished.add(1, {reason});
  impl_->request_seconds.observe(to_seconds(since_arrival), {});
}

std::string InstanceMetrics::scrape(const InstanceSnapshot& snapshot) {
  impl_->take_snapshot(snapshot);
  return impl_->registry.text();
}

}  // namespace kvlease
