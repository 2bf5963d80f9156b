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
  metrics.on_retried();
  metrics.on_decoded_alone(DecodeAloneCause::kPrefillTimeout);
  metrics.on_released(ReleaseResult::kNotFound);
  metrics.on_first_byte(milliseconds(40));
  const Scrape seen = read_scrape(metrics.scrape(), "");
  EXPECT_EQ(seen.value("kvlease_route_prefills_total"), 1);
  EXPECT_EQ(seen.value("kvlease_route_retries_total"), 1);
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
