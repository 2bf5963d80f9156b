// Tests that every enumerator which metrics, events and the wire spell out has a name of its own.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "kvlease/core/counters.h"
#include "kvlease/core/lease.h"

namespace kvlease {
namespace {

bool is_snake_case(std::string_view name) {
  return !name.empty() &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") == std::string_view::npos;
}

TEST(NamesTest, EveryCounterHasItsOwn) {
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < kCounterCount; ++i) {
    const std::string_view name = counter_name(static_cast<Counter>(i));
    EXPECT_TRUE(is_snake_case(name)) << name;
    EXPECT_TRUE(names.insert(name).second) << name << " names two counters";
  }
  EXPECT_EQ(counter_name(Counter::kHeartbeatUnknown), "heartbeat_unknown");
}

TEST(NamesTest, EveryLeaseEndHasItsOwnWorstLast) {  // L6
  std::vector<std::string_view> names;
  for (int i = 0; i < kLeaseEndCount; ++i) {
    names.push_back(lease_end_name(static_cast<LeaseEnd>(i)));
  }
  EXPECT_EQ(names, (std::vector<std::string_view>{"completed", "released", "recalled", "drained",
                                                  "expired"}));
}

TEST(CountersTest, MergeAdds) {
  Counters a;
  Counters b;
  a.add(Counter::kProbes);
  b.add(Counter::kProbes, 4);
  b.add(Counter::kFallbacks);
  a.merge(b);
  EXPECT_EQ(a.value(Counter::kProbes), 5u);
  EXPECT_EQ(a.value(Counter::kFallbacks), 1u);
  EXPECT_EQ(a.value(Counter::kReadsPosted), 0u);
}

}  // namespace
}  // namespace kvlease
