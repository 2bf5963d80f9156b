// Event names: one each, in the form that logs and traces expect.
#include "kvlease/core/event.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string_view>

namespace kvlease {
namespace {

TEST(EventTest, EveryKindHasItsOwnSnakeCaseName) {
  constexpr int kKindCount = static_cast<int>(EventKind::kQuiet) + 1;
  std::set<std::string_view> names;
  for (int kind = 0; kind < kKindCount; ++kind) {
    const std::string_view name = event_kind_name(static_cast<EventKind>(kind));
    EXPECT_FALSE(name.empty());
    EXPECT_TRUE(std::ranges::all_of(name, [](char c) {
      return c == '_' || (c >= 'a' && c <= 'z');
    })) << name;
    EXPECT_TRUE(names.insert(name).second) << name;
  }
}

}  // namespace
}  // namespace kvlease
