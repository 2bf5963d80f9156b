// Reads Prometheus text format 0.0.4 strictly, so that tests can ask for values by name and a form
// that a scraper would refuse fails them.
#pragma once

#include <map>
#include <string>

namespace kvlease {

struct Scrape {
  std::map<std::string, double> values;      // by series, `name{label="value",…}` as in the text
  std::map<std::string, std::string> types;  // by family

  // Fails the test, and is NaN, when there is no such series.
  double value(const std::string& series) const;
};

// Fails the running test unless every sample follows the HELP and the TYPE of its family, each
// family and series comes once, counters (and no others) end in _total, no value is negative, and
// the buckets of a histogram rise up to its count.
// `common`: labels that every series must carry, as in the text, left out of `values`' keys.
Scrape read_scrape(const std::string& text, const std::string& common);

}  // namespace kvlease
