// What the routing proxy's scrape says.
#include "kvlease/obs/route_metrics.h"

#include <gtest/gtest.h>

#include "kvlease/obs/scrape_testing.h"

namespace kvlease {
namespace {

using std::chrono::milliseconds;

TEST(RouteMetrics, RequestsAreInFlightUntilTheyEnd) {
  RouteMetrics metrics;
  EXPECT_EQ(read_scrape(metrics.scrape(), "").value("kvlease_route_requests_in_flight"), 0);
  metrics.on_request_begun();
  metrics.on_request_begun();
  metrics.on_request_ended(RouteOutcome::kClientGone);
  const Scrape seen = read_scrape(metrics.scrape(), "");
  EXPECT_EQ(seen.value("kvlease_route_requests_in_flight"), 1);
  EXPECT_EQ(seen.value(R"(kvlease_route_requests_total{outcome="client_gone"})"), 1);
  EXPECT_EQ(seen.value(R"(kvlease_route_requests_total{outcome="completed"})"), 0);
}

TEST(RouteMetrics, AnEndWithoutABeginningIsABug) {
  RouteMetrics metrics;
  EXPECT_DEATH(metrics.on_request_ended(RouteOutcome::kCompleted), "what has begun");
}

TEST(RouteMetrics, EachStageIsCounted) {
  RouteMetrics metrics;
  metrics.on_prefilled();
  metrics.on_retried(RetryKind::kOtherDecode);
  metrics.on_refused(RefusalCause::kDecodeShare);
  metrics.on_renewed(RenewResult::kUnknown, 3);
  metrics.set_pinned("http://p", "http://d", 5);
  metrics.set_outstanding("http://d", BackendRole::kDecode, 2);
  metrics.set_bridged(4);
  metrics.on_decoded_alone(DecodeAloneCause::kPrefillTimeout);
  metrics.on_released(ReleaseResult::kNotFound, 1);
  metrics.on_first_byte(milliseconds(40));
  const Scrape seen = read_scrape(metrics.scrape(), "");
  EXPECT_EQ(seen.value("kvlease_route_prefills_total"), 1);
  EXPECT_EQ(seen.value(R"(kvlease_route_retries_total{kind="other_decode"})"), 1);
  EXPECT_EQ(seen.value(R"(kvlease_route_refusals_total{cause="decode_share"})"), 1);
  EXPECT_EQ(seen.value(R"(kvlease_route_renewals_total{result="unknown"})"), 3);
  EXPECT_EQ(seen.value(R"(kvlease_route_pinned_blocks{prefill="http://p",decode="http://d"})"), 5);
  EXPECT_EQ(
      seen.value(R"(kvlease_route_backend_outstanding_requests{url="http://d",role="decode"})"), 2);
  EXPECT_EQ(seen.value("kvlease_route_leases_bridged"), 4);
  EXPECT_EQ(seen.value(R"(kvlease_route_decoded_alone_total{cause="prefill_timeout"})"), 1);
  EXPECT_EQ(seen.value(R"(kvlease_route_decoded_alone_total{cause="no_params"})"), 0);
  EXPECT_EQ(seen.value(R"(kvlease_route_releases_total{result="not_found"})"), 1);
  EXPECT_EQ(seen.value(R"(kvlease_route_first_byte_seconds_bucket{le="0.05"})"), 1);
  EXPECT_EQ(seen.value("kvlease_route_first_byte_seconds_sum"), 0.04);
}

TEST(RouteMetrics, ABackendIsUpOrDown) {
  RouteMetrics metrics;
  metrics.set_backend({.url = "http://p:1", .role = BackendRole::kPrefill, .is_up = true});
  metrics.set_backend({.url = "http://p:1", .role = BackendRole::kDecode, .is_up = true});
  metrics.set_backend({.url = "http://p:1", .role = BackendRole::kDecode, .is_up = false});
  const Scrape seen = read_scrape(metrics.scrape(), "");
  EXPECT_EQ(seen.value(R"(kvlease_route_backend_up{url="http://p:1",role="prefill"})"), 1);
  EXPECT_EQ(seen.value(R"(kvlease_route_backend_up{url="http://p:1",role="decode"})"), 0);
}

}  // namespace
}  // namespace kvlease
