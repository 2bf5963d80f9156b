// Families of numbers and their text for Prometheus: what both sets of metrics (instance, route)
// are made of. Values live here, in order of their labels; prometheus-cpp writes the text. Nothing
// here takes a lock or reads a clock: the loop thread counts, and the same thread answers a scrape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvlease {

enum class MetricType : std::uint8_t { kCounter, kGauge, kHistogram };

struct MetricInfo {
  std::string name;  // as scraped: counters end in _total
  std::string help;
  MetricType type = MetricType::kGauge;
  std::vector<std::string> label_names;  // besides the registry's
  std::vector<double> buckets;           // of a histogram: upper bounds, ascending, without +Inf
};

// One family. `labels` are the values of its label names, in that order: as many, and from a set
// that our code or our user's configuration bounds (L43), never text of a peer.
class MetricFamily {
 public:
  using Labels = std::initializer_list<std::string_view>;

  explicit MetricFamily(MetricInfo info);

  // The series is scraped as 0 (or empty) until something happens: a rate over a series that begins
  // later misses what began it. A family without labels is declared when it is added.
  void declare(Labels labels);
  // Counter. Requires: n >= 0.
  void add(double n, Labels labels);
  // Gauge; or a counter that is counted elsewhere and never falls.
  void set(double value, Labels labels);
  // Histogram. Counts `value` in the first bucket whose upper bound is not below it.
  void observe(double value, Labels labels);

  const MetricInfo& info() const { return info_; }

 private:
  friend class MetricRegistry;
  struct Histogram {
    std::vector<std::uint64_t> counts;  // by bucket, the last for what is above all bounds
    double sum = 0;
  };
  using LabelValues = std::vector<std::string>;

  double& number(Labels labels);
  Histogram& histogram(Labels labels);
  LabelValues checked(Labels labels) const;

  MetricInfo info_;
  std::map<LabelValues, double> values_;
  std::map<LabelValues, Histogram> histograms_;
};

class MetricRegistry {
 public:
  // Labels that every series carries.
  using CommonLabels = std::vector<std::pair<std::string, std::string>>;
  explicit MetricRegistry(CommonLabels common);
  MetricRegistry(const MetricRegistry&) = delete;
  MetricRegistry& operator=(const MetricRegistry&) = delete;

  // The family lives as long as the registry. Requires: a name that is new; a counter's name, and
  // no other's, ends in _total; a help text; buckets for a histogram, and only for one.
  MetricFamily& add(MetricInfo info);

  // Prometheus text format 0.0.4, families in order of their adding, series in order of their
  // labels.
  std::string text() const;

 private:
  CommonLabels common_;
  std::deque<MetricFamily> families_;
};

}  // namespace kvlease
