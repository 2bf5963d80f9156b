// What is remembered of ends, and what gives way (L5, L43).
#include "kvlease/core/recent_ends.h"

#include <gtest/gtest.h>

#include <string>

#include "kvlease/core/lease_index.h"

namespace kvlease {
namespace {

TEST(RecentEndsTest, RemembersTheLastEndOfAPlace) {
  RecentEnds ends;
  EXPECT_EQ(ends.find(0), std::nullopt);
  constexpr std::uint64_t kHash = 0x1234'5678'9abc'def0;
  EXPECT_EQ(ends.find(kHash), std::nullopt);
  for (int end = 0; end < kLeaseEndCount; ++end) {
    ends.add(kHash, static_cast<LeaseEnd>(end));
    EXPECT_EQ(ends.find(kHash), static_cast<LeaseEnd>(end));
  }
  constexpr std::uint64_t kNeighbour = kHash ^ 0x100;  // of the same place
  EXPECT_EQ(ends.find(kNeighbour), std::nullopt);
  ends.add(kNeighbour, LeaseEnd::kCompleted);
  EXPECT_EQ(ends.find(kNeighbour), LeaseEnd::kCompleted);
  EXPECT_EQ(ends.find(kHash), std::nullopt);
}

TEST(RecentEndsTest, RemembersMostOfTheLastThousandEnds) {
  RecentEnds ends;
  const auto hash = [](int i) { return LeaseIndex::hash("cmpl-" + std::to_string(i)); };
  for (int i = 0; i < 100'000; ++i) ends.add(hash(i), LeaseEnd::kExpired);
  int remembered = 0;
  for (int i = 99'000; i < 100'000; ++i) remembered += ends.find(hash(i)) ? 1 : 0;
  EXPECT_GT(remembered, 900);
  int made_up = 0;
  for (int i = 100'000; i < 200'000; ++i) made_up += ends.find(hash(i)) ? 1 : 0;
  EXPECT_EQ(made_up, 0);
}

}  // namespace
}  // namespace kvlease
