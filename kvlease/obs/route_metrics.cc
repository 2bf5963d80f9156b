// The families of the routing proxy.
#include "kvlease/obs/route_metrics.h"

#include <vector>

#include "kvlease/base/check.h"
#include "kvlease/obs/metric_registry.h"

namespace kvlease {
namespace {

using enum MetricType;

constexpr RouteOutcome kOutcomes[] = {RouteOutcome::kCompleted, RouteOutcome::kClientError,
                                      RouteOutcome::kUnavailable, RouteOutcome::kCutShort,
                                      RouteOutcome::kClientGone};
constexpr DecodeAloneCause kDecodeAloneCauses[] = {
    DecodeAloneCause::kPrefillError, DecodeAloneCause::kPrefillUnreachable,
    DecodeAloneCause::kPrefillTimeout, DecodeAloneCause::kNoParams};
constexpr ReleaseResult kReleaseResults[] = {ReleaseResult::kReleased, ReleaseResult::kNotFound,
                                             ReleaseResult::kFailed};
constexpr RenewResult kRenewResults[] = {RenewResult::kRenewed, RenewResult::kUnknown,
                                         RenewResult::kFailed};
constexpr RetryKind kRetryKinds[] = {RetryKind::kOtherPrefill, RetryKind::kOtherDecode,
                                     RetryKind::kNewPair};
constexpr RefusalCause kRefusalCauses[] = {RefusalCause::kDraining, RefusalCause::kMaxRequests,
                                           RefusalCause::kDecodeShare};

}  // namespace

std::string_view route_outcome_name(RouteOutcome outcome) {
  switch (outcome) {
    case RouteOutcome::kCompleted:
      return "completed";
    case RouteOutcome::kClientError:
      return "client_error";
    case RouteOutcome::kUnavailable:
      return "unavailable";
    case RouteOutcome::kCutShort:
      return "cut_short";
    case RouteOutcome::kClientGone:
      return "client_gone";
  }
  KVL_UNREACHABLE("an outcome has a name");
}

std::string_view decode_alone_cause_name(DecodeAloneCause cause) {
  switch (cause) {
    case DecodeAloneCause::kPrefillError:
      return "prefill_error";
    case DecodeAloneCause::kPrefillUnreachable:
      return "prefill_unreachable";
    case DecodeAloneCause::kPrefillTimeout:
      return "prefill_timeout";
    case DecodeAloneCause::kNoParams:
      return "no_params";
  }
  KVL_UNREACHABLE("a cause has a name");
}

std::string_view release_result_name(ReleaseResult result) {
  switch (result) {
    case ReleaseResult::kReleased:
      return "released";
    case ReleaseResult::kNotFound:
      return "not_found";
    case ReleaseResult::kFailed:
      return "failed";
  }
  KVL_UNREACHABLE("a result has a name");
}

std::string_view renew_result_name(RenewResult result) {
  switch (result) {
    case RenewResult::kRenewed:
      return "renewed";
    case RenewResult::kUnknown:
      return "unknown";
    case RenewResult::kFailed:
      return "failed";
  }
  KVL_UNREACHABLE("a result has a name");
}

std::string_view retry_kind_name(RetryKind kind) {
  switch (kind) {
    case RetryKind::kOtherPrefill:
      return "other_prefill";
    case RetryKind::kOtherDecode:
      return "other_decode";
    case RetryKind::kNewPair:
      return "new_pair";
  }
  KVL_UNREACHABLE("a kind has a name");
}

std::string_view refusal_cause_name(RefusalCause cause) {
  switch (cause) {
    case RefusalCause::kDraining:
      return "draining";
    case RefusalCause::kMaxRequests:
      return "max_requests";
    case RefusalCause::kDecodeShare:
      return "decode_share";
  }
  KVL_UNREACHABLE("a cause has a name");
}

std::string_view backend_role_name(BackendRole role) {
  switch (role) {
    case BackendRole::kPrefill:
      return "prefill";
    case BackendRole::kDecode:
      return "decode";
  }
  KVL_UNREACHABLE("a role has a name");
}

struct RouteMetrics::Impl {
  Impl();

  MetricRegistry registry{{}};
  MetricFamily& in_flight = registry.add(
      {"kvlease_route_requests_in_flight", "Client requests under way.", kGauge, {}, {}});
  MetricFamily& requests = registry.add({"kvlease_route_requests_total",
                                         "Client requests that ended, by outcome.",
                                         kCounter,
                                         {"outcome"},
                                         {}});
  MetricFamily& prefills = registry.add({"kvlease_route_prefills_total",
                                         "Prefills that P answered with kv_transfer_params.",
                                         kCounter,
                                         {},
                                         {}});
  MetricFamily& decoded_alone = registry.add({"kvlease_route_decoded_alone_total",
                                              "Requests whose prompt D computed itself, by cause.",
                                              kCounter,
                                              {"cause"},
                                              {}});
  MetricFamily& retries = registry.add({"kvlease_route_retries_total",
                                        "Requests that went on another way, by how.",
                                        kCounter,
                                        {"kind"},
                                        {}});
  MetricFamily& refusals = registry.add({"kvlease_route_refusals_total",
                                         "Requests that the router itself answered with 503.",
                                         kCounter,
                                         {"cause"},
                                         {}});
  MetricFamily& renewals = registry.add({"kvlease_route_renewals_total",
                                         "Renewals of leases by the router, by result (L2).",
                                         kCounter,
                                         {"result"},
                                         {}});
  MetricFamily& releases = registry.add({"kvlease_route_releases_total",
                                         "Leases given back by the router, by result (L10).",
                                         kCounter,
                                         {"result"},
                                         {}});
  MetricFamily& first_byte = registry.add(
      {"kvlease_route_first_byte_seconds",
       "From a request's arrival to the first byte of D's answer.",
       kHistogram,
       {},
       {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120}});
  MetricFamily& backends = registry.add({"kvlease_route_backend_up",
                                         "1 when an instance takes new work, else 0.",
                                         kGauge,
                                         {"url", "role"},
                                         {}});
  MetricFamily& outstanding = registry.add({"kvlease_route_backend_outstanding_requests",
                                            "Requests under way at an instance.",
                                            kGauge,
                                            {"url", "role"},
                                            {}});
  MetricFamily& bridged = registry.add({"kvlease_route_leases_bridged",
                                        "Leases that the router keeps alive: D has not answered.",
                                        kGauge,
                                        {},
                                        {}});
  MetricFamily& pinned = registry.add({"kvlease_route_pinned_blocks",
                                       "Blocks of P that requests for D pin, as the router counts.",
                                       kGauge,
                                       {"prefill", "decode"},
                                       {}});
  std::uint64_t requests_in_flight = 0;
};

RouteMetrics::Impl::Impl() {
  for (const RouteOutcome outcome : kOutcomes) requests.declare({route_outcome_name(outcome)});
  for (const DecodeAloneCause cause : kDecodeAloneCauses) {
    decoded_alone.declare({decode_alone_cause_name(cause)});
  }
  for (const ReleaseResult result : kReleaseResults)
    releases.declare({release_result_name(result)});
  for (const RenewResult result : kRenewResults) renewals.declare({renew_result_name(result)});
  for (const RetryKind kind : kRetryKinds) retries.declare({retry_kind_name(kind)});
  for (const RefusalCause cause : kRefusalCauses) refusals.declare({refusal_cause_name(cause)});
}

RouteMetrics::RouteMetrics() : impl_(std::make_unique<Impl>()) {}

RouteMetrics::~RouteMetrics() = default;

void RouteMetrics::on_request_begun() {
  impl_->in_flight.set(static_cast<double>(++impl_->requests_in_flight), {});
}

void RouteMetrics::on_request_ended(RouteOutcome outcome) {
  KVL_CHECK(impl_->requests_in_flight > 0, "only what has begun ends");
  impl_->in_flight.set(static_cast<double>(--impl_->requests_in_flight), {});
  impl_->requests.add(1, {route_outcome_name(outcome)});
}

void RouteMetrics::on_prefilled() { impl_->prefills.add(1, {}); }

void RouteMetrics::on_decoded_alone(DecodeAloneCause cause) {
  impl_->decoded_alone.add(1, {decode_alone_cause_name(cause)});
}

void RouteMetrics::on_retried(RetryKind kind) { impl_->retries.add(1, {retry_kind_name(kind)}); }

void RouteMetrics::on_refused(RefusalCause cause) {
  impl_->refusals.add(1, {refusal_cause_name(cause)});
}

void RouteMetrics::on_released(ReleaseResult result, std::size_t leases) {
  impl_->releases.add(static_cast<double>(leases), {release_result_name(result)});
}

void RouteMetrics::on_renewed(RenewResult result, std::size_t leases) {
  impl_->renewals.add(static_cast<double>(leases), {renew_result_name(result)});
}

void RouteMetrics::set_outstanding(std::string_view url, BackendRole role, std::size_t requests) {
  impl_->outstanding.set(static_cast<double>(requests), {url, backend_role_name(role)});
}

void RouteMetrics::set_bridged(std::size_t leases) {
  impl_->bridged.set(static_cast<double>(leases), {});
}

void RouteMetrics::set_pinned(std::string_view prefill_url, std::string_view decode_url,
                              std::size_t blocks) {
  impl_->pinned.set(static_cast<double>(blocks), {prefill_url, decode_url});
}

void RouteMetrics::on_first_byte(Duration since_arrival) {
  impl_->first_byte.observe(to_seconds(since_arrival), {});
}

void RouteMetrics::set_backend(const BackendHealth& health) {
  impl_->backends.set(health.is_up ? 1 : 0, {health.url, backend_role_name(health.role)});
}

std::string RouteMetrics::scrape() const { return impl_->registry.text(); }

}  // namespace kvlease
