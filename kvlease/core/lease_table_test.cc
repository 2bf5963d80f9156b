// Tests the lease table of one rank with literal times: every transition, the reader groups, early
// completions, limits, and the work of a sweep by count.
#include "kvlease/core/lease_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kvlease/core/lease_testing.h"

namespace kvlease {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const AgentName kReader = reader_agent("dec", 0);

TEST(LeaseTableTest, LivesToItsDeadlineAndNoLonger) {  // L1, L3
  TestRank rank;
  rank.grant("a", 1, kThirtySeconds, at(2));
  EXPECT_EQ(rank.table.expires_at(LeaseId{"a"}), at(32));
  EXPECT_THAT(rank.sweep(at(32) - Duration{1}), IsEmpty());
  const std::vector<LeaseEnded> ended = rank.sweep(at(32));
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0], (LeaseEnded{.id = LeaseId{"a"},
                                  .end = LeaseEnd::kExpired,
                                  .held = secs(30),
                                  .left = secs(0),
                                  .silent = secs(30)}));
  EXPECT_EQ(rank.table.live(), 0u);
  EXPECT_EQ(rank.table.expires_at(LeaseId{"a"}), std::nullopt);
  EXPECT_THAT(rank.sweep(at(100)), IsEmpty());  // L6: reported once
}

TEST(LeaseTableTest, ARenewalNeverShortens) {  // L2
  TestRank rank;
  rank.grant("a", 1, kThirtySeconds, at(0));
  rank.renew({"a"}, at(5));
  EXPECT_EQ(rank.table.expires_at(LeaseId{"a"}), at(30));
  rank.renew({"a"}, at(15));
  EXPECT_EQ(rank.table.expires_at(LeaseId{"a"}), at(35));
  rank.renew({"a"}, at(12));
  EXPECT_EQ(rank.table.expires_at(LeaseId{"a"}), at(35));
}

TEST(LeaseTableTest, EachLeaseIsRenewedByItsOwnExtension) {  // L14
  TestRank rank;
  rank.grant("a", 1, kThirtySeconds, at(0));
  rank.grant("b", 2, {.duration = secs(480), .extension = secs(320)}, at(0));
  rank.renew({"a", "b"}, at(200));
  EXPECT_EQ(rank.table.expires_at(LeaseId{"a"}), at(220));  // not swept yet: the message wins (L9)
  EXPECT_EQ(rank.table.expires_at(LeaseId{"b"}), at(520));
}

// L2, L3: an end says how much time was left, and since when nobody had asked for the lease; a
// renewal that does not move the deadline is a sign of life, too, and so is a completion.
TEST(LeaseTableTest, AnEndSaysWhatWasLeftAndSinceWhenItWasSilent) {
  TestRank rank;
  const LeaseTimes forever{.duration = kForever, .extension = secs(20)};
  for (const auto& [id, slot] : {std::pair{"a", 1}, {"b", 2}, {"d", 4}, {"e", 5}}) {
    rank.grant(id, static_cast<std::uint32_t>(slot), kThirtySeconds, at(0));
  }
  rank.grant("c", 3, forever, at(0));
  rank.renew({"a", "b", "d"}, at(4));
  rank.complete("a", 1, kReader, at(7));
  rank.complete("c", 1, kReader, at(8));
  rank.complete("b", 1, kReader, at(31));  // due, and not swept yet: the message wins (L9)
  rank.table.sweep(at(31));
  const std::vector<LeaseEnded> ended = rank.table.take_ended();
  ASSERT_EQ(ended.size(), 5u);
  EXPECT_EQ(ended[0].left, secs(23));
  EXPECT_EQ(ended[1].left, kForever);
  EXPECT_EQ(ended[2].left, secs(0));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ended[static_cast<std::size_t>(i)].silent, secs(0));
  EXPECT_EQ(ended[3].left, secs(0));
  EXPECT_EQ(ended[3].silent + ended[4].silent, secs(27) + secs(31));  // "d" and "e", in any order
}

TEST(LeaseTableTest, RenewalsAreCountedInTheEntry) {  // L22
  TestRank rank;
  rank.grant("a", 3, kThirtySeconds, at(0));
  rank.renew({"a"}, at(1));  // the deadline does not move, the count does
  rank.renew({"a"}, at(2));
  EXPECT_EQ(rank.entries.renewals(SlotId{3}), 2u);
  EXPECT_EQ(rank.count(Counter::kHeartbeatsReceived), 2u);
  EXPECT_EQ(rank.count(Counter::kLeasesRenewed), 2u);
  rank.table.end(LeaseId{"a"}, LeaseEnd::kReleased, at(3));
  rank.grant("b", 3, kThirtySeconds, at(4));
  EXPECT_EQ(rank.entries.renewals(SlotId{3}), 0u);
}

TEST(LeaseTableTest, TellsWhoReadsALease) {  // L48
  TestRank rank;
  const auto reader = [&](const char* id) { return rank.table.status(LeaseId{id})->reader; };
  rank.grant("a", 1, kThirtySeconds, at(0));
  rank.grant("b", 2, kThirtySeconds, at(0));
  EXPECT_EQ(rank.table.status(LeaseId{"a"}), (LeaseStatus{.expires_at = at(30), .reader = ""}));
  rank.table.renew(std::vector<std::string_view>{"a"}, kReader, at(20));
  EXPECT_EQ(rank.table.status(LeaseId{"a"}), (LeaseStatus{.expires_at = at(40), .reader = "dec"}));
  EXPECT_EQ(reader("b"), "");
  rank.renew({"a", "b"}, at(21));  // by HTTP: nobody's
  EXPECT_EQ(reader("a"), "dec");
  EXPECT_EQ(reader("b"), "");
  rank.complete("b", 2, AgentName("some-uuid"), at(22));  // one of two, with a foreign name (L28)
  EXPECT_EQ(reader("b"), "some-uuid");
  rank.table.renew(std::vector<std::string_view>{"b"}, reader_agent("other", 3), at(23));
  EXPECT_EQ(reader("b"), "other");
  rank.complete("a", 1, kReader, at(24));
  EXPECT_EQ(rank.table.status(LeaseId{"a"}), std::nullopt);
  rank.grant("a2", 1, kThirtySeconds, at(25));  // the record's next use
  EXPECT_EQ(reader("a2"), "");
}

TEST(LeaseTableTest, OfReadersWithoutEndTheOldestNamesGiveWay) {  // L43
  TestRank rank;
  rank.grant("a", 1, kThirtySeconds, at(0));
  rank.grant("b", 2, kThirtySeconds, at(0));
  const std::vector<std::string_view> a{"a"};
  rank.table.renew(a, reader_agent("first", 0), at(1));
  for (int i = 1; i < 1024; ++i) {
    rank.table.renew(std::vector<std::string_view>{"b"}, reader_agent(std::to_string(i), 0), at(1));
  }
  EXPECT_EQ(rank.table.status(LeaseId{"a"})->reader, "first");
  rank.table.renew(std::vector<std::string_view>{"b"}, reader_agent("one more", 0), at(1));
  EXPECT_EQ(rank.table.status(LeaseId{"a"})->reader, "");
  EXPECT_EQ(rank.table.status(LeaseId{"b"})->reader, "one more");
  rank.table.renew(a, reader_agent("first", 0), at(2));
  EXPECT_EQ(rank.table.status(LeaseId{"a"})->reader, "first");
}

TEST(LeaseTableTest, OnlyAGrantCreatesALease) {  // L5
  TestRank rank;
  rank.renew({"x", "y"}, at(0));
  rank.complete("x", 1, kReader, at(0));
  rank.table.end(LeaseId{"x"}, LeaseEnd::kReleased, at(0));
  rank.table.admit(LeaseId{"b"});
  rank.renew({"b"}, at(0));  // in batch is not live
  EXPECT_EQ(rank.table.live(), 0u);
  EXPECT_EQ(rank.table.in_batch(), 1u);
  EXPECT_EQ(rank.count(Counter::kHeartbeatUnknown), 2u);
  EXPECT_EQ(rank.count(Counter::kHeartbeatEarly), 1u);
  EXPECT_EQ(rank.count(Counter::kCompletionUnknown), 1u);
  EXPECT_THAT(rank.sweep(at(100)), IsEmpty());
  EXPECT_EQ(rank.table.next_deadline(), kNever);
}

TEST(LeaseTableTest, AHeartbeatAfterTheEndIsCountedByCause) {  // L5
  TestRank rank;
  for (const auto& [id, slot] : {std::pair{"read", 1}, {"cut", 2}, {"dead", 3}, {"again", 4}}) {
    rank.grant(id, static_cast<std::uint32_t>(slot), kThirtySeconds, at(0));
  }
  rank.complete("read", 1, kReader, at(1));
  rank.table.end(LeaseId{"cut"}, LeaseEnd::kDrained, at(2));
  rank.table.end(LeaseId{"again"}, LeaseEnd::kReleased, at(2));
  rank.sweep(at(30));
  rank.grant("again", 4, kThirtySeconds, at(30));  // as tests may; what is live is renewed
  rank.renew({"read", "cut", "dead", "again", "nobody"}, at(31));
  EXPECT_EQ(rank.count(Counter::kHeartbeatEnded), 2u);
  EXPECT_EQ(rank.count(Counter::kHeartbeatExpired), 1u);
  EXPECT_EQ(rank.count(Counter::kHeartbeatUnknown), 1u);
  EXPECT_EQ(rank.count(Counter::kLeasesRenewed), 1u);
  EXPECT_EQ(rank.sweep(at(60)).size(), 1u);
  rank.renew({"again"}, at(60));  // the last end counts
  EXPECT_EQ(rank.count(Counter::kHeartbeatExpired), 2u);
}

TEST(LeaseTableTest, EveryEndFencesItsSlotOnce) {  // L23
  TestRank rank;
  for (std::uint32_t slot = 1; slot <= 4; ++slot) {
    rank.grant("r" + std::to_string(slot), slot, kThirtySeconds, at(0));
  }
  EXPECT_EQ(rank.entries.word(SlotId{1}), kTestWord);  // L22: nothing is published at the grant
  rank.complete("r1", 1, kReader, at(1));
  rank.table.end(LeaseId{"r2"}, LeaseEnd::kReleased, at(2));
  rank.table.end(LeaseId{"r3"}, LeaseEnd::kDrained, at(3));
  rank.table.end(LeaseId{"r3"}, LeaseEnd::kRecalled, at(4));  // has ended already
  rank.table.sweep(at(30));
  for (std::uint32_t slot = 1; slot <= 4; ++slot) {
    EXPECT_EQ(rank.entries.word(SlotId{slot}), kTestWord + 1) << slot;
  }
  const std::vector<LeaseEnded> ended = rank.table.take_ended();
  EXPECT_THAT(ids_of(ended), ElementsAre("r1", "r2", "r3", "r4"));
  EXPECT_EQ(ended[0].end, LeaseEnd::kCompleted);
  EXPECT_EQ(ended[1].end, LeaseEnd::kReleased);
  EXPECT_EQ(ended[2].end, LeaseEnd::kDrained);
  EXPECT_EQ(ended[2].held, secs(3));
  EXPECT_EQ(ended[3].end, LeaseEnd::kExpired);
}

TEST(LeaseTableTest, AWordThatDiffersEndsTheCopyAndLeavesTheEntry) {  // L23
  TestRank rank;
  rank.table.admit(LeaseId{"a"});
  rank.complete("a", 1, kReader, at(0));
  rank.table.grant({.id = LeaseId{"a"},
                    .slot = SlotId{1},
                    .word = kTestWord + 1,
                    .remaining = secs(30),
                    .extension = secs(20)},
                   at(0));
  const std::vector<LeaseEnded> ended = rank.table.take_ended();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].end, LeaseEnd::kRecalled);
  EXPECT_TRUE(ended[0].slot_mismatch);
  // One more step would have made it the granted word.
  EXPECT_EQ(rank.entries.word(SlotId{1}), kTestWord);
  EXPECT_EQ(rank.count(Counter::kSlotMismatch), 1u);
  EXPECT_EQ(rank.count(Counter::kCompletionUnknown), 1u);  // the early one came for nothing
  EXPECT_EQ(rank.table.live(), 0u);
  EXPECT_EQ(rank.table.in_batch(), 0u);
}

TEST(LeaseTableTest, ADeadReaderAndItsSuccessorAreNeverAddedUp) {  // L7
  TestRank rank;
  rank.grant("a", 1, kThirtySeconds, at(0));
  rank.complete("a", 2, reader_agent("dec", 0, /*incarnation=*/1), at(1));
  rank.complete("a", 2, reader_agent("dec", 1, /*incarnation=*/2), at(2));  // restarted
  rank.complete("a", 2, reader_agent("other", 1, /*incarnation=*/1), at(3));
  EXPECT_THAT(rank.table.take_ended(), IsEmpty());
  EXPECT_EQ(rank.count(Counter::kCompletionsReceived), 3u);
  rank.complete("a", 2, reader_agent("dec", 0, /*incarnation=*/2), at(4));
  const std::vector<LeaseEnded> ended = rank.table.take_ended();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].end, LeaseEnd::kCompleted);
  EXPECT_EQ(ended[0].readers_done, 2u);
  EXPECT_EQ(ended[0].readers_expected, 2u);
}

TEST(LeaseTableTest, AHeartbeatThatNamesAHoldIsCountedAndChangesNothing) {  // L39
  TestRank rank;
  LeaseGrant hold = rank.order("hold", 1, kThirtySeconds);
  hold.extension = Duration::zero();
  rank.table.grant(hold, at(0));
  rank.renew({"hold", "nobody"}, at(29));
  EXPECT_EQ(rank.count(Counter::kHeartbeatHold), 1u);
  EXPECT_EQ(rank.count(Counter::kHeartbeatUnknown), 1u);
  EXPECT_EQ(rank.count(Counter::kLeasesRenewed), 0u);
  EXPECT_EQ(rank.memory[1].renewals, 0u);
  EXPECT_THAT(ids_of(rank.sweep(at(30))), ElementsAre("hold"));
}

TEST(LeaseTableTest, ARemadeAgentIsTheSameRank) {  // L7, L21
  TestRank rank;
  rank.grant("a", 1, kThirtySeconds, at(0));
  rank.complete("a", 2, reader_agent("dec", 0, 1, /*agent_number=*/0), at(1));
  rank.complete("a", 2, reader_agent("dec", 0, 1, /*agent_number=*/1), at(2));
  EXPECT_EQ(rank.count(Counter::kCompletionDuplicate), 1u);
  EXPECT_EQ(rank.table.live(), 1u);
}

TEST(LeaseTableTest, TheFirstCountOfAGroupStands) {  // L7
  TestRank rank;
  rank.grant("a", 1, kThirtySeconds, at(0));
  rank.complete("a", 3, reader_agent("dec", 0), at(1));
  rank.complete("a", 1, reader_agent("dec", 1), at(1));
  EXPECT_EQ(rank.table.live(), 1u);
  EXPECT_EQ(rank.count(Counter::kCompletionMismatch), 1u);
  EXPECT_EQ(rank.count(Counter::kCompletionsReceived), 1u);
  const std::vector<LeaseEnded> ended = rank.sweep(at(30));
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].readers_done, 1u);
  EXPECT_EQ(ended[0].readers_expected, 3u);
}

TEST(LeaseTableTest, NamesOfAnotherFormMakeUpOneGroup) {  // L7
  TestRank rank;
  rank.grant("a", 1, kThirtySeconds, at(0));
  const AgentName first{"4f1d2c9e-6a35"};
  const AgentName second{"b72e0f11-93aa"};
  rank.complete("a", 2, first, at(1));
  rank.complete("a", 2, first, at(1));
  EXPECT_EQ(rank.count(Counter::kCompletionDuplicate), 1u);
  rank.complete("a", 2, second, at(2));
  EXPECT_EQ(rank.table.live(), 0u);
}

TEST(LeaseTableTest, TheOldestGroupGivesWay) {  // L7, L43
  TestRank rank({.reader_groups_max = 2});
  rank.grant("a", 1, kThirtySeconds, at(0));
  rank.complete("a", 2, reader_agent("dec", 0, 1), at(1));
  rank.complete("a", 2, reader_agent("dec", 0, 2), at(2));
  rank.complete("a", 2, reader_agent("dec", 0, 3), at(3));  // the group of incarnation 1 goes
  rank.complete("a", 2, reader_agent("dec", 1, 1), at(4));  // starts anew, that of 2 goes
  EXPECT_EQ(rank.table.live(), 1u);
  rank.complete("a", 2, reader_agent("dec", 1, 3), at(5));
  EXPECT_EQ(rank.table.live(), 0u);
}

TEST(LeaseTableTest, AnEarlyCompletionIsAppliedAtTheGrant) {  // L8
  TestRank rank;
  rank.table.admit(LeaseId{"a"});
  rank.complete("a", 1, kReader, at(1));
  rank.complete("a", 1, kReader, at(2));
  EXPECT_EQ(rank.count(Counter::kCompletionEarly), 2u);
  EXPECT_EQ(rank.count(Counter::kCompletionsReceived), 0u);
  rank.grant("a", 1, kThirtySeconds, at(3));
  const std::vector<LeaseEnded> ended = rank.table.take_ended();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].end, LeaseEnd::kCompleted);
  EXPECT_EQ(ended[0].held, secs(0));
  EXPECT_EQ(rank.count(Counter::kCompletionsReceived), 1u);
  EXPECT_EQ(rank.count(Counter::kCompletionUnknown), 1u);  // the second came after the end
  EXPECT_EQ(rank.table.in_batch(), 0u);
  EXPECT_EQ(rank.table.next_deadline(), at(33));  // stale, raised by the sweep at it
  rank.table.sweep(at(61));
  EXPECT_EQ(rank.table.next_deadline(), kNever);
}

TEST(LeaseTableTest, EarlyCompletionsAreDroppedAfterTheirTime) {  // L8
  TestRank rank;
  rank.table.admit(LeaseId{"a"});
  rank.table.admit(LeaseId{"b"});
  rank.complete("a", 2, reader_agent("dec", 0), at(1));
  rank.complete("a", 2, reader_agent("dec", 1), at(11));
  rank.complete("b", 1, kReader, at(20));
  EXPECT_EQ(rank.table.next_deadline(), at(61));
  rank.table.sweep(at(61));
  EXPECT_EQ(rank.count(Counter::kCompletionEarlyDropped), 1u);
  EXPECT_EQ(rank.table.next_deadline(), at(71));
  rank.grant("a", 1, kThirtySeconds, at(70));
  EXPECT_EQ(rank.table.live(), 1u);            // only one of the two readers is left
  rank.grant("b", 2, kThirtySeconds, at(80));  // due in this very step, not swept yet
  EXPECT_EQ(rank.table.live(), 2u);
  EXPECT_EQ(rank.count(Counter::kCompletionEarlyDropped), 2u);
}

TEST(LeaseTableTest, EarlyCompletionsAreBounded) {  // L8, L43
  TestRank rank({.early_completions_max = 3});
  rank.table.admit(LeaseId{"a"});
  rank.table.admit(LeaseId{"b"});
  for (int i = 0; i < 2; ++i) rank.complete("a", 9, kReader, at(1));
  for (int i = 0; i < 2; ++i) rank.complete("b", 9, kReader, at(1));
  EXPECT_EQ(rank.count(Counter::kCompletionEarly), 3u);
  EXPECT_EQ(rank.count(Counter::kCompletionEarlyDropped), 1u);
  rank.table.forget(LeaseId{"a"});  // gives its two places back
  EXPECT_EQ(rank.count(Counter::kCompletionEarlyDropped), 3u);
  for (int i = 0; i < 3; ++i) rank.complete("b", 9, kReader, at(1));
  EXPECT_EQ(rank.count(Counter::kCompletionEarly), 5u);
  EXPECT_EQ(rank.count(Counter::kCompletionEarlyDropped), 4u);
}

TEST(LeaseTableTest, AForgottenRequestIsGone) {  // L34
  TestRank rank;
  rank.table.admit(LeaseId{"a"});
  rank.table.forget(LeaseId{"a"});
  rank.table.forget(LeaseId{"a"});
  EXPECT_EQ(rank.table.in_batch(), 0u);
  rank.complete("a", 1, kReader, at(1));
  EXPECT_EQ(rank.count(Counter::kCompletionUnknown), 1u);
}

TEST(LeaseTableTest, ALeaseIsNeverRenewedBeyondItsLongestHold) {  // L48
  TestRank rank;
  LeaseGrant grant = rank.order("a", 1, kThirtySeconds);
  grant.lifetime_max = secs(45);
  rank.table.grant(grant, at(10));
  rank.renew({"a"}, at(30));
  EXPECT_EQ(rank.table.expires_at(LeaseId{"a"}), at(50));
  rank.renew({"a"}, at(49));
  EXPECT_EQ(rank.table.expires_at(LeaseId{"a"}), at(55));
  EXPECT_THAT(ids_of(rank.sweep(at(55))), ElementsAre("a"));
}

// A loop that wakes at next_deadline() wakes finitely often: after a sweep the next one lies ahead.
TEST(LeaseTableTest, AStaleBoundIsRaisedByOneSweep) {
  TestRank rank;
  rank.grant("a", 1, kThirtySeconds, at(0));
  rank.renew({"a"}, at(25));
  EXPECT_EQ(rank.table.next_deadline(), at(30));
  EXPECT_THAT(rank.sweep(at(30)), IsEmpty());
  EXPECT_EQ(rank.table.next_deadline(), at(45));
  EXPECT_THAT(ids_of(rank.sweep(at(45))), ElementsAre("a"));
  EXPECT_EQ(rank.table.next_deadline(), kNever);
}

TEST(LeaseTableTest, LeasesThatFallDueTogetherAreReportedInOneFixedOrder) {
  std::vector<std::string> granted;
  TestRank rank({}, /*slots=*/300);
  for (std::uint32_t slot = 1; slot < 300; ++slot) {
    granted.push_back("id-" + std::to_string(slot * 7919 % 1000));
    rank.grant(granted.back(), slot, kThirtySeconds, at(0));
  }
  EXPECT_EQ(ids_of(rank.sweep(at(30))), granted);
}

// F15 by count instead of by time: a sweep with nothing due looks at nothing, whatever is live; one
// with everything due looks at each block of 32 once.
TEST(LeaseTableTest, AnIdleSweepTouchesNothing) {
  for (const std::uint32_t leases : {0u, 1'000u, 10'000u}) {
    TestRank rank({}, leases + 2);
    for (std::uint32_t slot = 1; slot <= leases; ++slot) {
      rank.grant(std::to_string(slot), slot, kThirtySeconds, at(0));
    }
    for (int step = 0; step < 1'000; ++step) rank.table.sweep(at(0.02 * step));
    EXPECT_EQ(rank.table.records_scanned(), 0u) << leases;
    EXPECT_EQ(rank.sweep(at(30)).size(), leases);
    EXPECT_EQ(rank.table.records_scanned(), (leases + 31) / 32 * 32);
  }
}

// One lease that falls due among many makes the sweep look at its own block only.
TEST(LeaseTableTest, ASweepLooksOnlyAtBlocksThatAreDue) {
  constexpr std::uint32_t kLeases = 10'000;
  TestRank rank({}, kLeases + 2);
  for (std::uint32_t slot = 1; slot <= kLeases; ++slot) {
    rank.grant(std::to_string(slot), slot,
               {.duration = slot == 5'000 ? secs(1) : secs(480), .extension = secs(320)}, at(0));
  }
  EXPECT_THAT(ids_of(rank.sweep(at(1))), ElementsAre("5000"));
  EXPECT_EQ(rank.table.records_scanned(), 32u);
}

TEST(LeaseTableDeathTest, OurBugsAreCaught) {
  TestRank rank;
  rank.grant("a", 1, kThirtySeconds, at(0));
  EXPECT_DEATH(rank.table.admit(LeaseId{"a"}), "neither in batch nor live");
  EXPECT_DEATH(rank.grant("a", 2, kThirtySeconds, at(0)), "granted once");
  EXPECT_DEATH(rank.table.forget(LeaseId{"a"}), "not forgotten");
  EXPECT_DEATH(rank.grant("b", 64, kThirtySeconds, at(0)), "lies in the table");
}

}  // namespace
}  // namespace kvlease
