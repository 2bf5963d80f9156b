// docs/metrics.md lists what is scraped: the same families with the same types, and no others.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <regex>
#include <string>

#include "kvlease/obs/instance_metrics.h"
#include "kvlease/obs/route_metrics.h"
#include "kvlease/obs/scrape_testing.h"

namespace kvlease {
namespace {

TEST(MetricsDocument, ListsWhatIsScraped) {
  std::map<std::string, std::string> scraped =
      read_scrape(InstanceMetrics({.model_name = "m", .engine = "e"}).scrape({}), "").types;
  scraped.merge(read_scrape(RouteMetrics().scrape(), "").types);

  std::map<std::string, std::string> documented;
  std::ifstream document(KVL_SOURCE_DIR "/docs/metrics.md");
  static const std::regex row(R"(\| `([\w:]+)` \| (\w+) \|.*)");
  std::smatch match;
  for (std::string line; std::getline(document, line);) {
    if (std::regex_match(line, match, row)) documented[match[1]] = match[2];
  }
  EXPECT_EQ(documented, scraped);
}

}  // namespace
}  // namespace kvlease
