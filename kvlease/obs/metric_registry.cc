// Implements metric_registry.h, and is the only file that includes prometheus-cpp.
#include "kvlease/obs/metric_registry.h"

#include <prometheus/client_metric.h>
#include <prometheus/metric_family.h>
#include <prometheus/metric_type.h>
#include <prometheus/text_serializer.h>

#include <algorithm>

#include "kvlease/base/check.h"

namespace kvlease {
namespace {

prometheus::MetricType serialized_type(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return prometheus::MetricType::Counter;
    case MetricType::kGauge:
      return prometheus::MetricType::Gauge;
    case MetricType::kHistogram:
      return prometheus::MetricType::Histogram;
  }
  KVL_UNREACHABLE("a metric has a type");
}

prometheus::ClientMetric series(const MetricRegistry::CommonLabels& common,
                                const std::vector<std::string>& label_names,
                                const std::vector<std::string>& label_values) {
  prometheus::ClientMetric metric;
  for (const auto& [name, value] : common) metric.label.push_back({name, value});
  for (std::size_t i = 0; i < label_names.size(); ++i) {
    metric.label.push_back({label_names[i], label_values[i]});
  }
  return metric;
}

}  // namespace

MetricFamily::MetricFamily(MetricInfo info) : info_(std::move(info)) {}

MetricFamily::LabelValues MetricFamily::checked(Labels labels) const {
  KVL_CHECK(labels.size() == info_.label_names.size(), "a series has a value for each label");
  return {labels.begin(), labels.end()};
}

double& MetricFamily::number(Labels labels) {
  KVL_CHECK(info_.type != MetricType::kHistogram, "a histogram is observed, not added to or set");
  return values_[checked(labels)];
}

MetricFamily::Histogram& MetricFamily::histogram(Labels labels) {
  KVL_CHECK(info_.type == MetricType::kHistogram, "only a histogram is observed");
  Histogram& series = histograms_[checked(labels)];
  series.counts.resize(info_.buckets.size() + 1);
  return series;
}

void MetricFamily::declare(Labels labels) {
  if (info_.type == MetricType::kHistogram) {
    histogram(labels);
  } else {
    number(labels);
  }
}

void MetricFamily::add(double n, Labels labels) {
  KVL_CHECK(n >= 0, "a counter never falls");
  number(labels) += n;
}

void MetricFamily::set(double value, Labels labels) { number(labels) = value; }

void MetricFamily::observe(double value, Labels labels) {
  Histogram& series = histogram(labels);
  const auto bucket = std::ranges::lower_bound(info_.buckets, value);
  ++series.counts[static_cast<std::size_t>(bucket - info_.buckets.begin())];
  series.sum += value;
}

MetricRegistry::MetricRegistry(CommonLabels common) : common_(std::move(common)) {}

MetricFamily& MetricRegistry::add(MetricInfo info) {
  KVL_CHECK(std::ranges::none_of(families_,
                                 [&](const auto& known) { return known.info().name == info.name; }),
            "a family is added once");
  KVL_CHECK((info.type == MetricType::kCounter) == info.name.ends_with("_total"),
            "a counter's name, and no other's, ends in _total");
  KVL_CHECK((info.type == MetricType::kHistogram) == !info.buckets.empty(),
            "a histogram, and no other metric, has buckets");
  KVL_CHECK(!info.help.empty(), "a family says what it is");
  MetricFamily& family = families_.emplace_back(std::move(info));
  if (family.info().label_names.empty()) family.declare({});
  return family;
}

std::string MetricRegistry::text() const {
  std::vector<prometheus::MetricFamily> families;
  for (const MetricFamily& family : families_) {
    const MetricInfo& info = family.info();
    prometheus::MetricFamily out{
        .name = info.name, .help = info.help, .type = serialized_type(info.type), .metric = {}};
    for (const auto& [labels, value] : family.values_) {
      prometheus::ClientMetric& metric =
          out.metric.emplace_back(series(common_, info.label_names, labels));
      metric.counter.value = metric.gauge.value = value;
    }
    for (const auto& [labels, histogram] : family.histograms_) {
      prometheus::ClientMetric& metric =
          out.metric.emplace_back(series(common_, info.label_names, labels));
      for (std::size_t i = 0; i < info.buckets.size(); ++i) {
        metric.histogram.sample_count += histogram.counts[i];
        metric.histogram.bucket.push_back({metric.histogram.sample_count, info.buckets[i]});
      }
      metric.histogram.sample_count += histogram.counts.back();
      metric.histogram.sample_sum = histogram.sum;
    }
    families.push_back(std::move(out));
  }
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace kvlease
