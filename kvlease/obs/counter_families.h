// Under which names the counters of the protocol (core/counters.h) are scraped: each counter is one
// series, and counters that are answers to one question share a family.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "kvlease/core/counters.h"

namespace kvlease {

struct CounterFamily {
  struct Series {
    Counter counter;
    std::string_view label_value;  // empty when the family has no label
  };
  std::string_view name;
  std::string_view help;
  std::string_view label_name;  // may be empty
  std::vector<Series> series;
};

// Every counter stands in exactly one family.
std::span<const CounterFamily> counter_families();

}  // namespace kvlease
