// Tests of cluster_view.h.
#include "kvlease/obs/cluster_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvlease/obs/route_metrics.h"

namespace kvlease {
namespace {

using testing::Contains;
using testing::ElementsAre;

TEST(ClusterView, RoutersCountersAreReadAsTheyAreScraped) {
  RouteMetrics metrics;
  metrics.on_request_begun();
  metrics.on_request_begun();
  metrics.on_request_begun();
  metrics.on_request_ended(RouteOutcome::kCompleted);
  metrics.on_request_ended(RouteOutcome::kCompleted);
  metrics.on_prefilled();
  metrics.on_first_byte(std::chrono::seconds{1});
  metrics.set_backend({.url = "http://h:1", .role = BackendRole::kDecode, .is_up = true});
  const auto counters = route_counters(metrics.scrape());
  EXPECT_THAT(counters, Contains(RouteCounterView{"requests", "completed", 2}));
  EXPECT_THAT(counters, Contains(RouteCounterView{"requests", "client_gone", 0}));
  EXPECT_THAT(counters, Contains(RouteCounterView{"prefills", "", 1}));
  for (const RouteCounterView& counter : counters) {  // no gauge, no histogram, no address
    EXPECT_EQ(counter.name.find("in_flight"), std::string::npos);
    EXPECT_EQ(counter.name.find("first_byte"), std::string::npos);
    EXPECT_EQ(counter.name.find("backend"), std::string::npos);
  }
}

TEST(ClusterView, OddTextIsNoCounter) {
  EXPECT_THAT(route_counters(""), ElementsAre());
  EXPECT_THAT(route_counters("\n\n"), ElementsAre());
  EXPECT_THAT(route_counters("kvlease_route_a_total"), ElementsAre());
  EXPECT_THAT(route_counters("kvlease_route_a_total x"), ElementsAre());
  EXPECT_THAT(route_counters("# TYPE kvlease_route_a_total counter\nkvlease_route_a_total 3"),
              ElementsAre(RouteCounterView{"a", "", 3}));
}

}  // namespace
}  // namespace kvlease
