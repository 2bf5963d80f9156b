// Tests what a rank reports of its leases' waits: which signs count, and late ones once.
#include "kvlease/core/lease_waits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kvlease/core/lease_testing.h"

namespace kvlease {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Interval 1 s, extension 4 s.
const LeaseTimes kSixSeconds = {
    .duration = secs(6), .heartbeat_interval = secs(1), .extension = secs(4)};

class ObservedRank : public TestRank {
 public:
  using TestRank::TestRank;
  void grant(const std::string& id, std::uint32_t slot, Instant now) {
    LeaseGrant grant = order(id, slot, kSixSeconds);
    grant.observed = true;
    table.grant(grant, now);
  }
};

TEST(LeaseNeededTest, AWaitNeedsTheLeaseThatItWouldJustHaveBrokenBy) {
  const LeaseSilence first{.since = at(10), .first = true, .extension = secs(4)};
  EXPECT_EQ(lease_needed(first, at(10)), secs(0));
  EXPECT_EQ(lease_needed(first, at(17)), secs(7));
  const LeaseSilence later{.since = at(10), .first = false, .extension = secs(4)};
  EXPECT_EQ(lease_needed(later, at(11)), secs(0)) << "a heartbeat in time needs nothing";
  EXPECT_EQ(lease_needed(later, at(12)), secs(2));
  EXPECT_EQ(lease_needed(later, at(14)), secs(6)) << "the whole extension is the whole lease";
}

TEST(LeaseWaitsTest, TheFirstSignAndTardyOnesAreReported) {
  ObservedRank rank;
  rank.grant("a", 1, at(0));
  rank.renew({"a"}, at(0.5));
  rank.renew({"a"}, at(1.5));
  EXPECT_THAT(rank.table.take_waits(), ElementsAre(LeaseWait{secs(0.5), false}));
  rank.renew({"a"}, at(4.5));
  EXPECT_THAT(rank.table.take_waits(), ElementsAre(LeaseWait{secs(4), false}));
  rank.complete("a", 1, reader_agent("D", 0), at(5));
  EXPECT_THAT(rank.table.take_waits(), IsEmpty());
}

TEST(LeaseWaitsTest, AReportIsASign) {
  ObservedRank rank;
  rank.grant("a", 1, at(0));
  rank.complete("a", 2, reader_agent("D", 0), at(3));
  rank.complete("a", 2, reader_agent("D", 1), at(6.5));
  EXPECT_THAT(rank.table.take_waits(),
              ElementsAre(LeaseWait{secs(3), false}, LeaseWait{secs(5), false}));
}

TEST(LeaseWaitsTest, OnlyObservedLeasesAreReported) {
  TestRank rank;
  rank.grant("a", 1, kSixSeconds, at(0));
  rank.renew({"a"}, at(5));
  rank.sweep(at(20));
  rank.renew({"a"}, at(21));
  EXPECT_THAT(rank.table.take_waits(), IsEmpty());
  EXPECT_EQ(rank.count(Counter::kSignsLate), 0u);
}

// L5: the sign revives nothing, but says how long the lease would have had to be.
TEST(LeaseWaitsTest, ASignAfterTheExpiryIsReportedOnce) {
  ObservedRank rank;
  rank.grant("never renewed", 1, at(0));
  rank.grant("renewed once", 2, at(0));
  rank.renew({"renewed once"}, at(5));
  rank.table.take_waits();
  EXPECT_EQ(rank.sweep(at(9)).size(), 2u);
  EXPECT_THAT(rank.table.take_waits(), IsEmpty());
  rank.renew({"never renewed"}, at(11));
  rank.complete("renewed once", 1, reader_agent("D", 0), at(12));
  rank.renew({"never renewed", "renewed once", "unheard of"}, at(13));
  EXPECT_THAT(rank.table.take_waits(),
              ElementsAre(LeaseWait{secs(11), true}, LeaseWait{secs(12), true}));
  EXPECT_EQ(rank.count(Counter::kSignsLate), 2u);
  EXPECT_EQ(rank.table.live(), 0u);
}

// Its reader knows that it is over: what it says later is no proof that the lease was too short.
TEST(LeaseWaitsTest, AReleasedLeaseIsNotRemembered) {
  ObservedRank rank;
  rank.grant("a", 1, at(0));
  rank.table.end(LeaseId("a"), LeaseEnd::kReleased, at(1));
  rank.renew({"a"}, at(2));
  EXPECT_THAT(rank.table.take_waits(), IsEmpty());
}

TEST(LeaseWaitsTest, AnIdThatIsUsedAgainIsAnotherLease) {
  ObservedRank rank;
  rank.grant("a", 1, at(0));
  rank.sweep(at(6));
  rank.grant("a", 1, at(7));
  rank.renew({"a"}, at(8));
  EXPECT_THAT(rank.table.take_waits(), ElementsAre(LeaseWait{secs(1), false}));
  rank.sweep(at(20));
  rank.renew({"a"}, at(21));
  EXPECT_THAT(rank.table.take_waits(), ElementsAre(LeaseWait{secs(24), true}));
}

TEST(LeaseWaitsTest, MemoryIsBounded) {  // L43
  LeaseWaits waits(3);
  const LeaseSilence silence{.since = at(0), .first = true, .extension = secs(4)};
  for (const char* id : {"a", "b", "c", "d"}) waits.on_expired(LeaseId(id), silence);
  EXPECT_FALSE(waits.on_late_sign("a", at(9))) << "the oldest gave way";
  EXPECT_TRUE(waits.on_late_sign("b", at(9)));
  EXPECT_FALSE(waits.on_late_sign("b", at(9)));
  for (int i = 0; i < 9; ++i) waits.on_sign(silence, at(5));
  EXPECT_EQ(waits.take().size(), 3u);
  EXPECT_THAT(waits.take(), IsEmpty());
}

}  // namespace
}  // namespace kvlease
