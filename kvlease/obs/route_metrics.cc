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
                                        "Requests tried again on another pair of instances.",
                                        kCounter,
                                        {},
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
  std::uint64_t requests_in_flight = 0;
};

RouteMetrics::Impl::Impl() {
  for (const RouteOutcome outcome : kOutcomes) requests.declare({route_outcome_name(outcome)});
  for (const DecodeAloneCause cause : kDecodeAloneCauses) {
    decoded_alone.declare({decode_alone_cause_name(cause)});
  }
  for (const ReleaseResult result : kReleaseResults)
    releases.declare({release_result_name(result)});
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

void RouteMetrics::on_retried() { impl_->retries.add(1, {}); }

void RouteMetrics::on_released(ReleaseResult result) {
  impl_->releases.add(1, {release_result_name(result)});
}

void RouteMetrics::on_first_byte(Duration since_arrival) {
  impl_->first_byte.observe(to_seconds(since_arrival), {});
}

void RouteMetrics::set_backend(const BackendHealth& health) {
  impl_->backends.set(health.is_up ? 1 : 0, {health.url, backend_role_name(health.role)});
}

std::string RouteMetrics::scrape() const { return impl_->registry.text(); }

}  // namespace kvlease
