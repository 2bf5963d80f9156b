// The two forms of a log line, the level, and that no message can forge a line.
#include "kvlease/runtime/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace kvlease {
namespace {

using testing::MatchesRegex;

std::string logged(LogOptions options, const std::function<void(const Logger&)>& write) {
  testing::internal::CaptureStderr();
  write(Log(options).component("engine"));
  return testing::internal::GetCapturedStderr();
}

TEST(Log, WritesTimeLevelComponentMessage) {
  EXPECT_THAT(logged({}, [](const Logger& log) { log.info("ready on port 8100"); }),
              MatchesRegex("....-..-..T..:..:......[+-]..:.. info engine ready on port 8100\n"));
}

TEST(Log, DropsWhatIsBelowItsLevel) {
  const auto write_all = [](const Logger& log) {
    log.debug("a");
    log.info("b");
    log.warning("c");
    log.error("d");
  };
  EXPECT_THAT(logged({.level = LogLevel::kWarning}, write_all),
              MatchesRegex(".* warning engine c\n.* error engine d\n"));
  EXPECT_THAT(logged({.level = LogLevel::kDebug}, write_all),
              MatchesRegex(".* debug engine a\n.* info engine b\n.*c\n.*d\n"));
}

TEST(Log, WritesJsonLines) {
  EXPECT_THAT(logged({.json_lines = true}, [](const Logger& log) { log.error("a \"b\" \\ %v"); }),
              MatchesRegex(R"(\{"time":"[^"]+","level":"error","component":"engine",)"
                           R"("message":"a \\u0022b\\u0022 \\u005c %v"\})"
                           "\n"));
}

TEST(Log, AMessageIsOneLine) {
  for (const bool json : {false, true}) {
    const std::string line = logged({.json_lines = json}, [](const Logger& log) {
      log.info("from a peer\n2026-01-01T00:00:00.000+00:00 error engine forged \x1b[2J {}");
    });
    EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1) << line;
    EXPECT_NE(line.find("peer\\u000a2026"), std::string::npos) << line;
    EXPECT_NE(line.find("\\u001b[2J {}"), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace kvlease
