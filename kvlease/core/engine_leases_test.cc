// Tests the leases of one engine: ids, slots, the merge of the ranks' ends, orders, and the ledger.
#include "kvlease/core/engine_leases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "kvlease/core/lease_entries.h"
#include "kvlease/core/lease_testing.h"

namespace kvlease {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;

const std::vector<BlockId> kTwoBlocks{BlockId{4}, BlockId{9}};

EngineLeasesOptions options(std::uint32_t tp, std::uint32_t slots) {
  return {.tp = tp, .slots = slots, .word_high = kTestWordHigh, .id_seed = 1};
}

LeaseId grant_one(EngineLeases& leases, Instant now) {
  const LeaseId id = leases.reserve("job").value().id;
  leases.grant(id, kTwoBlocks, kThirtySeconds, now);
  return id;
}

std::uint64_t ended(const EngineLeases& leases, LeaseEnd end) {
  return leases.ledger().ended[static_cast<std::size_t>(end)];
}

TEST(EngineLeasesTest, GrantNamesWhatWasReserved) {  // L1, L22, L46
  EngineLeases leases(options(1, 8));
  const LeaseReservation reserved = leases.reserve("job-1").value();
  EXPECT_THAT(reserved.id.str(), MatchesRegex("job-1-[0-9a-f]{8}"));
  EXPECT_EQ(reserved.slot, kFirstLeaseSlot);
  EXPECT_EQ(reserved.word, kTestWord);
  EXPECT_FALSE(leases.is_live(reserved.id));
  EXPECT_EQ(leases.grant(reserved.id, kTwoBlocks, kThirtySeconds, at(7)),
            (LeaseGrant{.id = reserved.id,
                        .slot = reserved.slot,
                        .word = kTestWord,
                        .remaining = secs(30),
                        .extension = secs(20)}));
  EXPECT_TRUE(leases.is_live(reserved.id));
  EXPECT_EQ(leases.live_leases().at(reserved.id).blocks, kTwoBlocks);
  EXPECT_EQ(leases.oldest_grant(), at(7));
  EXPECT_EQ(leases.ledger().live_blocks, 2u);
}

// C10: an id holds neither the heartbeat's prefix nor the separators of a notification.
TEST(EngineLeasesTest, C10_IdsArePlain) {  // L45
  EngineLeases leases(options(1, 8));
  EXPECT_THAT(leases.reserve("HB:a,b").value().id.str(), MatchesRegex("HB_a_b-[0-9a-f]{8}"));
  EXPECT_THAT(leases.reserve(std::string_view("\xbb\xff\0\n/", 5)).value().id.str(),
              MatchesRegex("_____-[0-9a-f]{8}"));
  EXPECT_THAT(leases.reserve("a:b:2").value().id.str(), MatchesRegex("a_b_2-[0-9a-f]{8}"));
  EXPECT_THAT(leases.reserve("").value().id.str(), MatchesRegex("-[0-9a-f]{8}"));
  EXPECT_EQ(leases.reserve(std::string(500, 'x')).value().id.str().size(), 128u + 1 + 8);
}

// C05, L45: a grant never fails on an id. Among 65,535 random suffixes of 32 bits some meet by the
// birthday rule; those are redrawn.
TEST(EngineLeasesTest, C05_IdsAreRedrawnUntilFree) {
  constexpr std::uint32_t kSlots = 65'536;
  constexpr std::uint64_t kSeed = 1;
  Prng draws(kSeed);
  std::set<std::uint32_t> suffixes;
  for (std::uint32_t i = 1; i < kSlots; ++i) {
    suffixes.insert(static_cast<std::uint32_t>(draws.next()));
  }
  ASSERT_LT(suffixes.size(), kSlots - 1) << "take a seed whose draws meet";

  EngineLeases leases({.slots = kSlots, .word_high = 1, .id_seed = kSeed});
  std::set<LeaseId> ids;
  for (std::uint32_t i = 1; i < kSlots; ++i) ids.insert(leases.reserve("77").value().id);
  EXPECT_EQ(ids.size(), kSlots - 1);
  EXPECT_EQ(leases.reserve("77").error().code, ErrorCode::kResourceExhausted);
}

TEST(EngineLeasesTest, NoFreeSlotIsAnError) {  // L22, L43
  EngineLeases leases(options(1, 3));
  const LeaseId first = leases.reserve("a").value().id;
  grant_one(leases, at(0));
  const Result<LeaseReservation> refused = leases.reserve("c");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message, HasSubstr("raise kv_lease_slots (now 3)"));
  leases.cancel(first);
  EXPECT_TRUE(leases.reserve("c"));
}

TEST(EngineLeasesTest, ASlotIsFreeAgainWhenEveryRankHasEnded) {  // L23
  EngineLeases leases(options(2, 2));
  const LeaseId id = grant_one(leases, at(0));
  EXPECT_TRUE(leases.on_rank_ended(Rank{1}, {.id = id, .end = LeaseEnd::kCompleted}));
  EXPECT_FALSE(leases.on_rank_ended(Rank{1}, {.id = id, .end = LeaseEnd::kExpired}));  // L35
  EXPECT_EQ(leases.free_slots(), 0u);
  EXPECT_THAT(leases.take_ended(), IsEmpty());
  EXPECT_TRUE(leases.on_rank_ended(
      Rank{0}, {.id = id, .end = LeaseEnd::kCompleted, .readers_done = 2, .readers_expected = 2}));
  EXPECT_FALSE(leases.on_rank_ended(Rank{0}, {.id = id}));  // L35: gone
  EXPECT_EQ(leases.free_slots(), 1u);
  EXPECT_EQ(leases.take_ended().size(), 1u);
  EXPECT_THAT(leases.take_ended(), IsEmpty());  // L6: once
  const LeaseReservation next = leases.reserve("job").value();
  EXPECT_EQ(next.slot, kFirstLeaseSlot);
  EXPECT_EQ(next.word, kTestWord + 1);
}

TEST(EngineLeasesTest, TheEndIsTheWorstOfTheRanks) {  // L6
  EngineLeases leases(options(3, 4));
  const LeaseId id = grant_one(leases, at(0));
  leases.on_rank_ended(Rank{2}, {.id = id,
                                 .end = LeaseEnd::kCompleted,
                                 .readers_done = 2,
                                 .readers_expected = 2,
                                 .held = secs(29),
                                 .left = secs(3),
                                 .silent = secs(8)});
  EXPECT_THAT(leases.take_orders(), IsEmpty());  // a completed rank ends nobody else
  leases.on_rank_ended(Rank{0}, {.id = id,
                                 .end = LeaseEnd::kExpired,
                                 .readers_done = 1,
                                 .readers_expected = 2,
                                 .held = secs(30),
                                 .left = secs(1),
                                 .silent = secs(9)});
  leases.on_rank_ended(Rank{1}, {.id = id,
                                 .end = LeaseEnd::kReleased,
                                 .held = secs(31),
                                 .left = secs(2),
                                 .silent = secs(10)});
  EXPECT_THAT(leases.take_ended(), ElementsAre(EngineLeaseEnded{.id = id,
                                                                .end = LeaseEnd::kExpired,
                                                                .blocks = kTwoBlocks,
                                                                .readers_done = 1,
                                                                .readers_expected = 2,
                                                                .held = secs(31),
                                                                .left = secs(1),
                                                                .silent = secs(8),
                                                                .duration = secs(30)}));
  EXPECT_EQ(ended(leases, LeaseEnd::kExpired), 1u);
  EXPECT_TRUE(leases.ledger().balanced());
}

TEST(EngineLeasesTest, TheOtherRanksEndForTheSameCause) {  // L23
  for (const LeaseEnd cause :
       {LeaseEnd::kReleased, LeaseEnd::kRecalled, LeaseEnd::kDrained, LeaseEnd::kExpired}) {
    EngineLeases leases(options(2, 4));
    const LeaseId id = grant_one(leases, at(0));
    leases.on_rank_ended(Rank{0}, {.id = id, .end = cause});
    EXPECT_FALSE(leases.end(id, LeaseEnd::kReleased));  // its end is ordered
    EXPECT_THAT(leases.take_orders(), ElementsAre(LeaseEndOrder{.id = id, .end = cause}));
    EXPECT_THAT(leases.take_orders(), IsEmpty());
    leases.on_rank_ended(Rank{1}, {.id = id, .end = cause});
    EXPECT_EQ(leases.take_ended().at(0).end, cause);
    EXPECT_THAT(leases.take_orders(), IsEmpty());
  }
}

TEST(EngineLeasesTest, NoOrderForALeaseThatEndedOnEveryRank) {  // L23
  EngineLeases one(options(1, 4));
  const LeaseId alone = grant_one(one, at(0));
  one.on_rank_ended(Rank{0}, {.id = alone, .end = LeaseEnd::kExpired});
  EXPECT_THAT(one.take_orders(), IsEmpty());

  EngineLeases two(options(2, 4));
  const LeaseId id = grant_one(two, at(0));
  const LeaseId kept = grant_one(two, at(0));
  two.on_rank_ended(Rank{0}, {.id = id, .end = LeaseEnd::kExpired});
  two.on_rank_ended(Rank{0}, {.id = kept, .end = LeaseEnd::kExpired});
  two.on_rank_ended(Rank{1}, {.id = id, .end = LeaseEnd::kExpired});  // in the same step
  EXPECT_THAT(two.take_orders(), ElementsAre(LeaseEndOrder{.id = kept, .end = LeaseEnd::kExpired}));
}

TEST(EngineLeasesTest, AnOrderedEndIsMergedLikeEveryOther) {  // L6, L10
  EngineLeases leases(options(2, 4));
  const LeaseId id = grant_one(leases, at(0));
  EXPECT_TRUE(leases.end(id, LeaseEnd::kReleased));
  EXPECT_FALSE(leases.end(id, LeaseEnd::kDrained));
  EXPECT_TRUE(leases.is_live(id));  // until the ranks have fenced
  // Rank 0 had completed, rank 1 had expired before the order came.
  leases.on_rank_ended(Rank{0}, {.id = id, .end = LeaseEnd::kCompleted});
  leases.on_rank_ended(Rank{1}, {.id = id, .end = LeaseEnd::kExpired});
  EXPECT_THAT(leases.take_orders(), IsEmpty());
  EXPECT_EQ(leases.take_ended().at(0).end, LeaseEnd::kExpired);
}

TEST(EngineLeasesTest, AMismatchRetiresTheSlot) {  // L23
  EngineLeases leases(options(2, 3));
  const LeaseId id = grant_one(leases, at(0));
  leases.on_rank_ended(Rank{0}, {.id = id, .end = LeaseEnd::kRecalled, .slot_mismatch = true});
  EXPECT_THAT(leases.take_orders(),
              ElementsAre(LeaseEndOrder{.id = id, .end = LeaseEnd::kRecalled}));
  leases.on_rank_ended(Rank{1}, {.id = id, .end = LeaseEnd::kRecalled});
  EXPECT_EQ(leases.retired_slots(), 1u);
  EXPECT_EQ(leases.free_slots(), 1u);
  EXPECT_EQ(leases.reserve("job").value().slot, SlotId{2});
  EXPECT_FALSE(leases.reserve("job"));
}

TEST(EngineLeasesTest, AWordAtItsLimitRetiresTheSlot) {  // L22, L23
  EngineLeasesOptions few_uses = options(1, 2);
  few_uses.slot_uses_max = 3;
  EngineLeases leases(few_uses);
  for (std::uint64_t use = 0; use < 3; ++use) {
    const LeaseReservation reserved = leases.reserve("job").value();
    EXPECT_EQ(reserved.word, kTestWord + use);
    leases.grant(reserved.id, kTwoBlocks, kThirtySeconds, at(0));
    leases.on_rank_ended(Rank{0}, {.id = reserved.id, .end = LeaseEnd::kCompleted});
  }
  EXPECT_EQ(leases.retired_slots(), 1u);
  EXPECT_FALSE(leases.reserve("job"));
}

TEST(EngineLeasesTest, OldestGrant) {  // L48
  EngineLeases leases(options(1, 8));
  EXPECT_EQ(leases.oldest_grant(), kNever);
  const LeaseId first = grant_one(leases, at(3));
  grant_one(leases, at(5));
  EXPECT_EQ(leases.oldest_grant(), at(3));
  leases.on_rank_ended(Rank{0}, {.id = first, .end = LeaseEnd::kCompleted});
  EXPECT_EQ(leases.oldest_grant(), at(5));
}

TEST(LeaseLedgerTest, BalancedInLeasesAndInBlocks) {  // L6
  LeaseLedger ledger{.granted = 3, .live = 1, .ended = {1, 0, 0, 0, 1}};
  EXPECT_TRUE(ledger.balanced());
  ledger.granted_blocks = 5;
  EXPECT_FALSE(ledger.balanced());
  ledger.live_blocks = 2;
  ledger.ended_blocks = {0, 3, 0, 0, 0};
  EXPECT_TRUE(ledger.balanced());
  ledger.ended[2] = 1;
  EXPECT_FALSE(ledger.balanced());
}

TEST(EngineLeasesDeathTest, OurBugsAreCaught) {
  EngineLeases leases(options(1, 8));
  const LeaseId id = grant_one(leases, at(0));
  EXPECT_DEATH(leases.grant(id, kTwoBlocks, kThirtySeconds, at(0)), "not granted");
  EXPECT_DEATH(leases.cancel(id), "not granted");
  EXPECT_DEATH(leases.end(id, LeaseEnd::kCompleted), "L7");
  EXPECT_DEATH(leases.on_rank_ended(Rank{1}, {.id = id}), "rank of this engine");
  const LeaseId empty = leases.reserve("b").value().id;
  EXPECT_DEATH(leases.grant(empty, {}, kThirtySeconds, at(0)), "at least one block");
}

}  // namespace
}  // namespace kvlease
