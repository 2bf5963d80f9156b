// Implements scrape_testing.h.
#include "kvlease/obs/scrape_testing.h"

#include <gtest/gtest.h>

#include <limits>
#include <regex>
#include <set>
#include <sstream>
#include <string_view>

#include "kvlease/base/text.h"

namespace kvlease {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

double parse_value(const std::string& text) {
  if (text == "+Inf") return std::numeric_limits<double>::infinity();
  return parse_number<double>(text).value_or(kNan);
}

// Removes `common` with the comma or the braces that it leaves over.
std::string without(const std::string& series, const std::string& common) {
  if (common.empty()) return series;
  const std::size_t at = series.find(common);
  EXPECT_NE(at, std::string::npos) << series << " lacks " << common;
  if (at == std::string::npos) return series;
  const std::string head = series.substr(0, at);
  const std::string tail = series.substr(at + common.size());
  if (tail.starts_with(",")) return head + tail.substr(1);
  return tail == "}" && head.ends_with("{") ? head.substr(0, head.size() - 1) : head + tail;
}

class Reader {
 public:
  explicit Reader(const std::string& common) : common_(common) {}

  void take(const std::string& line) {
    static const std::regex help(R"(# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) (\S.*))");
    static const std::regex type(R"(# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge|histogram))");
    static const std::regex sample(
        R"re(([a-zA-Z_:][a-zA-Z0-9_:]*))re"
        R"re((\{([a-zA-Z_][a-zA-Z0-9_]*="([^"\\]|\\[\\"n])*",?)+\})? (\S+))re");
    std::smatch match;
    if (std::regex_match(line, match, help)) {
      EXPECT_TRUE(helped_.insert(match[1]).second) << "twice: " << line;
    } else if (std::regex_match(line, match, type)) {
      family_ = match[1];
      EXPECT_TRUE(helped_.contains(family_)) << "no help: " << line;
      EXPECT_TRUE(scrape_.types.emplace(family_, match[2]).second) << "twice: " << line;
      EXPECT_EQ(match[2] == "counter", family_.ends_with("_total")) << line;
    } else if (std::regex_match(line, match, sample)) {
      take_sample(match[1], without(match[1].str() + match[2].str(), common_),
                  parse_value(match[5]));
    } else {
      ADD_FAILURE() << "neither a comment nor a sample: " << line;
    }
  }

  Scrape finish() const {
    EXPECT_EQ(bucket_count_, 0) << "a histogram without its count";
    return scrape_;
  }

 private:
  void take_sample(const std::string& name, const std::string& series, double value) {
    EXPECT_GE(value, 0) << series;
    EXPECT_TRUE(scrape_.values.emplace(series, value).second) << "twice: " << series;
    if (scrape_.types[family_] != "histogram") {
      EXPECT_EQ(name, family_);
    } else if (name == family_ + "_bucket") {
      EXPECT_GE(value, bucket_count_) << series;
      bucket_count_ = value;
    } else if (name == family_ + "_count") {
      count_ = value;
    } else {
      EXPECT_EQ(name, family_ + "_sum");
    }
    // The serializer writes count, sum, buckets.
    if (series.find(R"(le="+Inf")") != std::string::npos) {
      EXPECT_EQ(value, count_) << series;
      bucket_count_ = 0;
    }
  }

  std::string common_;
  std::string family_;
  std::set<std::string> helped_;
  double bucket_count_ = 0;
  double count_ = 0;
  Scrape scrape_;
};

}  // namespace

double Scrape::value(const std::string& series) const {
  const auto it = values.find(series);
  if (it != values.end()) return it->second;
  ADD_FAILURE() << "no series " << series;
  return kNan;
}

Scrape read_scrape(const std::string& text, const std::string& common) {
  EXPECT_TRUE(text.ends_with('\n')) << "the last line has no end";
  Reader reader(common);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) reader.take(line);
  return reader.finish();
}

}  // namespace kvlease
