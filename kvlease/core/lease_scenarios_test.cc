// The faults seen in the field that concern the leases of P alone, each named by its id.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kvlease/base/prng.h"
#include "kvlease/core/lease_config.h"
#include "kvlease/core/lease_testing.h"

namespace kvlease {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const AgentName kReader = reader_agent("dec", 0);

// lease_timelines: heartbeats at these times and the deadline after each. Below 6 s ours differ
// from vLLM's, for the extension is not cut to whole seconds (L12).
struct Timeline {
  double duration;
  struct Beat {
    double time;
    double expiry;
  };
  std::vector<Beat> beats;
};

TEST(LeaseTimelineTest, GoldenVectors) {  // L2
  const std::vector<Timeline> timelines{
      {30, {}},
      {30, {{5, 30}, {10, 30}}},
      {30, {{5, 30}, {10, 30}, {15, 35}, {20, 40}}},
      {30, {{5, 30}, {10, 30}, {15, 35}, {20, 40}, {25, 45}, {30, 50}, {35, 55}, {40, 60}}},
      {6, {{1, 6}, {2, 6}, {3, 7}, {4, 8}, {5, 9}}},
      {1, {{0.2, 1}, {0.4, 1.066}, {0.6, 1.266}, {0.8, 1.466}}},
      {5, {{1, 5}, {2, 5.333}, {3, 6.333}, {4, 7.333}}},
      {20, {{3, 20}, {6, 20}, {9, 22}, {12, 25}, {15, 28}, {18, 31}}},
      {60, {{10, 60}, {20, 60}, {30, 70}, {40, 80}}},
  };
  for (const Timeline& timeline : timelines) {
    SCOPED_TRACE(timeline.duration);
    TestRank rank;
    rank.grant("a", 1, derive_lease_times(secs(timeline.duration)), at(0));
    Instant expiry = at(timeline.duration);
    for (const Timeline::Beat& beat : timeline.beats) {
      rank.renew({"a"}, at(beat.time));
      expiry = at(beat.expiry);
      EXPECT_EQ(rank.table.expires_at(LeaseId{"a"}), expiry) << beat.time;
    }
    EXPECT_THAT(rank.sweep(expiry - Duration{1}), IsEmpty());
    EXPECT_EQ(rank.sweep(expiry).size(), 1u);
  }
}

TEST(LeaseScenario, A01_RenewedHeadDoesNotHideExpired) {  // L4
  TestRank rank;
  for (std::uint32_t slot = 1; slot <= 3; ++slot) {
    rank.grant(std::string(1, static_cast<char>('@' + slot)), slot, kThirtySeconds, at(0));
  }
  for (int second = 0; second <= 45; ++second) {
    if (second >= 5 && second <= 40 && second % 5 == 0) rank.renew({"A"}, at(second));
    const std::vector<std::string> ended = ids_of(rank.sweep(at(second)));
    if (second == 30) {
      EXPECT_THAT(ended, ElementsAre("B", "C"));
    } else {
      EXPECT_THAT(ended, IsEmpty()) << second;
    }
  }
  EXPECT_EQ(rank.table.expires_at(LeaseId{"A"}), at(60));
}

TEST(LeaseScenario, A03_ADeadReaderCostsSeconds) {  // L1, L2, L3
  TestEngine engine;
  const LeaseId id = engine.grant("a", 4, kThirtySeconds, at(0));
  for (const double beat : {5.0, 10.0, 15.0}) engine.ranks[0].renew({id.str()}, at(beat));
  EXPECT_THAT(engine.step(at(34)), IsEmpty());
  EXPECT_EQ(engine.step(at(35)).at(0).blocks.size(), 4u);
  EXPECT_EQ(engine.ended(LeaseEnd::kExpired), 1u);
  EXPECT_EQ(engine.leases.ledger().live_blocks, 0u);
}

TEST(LeaseScenario, A05_ABacklogIsKeptByHeartbeats) {  // L2, L17
  TestEngine engine(1, 512);
  std::vector<LeaseId> queued;
  for (int i = 0; i < 400; ++i) {
    queued.push_back(engine.grant(std::to_string(i), 1, kThirtySeconds, at(0)));
  }
  for (int second = 0; !queued.empty(); ++second) {
    if (second % 5 == 0) {
      std::vector<std::string_view> ids;
      for (const LeaseId& id : queued) ids.push_back(id.str());
      engine.ranks[0].renew(ids, at(second));
    }
    engine.ranks[0].complete(queued.front().str(), 1, kReader, at(second));
    queued.erase(queued.begin());
    engine.step(at(second));
  }
  EXPECT_EQ(engine.ended(LeaseEnd::kCompleted), 400u);
  EXPECT_EQ(engine.ended(LeaseEnd::kExpired), 0u);
  EXPECT_LE(engine.ranks[0].count(Counter::kHeartbeatsReceived), 81u);
  EXPECT_EQ(engine.ranks[0].count(Counter::kHeartbeatUnknown), 0u);
}

TEST(LeaseScenario, A07_LeasesNobodyHeardOfExpire) {  // L3, L6
  TestEngine engine;
  for (int i = 0; i < 10; ++i) engine.grant("r", 5, kThirtySeconds, at(0));
  EXPECT_EQ(engine.leases.ledger().live_blocks, 50u);
  for (int second = 1; second < 30; ++second) EXPECT_THAT(engine.step(at(second)), IsEmpty());
  EXPECT_EQ(engine.step(at(30)).size(), 10u);
  EXPECT_THAT(engine.step(at(31)), IsEmpty());
  EXPECT_EQ(engine.ended(LeaseEnd::kExpired), 10u);
  EXPECT_EQ(engine.leases.ledger().live_blocks, 0u);
}

// Heartbeats at these times, one sweep a second from the first on; whether the lease lives at the
// last.
bool survives(const std::vector<double>& beats) {
  TestRank rank;
  rank.grant("a", 1, kThirtySeconds, at(20));
  std::size_t next = 0;
  for (double second = 20; second <= beats.back(); ++second) {
    if (next < beats.size() && beats[next] == second) rank.renew({"a"}, at(beats[next++]));
    rank.sweep(at(second));
  }
  EXPECT_EQ(rank.count(Counter::kHeartbeatExpired), rank.table.live() == 1 ? 0u : 1u);
  return rank.table.live() == 1;
}

TEST(LeaseScenario, A09_TheMarginIsExtensionMinusInterval) {  // L2, L3, L5
  EXPECT_TRUE(survives({40, 59}));
  EXPECT_FALSE(survives({40, 61}));
  EXPECT_TRUE(survives({40, 55}));
  EXPECT_FALSE(survives({40, 65}));
  TestRank rank;
  rank.grant("a", 1, kThirtySeconds, at(20));
  rank.renew({"a"}, at(40));
  rank.renew({"a"}, at(59));
  EXPECT_EQ(rank.table.expires_at(LeaseId{"a"}), at(79));
}

TEST(LeaseScenario, A16_TwoTablesDoNotShareTheirTimes) {  // L12; no wall clock comes in at all
  TestRank first;
  TestRank second;
  first.grant("a", 1, derive_lease_times(secs(480)), at(0));
  second.grant("a", 1, derive_lease_times(secs(60)), at(0));
  EXPECT_THAT(second.sweep(at(59)), IsEmpty());
  EXPECT_EQ(second.sweep(at(60)).size(), 1u);
  EXPECT_THAT(first.sweep(at(479)), IsEmpty());
  EXPECT_EQ(first.sweep(at(480)).size(), 1u);
}

TEST(LeaseScenario, A19_ACompletionWinsAgainstTheDeadlineOfItsStep) {  // L9
  TestEngine engine;
  const LeaseId id = engine.grant("a", 1, kThirtySeconds, at(0));
  engine.ranks[0].complete(id.str(), 1, kReader, at(30));
  EXPECT_EQ(engine.step(at(30)).at(0).end, LeaseEnd::kCompleted);
}

TEST(LeaseScenario, B08_RoutersRelease) {  // L10, L5
  TestEngine engine;
  const LeaseId id = engine.grant("R", 3, kThirtySeconds, at(0));
  EXPECT_TRUE(engine.leases.end(id, LeaseEnd::kReleased));
  const std::vector<EngineLeaseEnded> ended = engine.step(at(3));
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].end, LeaseEnd::kReleased);
  EXPECT_EQ(ended[0].blocks.size(), 3u);
  EXPECT_FALSE(engine.leases.end(id, LeaseEnd::kReleased));
  EXPECT_FALSE(engine.leases.end(LeaseId{"X"}, LeaseEnd::kReleased));
  engine.ranks[0].complete(id.str(), 1, kReader, at(5));
  EXPECT_THAT(engine.step(at(5)), IsEmpty());
  EXPECT_EQ(engine.ranks[0].count(Counter::kCompletionUnknown), 1u);
}

TEST(LeaseScenario, B13_SlotsComeBackOnAbort) {  // L22, L34
  TestEngine engine(1, 16 + 1);
  TestRank& rank = engine.ranks[0];
  for (int round = 0; round < 1'000; ++round) {
    std::vector<LeaseId> queued;
    for (int i = 0; i < 16; ++i) {
      queued.push_back(engine.leases.reserve("r" + std::to_string(i)).value().id);
      rank.table.admit(queued.back());
    }
    EXPECT_FALSE(engine.leases.reserve("one too many"));
    rank.complete(queued[3].str(), 1, kReader, at(round));
    for (const LeaseId& id : queued) {
      engine.leases.cancel(id);
      rank.table.forget(id);
    }
  }
  EXPECT_EQ(engine.leases.reserved(), 0u);
  EXPECT_EQ(engine.leases.free_slots(), 16u);
  EXPECT_EQ(rank.table.in_batch(), 0u);
  EXPECT_EQ(rank.table.live(), 0u);
  rank.table.sweep(at(2'000));
  EXPECT_EQ(rank.table.next_deadline(), kNever);
  EXPECT_EQ(rank.count(Counter::kCompletionEarly), 1'000u);
  EXPECT_EQ(rank.count(Counter::kCompletionEarlyDropped), 1'000u);
}

TEST(LeaseScenario, C01_TheCompletionOvertookTheGrant) {  // L8
  TestRank rank;
  rank.table.admit(LeaseId{"R"});
  rank.table.admit(LeaseId{"S"});
  rank.table.admit(LeaseId{"never"});
  rank.complete("R", 1, kReader, at(0));
  rank.complete("S", 2, reader_agent("dec", 0), at(0));
  rank.complete("never", 1, kReader, at(0));
  EXPECT_THAT(rank.sweep(at(0)), IsEmpty());
  rank.grant("R", 1, kThirtySeconds, at(1));
  rank.grant("S", 2, kThirtySeconds, at(1));
  EXPECT_THAT(ids_of(rank.sweep(at(1))), ElementsAre("R"));
  rank.complete("S", 2, reader_agent("dec", 1), at(5));
  EXPECT_THAT(ids_of(rank.sweep(at(5))), ElementsAre("S"));
  EXPECT_THAT(rank.sweep(at(59)), IsEmpty());
  EXPECT_EQ(rank.count(Counter::kCompletionEarlyDropped), 0u);
  EXPECT_THAT(rank.sweep(at(60)), IsEmpty());
  EXPECT_EQ(rank.count(Counter::kCompletionEarlyDropped), 1u);

  for (int i = 0; i < 10'500; ++i) rank.complete("never", 1, kReader, at(61));
  EXPECT_EQ(rank.count(Counter::kCompletionEarlyDropped), 501u);
  rank.complete("unknown", 1, kReader, at(61));  // of no request of the batch
  EXPECT_EQ(rank.count(Counter::kCompletionUnknown), 1u);
}

TEST(LeaseScenario, C03_ClientsReuseTheirIds) {  // L45
  TestEngine engine;
  const LeaseId first = engine.grant("job-1", 2, kThirtySeconds, at(0));
  const LeaseId second = engine.grant("job-1", 3, kThirtySeconds, at(2));
  EXPECT_NE(first, second);
  engine.ranks[0].complete(first.str(), 1, kReader, at(4));
  const std::vector<EngineLeaseEnded> ended = engine.step(at(4));
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].id, first);
  EXPECT_EQ(ended[0].blocks.size(), 2u);
  EXPECT_TRUE(engine.leases.is_live(second));
  EXPECT_EQ(engine.step(at(32)).at(0).id, second);
}

// L45: the caller is served too instead of refused, for its lease gets an id of its own.
TEST(LeaseScenario, C05_ADuplicateClientIdDisturbsNobody) {
  TestEngine engine;
  const LeaseId first = engine.grant("77", 2, kThirtySeconds, at(0));
  const LeaseId second = engine.grant("77", 3, kThirtySeconds, at(9));
  EXPECT_NE(first, second);
  EXPECT_EQ(engine.leases.live_leases().at(first).blocks.size(), 2u);
  EXPECT_EQ(engine.ranks[0].table.expires_at(first), at(30));
  EXPECT_EQ(engine.ranks[0].table.expires_at(second), at(39));
}

TEST(LeaseScenario, C10_AnIdMayHoldAColon) {  // L7: `a:b:2`, split at the last colon by the wire
  TestRank rank;
  rank.grant("a:b", 1, kThirtySeconds, at(0));
  rank.complete("a:b", 2, reader_agent("dec", 0), at(1));
  EXPECT_EQ(rank.count(Counter::kCompletionsReceived), 1u);
  EXPECT_EQ(rank.table.live(), 1u);
}

TEST(LeaseScenario, E01_EveryReaderIsWaitedFor) {  // L7, L6
  for (const bool second_comes : {true, false}) {
    TestEngine engine(2);
    const std::string id = engine.grant("r", 4, kThirtySeconds, at(0)).str();
    for (const std::uint32_t reader : {2u, 3u}) {
      engine.ranks[1].complete(id, 2, reader_agent("dec", reader), at(10));
    }
    engine.ranks[0].complete(id, 2, reader_agent("dec", 0), at(28));
    engine.ranks[0].complete(id, 2, reader_agent("dec", 0), at(28));  // counts once
    EXPECT_EQ(engine.ranks[0].count(Counter::kCompletionDuplicate), 1u);
    EXPECT_THAT(engine.step(at(29)), IsEmpty());
    if (second_comes) engine.ranks[0].complete(id, 2, reader_agent("dec", 1), at(29.5));
    EXPECT_EQ(engine.step(at(29.5)).size(), second_comes ? 1u : 0u);
    const std::vector<EngineLeaseEnded> expired = engine.step(at(30));
    if (second_comes) {
      EXPECT_THAT(expired, IsEmpty());
      EXPECT_EQ(engine.ended(LeaseEnd::kCompleted), 1u);
    } else {
      ASSERT_EQ(expired.size(), 1u);
      EXPECT_EQ(expired[0].end, LeaseEnd::kExpired);
      EXPECT_EQ(expired[0].readers_done, 1u);
      EXPECT_EQ(expired[0].readers_expected, 2u);
    }
  }
}

TEST(LeaseScenario, H03_WhatIsPinnedIsShown) {  // L6; 400 tokens are 25 blocks of 16
  TestEngine engine;
  const LeaseLedger& ledger = engine.leases.ledger();
  std::vector<LeaseId> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(engine.grant("r", 25, kThirtySeconds, at(0)));
  EXPECT_EQ(ledger.live, 4u);
  EXPECT_EQ(ledger.live_blocks * 16, 1'600u);
  engine.ranks[0].complete(ids[0].str(), 1, kReader, at(1));
  engine.step(at(1));
  EXPECT_EQ(ledger.live, 3u);
  EXPECT_EQ(ledger.live_blocks * 16, 1'200u);
  engine.step(at(30));
  EXPECT_EQ(ledger.live, 0u);
  EXPECT_EQ(ledger.live_blocks, 0u);
  engine.ranks[0].complete(ids[0].str(), 1, kReader, at(31));
  engine.step(at(31));
  EXPECT_EQ(ledger.live, 0u);
  EXPECT_EQ(ledger.live_blocks, 0u);
  EXPECT_TRUE(ledger.balanced());
}

TEST(LeaseScenario, H14_ALargeBatchOutlivesItsFirstLease) {  // L2
  constexpr std::uint32_t kBatch = 6'722;
  for (const bool renewed : {true, false}) {
    TestRank rank({}, kBatch + 1);
    std::vector<std::string> ids;
    for (std::uint32_t i = 0; i < kBatch; ++i) {
      ids.push_back(std::to_string(i));
      rank.grant(ids.back(), i + 1, kThirtySeconds, at(0));
    }
    std::uint64_t over = 0;
    for (std::uint32_t i = 0; i < kBatch; ++i) {  // 200 reads a second
      const Instant now = at(0.005 * i);
      if (renewed && i % 1'000 == 0) {
        rank.renew(std::vector<std::string_view>(ids.begin() + i, ids.end()), now);
      }
      rank.table.sweep(now);
      if (!rank.table.expires_at(LeaseId{ids[i]})) ++over;
      rank.complete(ids[i], 1, kReader, now);
    }
    EXPECT_EQ(over, renewed ? 0u : 722u);
    EXPECT_EQ(rank.count(Counter::kCompletionUnknown), over);
  }
}

// By count, not by time: no sweep looks at more than the records that are there.
TEST(LeaseScenario, F15_AHighRateCostsLinearWork) {  // L4
  constexpr int kRequests = 3'840;
  constexpr int kStepsPerSecond = 50;
  TestEngine engine(1, 1'024);
  TestRank& rank = engine.ranks[0];
  Prng prng(15);
  struct Reading {
    LeaseId id;
    Instant done;
  };
  std::vector<Reading> reading;  // in order of grant
  int granted = 0;
  std::uint64_t peak = 0;
  for (int step = 0; granted < kRequests || !reading.empty(); ++step) {
    const Instant now = at(step / double{kStepsPerSecond});
    if (step % (5 * kStepsPerSecond) == 0) {
      std::vector<std::string_view> ids;
      for (const Reading& one : reading) ids.push_back(one.id.str());
      rank.renew(ids, now);
    }
    std::erase_if(reading, [&](const Reading& one) {
      if (one.done > now) return false;
      rank.complete(one.id.str(), 1, kReader, now);
      return true;
    });
    for (; granted < kRequests && granted < (step + 1) * 64 / kStepsPerSecond; ++granted) {
      const Duration held = std::chrono::milliseconds{1'000 + prng.below(2'001)};
      reading.push_back({engine.grant("r", 1, kThirtySeconds, now), now + held});
    }
    peak = std::max<std::uint64_t>(peak, rank.table.live());
    const std::uint64_t scanned = rank.table.records_scanned();
    engine.step(now);
    ASSERT_LE(rank.table.records_scanned() - scanned, (peak + 31) / 32 * 32) << step;
  }
  EXPECT_EQ(engine.ended(LeaseEnd::kCompleted), std::uint64_t{kRequests});
  EXPECT_EQ(engine.ended(LeaseEnd::kExpired), 0u);
}

}  // namespace
}  // namespace kvlease
