// What the tests of this room's JSON share: editing a text, and expecting refusals.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "kvlease/base/result.h"

namespace kvlease {

// `text` with the first `from` replaced; it must be there.
inline std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string result(text);
  const std::size_t at = result.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? result : result.replace(at, from.size(), to);
}

struct Refusal {
  std::string json;
  std::string message;  // a part of it
};

// Expects that `parse` refuses every row's JSON as kInvalidArgument with the row's words.
template <typename Parse>
void expect_refused(Parse parse, const std::vector<Refusal>& rows) {
  for (const Refusal& row : rows) {
    const auto parsed = parse(row.json);
    ASSERT_FALSE(parsed.has_value()) << row.json;
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument) << row.json;
    EXPECT_THAT(parsed.error().message, testing::HasSubstr(row.message)) << row.json;
  }
}

}  // namespace kvlease
