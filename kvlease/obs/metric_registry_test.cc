// What a scraper reads: forms, escapes, order, buckets.
#include "kvlease/obs/metric_registry.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "kvlease/obs/scrape_testing.h"

namespace kvlease {
namespace {

TEST(MetricRegistry, TheTextIsTheFormatOfPrometheus) {
  MetricRegistry registry(MetricRegistry::CommonLabels{{"model_name", "m"}});
  MetricFamily& ended = registry.add(
      {"kvlease_leases_ended_total", "Leases that ended.", MetricType::kCounter, {"end"}, {}});
  MetricFamily& seconds =
      registry.add({"kvlease_read_seconds", "Reads.", MetricType::kHistogram, {}, {0.1, 1}});
  ended.add(2, {"expired"});
  ended.add(1, {"completed"});
  ended.add(1, {"expired"});
  for (const double value : {0.05, 0.1, 0.25, 3.0}) seconds.observe(value, {});
  EXPECT_EQ(registry.text(),
            "# HELP kvlease_leases_ended_total Leases that ended.\n"
            "# TYPE kvlease_leases_ended_total counter\n"
            "kvlease_leases_ended_total{model_name=\"m\",end=\"completed\"} 1\n"
            "kvlease_leases_ended_total{model_name=\"m\",end=\"expired\"} 3\n"
            "# HELP kvlease_read_seconds Reads.\n"
            "# TYPE kvlease_read_seconds histogram\n"
            "kvlease_read_seconds_count{model_name=\"m\"} 4\n"
            "kvlease_read_seconds_sum{model_name=\"m\"} 3.4\n"
            "kvlease_read_seconds_bucket{model_name=\"m\",le=\"0.1\"} 2\n"
            "kvlease_read_seconds_bucket{model_name=\"m\",le=\"1\"} 3\n"
            "kvlease_read_seconds_bucket{model_name=\"m\",le=\"+Inf\"} 4\n");
}

TEST(MetricRegistry, WhatIsDeclaredIsThereFromTheStart) {
  MetricRegistry registry({});
  registry.add({"n_total", "A count.", MetricType::kCounter, {}, {}});
  registry.add({"s", "Seconds.", MetricType::kHistogram, {"end"}, {1}}).declare({"expired"});
  registry.add({"up", "Whether.", MetricType::kGauge, {"url"}, {}});
  EXPECT_EQ(read_scrape(registry.text(), "").values,
            (std::map<std::string, double>{{"n_total", 0},
                                           {"s_count{end=\"expired\"}", 0},
                                           {"s_sum{end=\"expired\"}", 0},
                                           {"s_bucket{end=\"expired\",le=\"1\"}", 0},
                                           {"s_bucket{end=\"expired\",le=\"+Inf\"}", 0}}));
}

TEST(MetricRegistry, LabelValuesAreEscaped) {
  MetricRegistry registry(MetricRegistry::CommonLabels{{"model_name", "a\"b\\c\nd"}});
  registry.add({"up", "Whether.", MetricType::kGauge, {}, {}}).set(1, {});
  const Scrape scrape = read_scrape(registry.text(), R"(model_name="a\"b\\c\nd")");
  EXPECT_EQ(scrape.value("up"), 1);
}

TEST(MetricRegistry, LargeCountsAreExact) {
  MetricRegistry registry({});
  registry.add({"n_total", "A count.", MetricType::kCounter, {}, {}}).set(9007199254740991., {});
  EXPECT_NE(registry.text().find("9007199254740991"), std::string::npos) << registry.text();
}

TEST(MetricRegistry, MisuseIsABugOfOurs) {
  MetricRegistry registry({});
  MetricFamily& gauge = registry.add({"up", "Whether.", MetricType::kGauge, {"url"}, {}});
  EXPECT_DEATH(registry.add({"up", "Again.", MetricType::kGauge, {}, {}}), "added once");
  EXPECT_DEATH(registry.add({"n", "A count.", MetricType::kCounter, {}, {}}), "_total");
  EXPECT_DEATH(registry.add({"s", "Seconds.", MetricType::kHistogram, {}, {}}), "has buckets");
  EXPECT_DEATH(registry.add({"t", "", MetricType::kGauge, {}, {}}), "says what it is");
  EXPECT_DEATH(gauge.set(1, {}), "a value for each label");
  EXPECT_DEATH(gauge.observe(1, {"u"}), "only a histogram is observed");
}

}  // namespace
}  // namespace kvlease
