// The network's own behaviour: time, bandwidth, pieces, death, stop, determinism.
#include "kvlease/fabric/network.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <vector>

#include "kvlease/base/prng.h"
#include "kvlease/fabric/pair_testing.h"

namespace kvlease::fabric {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

TEST(Network, ReadLandsAfterItsLatencyAndNotBefore) {
  Pair pair({.read_latency = microseconds(20)});
  pair.network.advance_to(at_us(100));
  const TransferHandle read = pair.post();
  EXPECT_EQ(pair.poll(read), TransferState::kInProgress);
  EXPECT_EQ(pair.network.next_event(), at_us(120));
  EXPECT_EQ(pair.consumer.transport->next_poll(true, at_us(100)), at_us(120));
  EXPECT_EQ(pair.producer.transport->next_poll(true, at_us(100)), kNever);

  pair.network.advance_to(at_us(120) - Duration(1));
  EXPECT_EQ(pair.poll(read), TransferState::kInProgress);
  EXPECT_EQ(pair.consumer.count(1), 0u);
  pair.network.advance_to(at_us(120));
  EXPECT_EQ(pair.consumer.transport->next_poll(true, at_us(120)), at_us(120));
  EXPECT_EQ(pair.poll(read), TransferState::kDone);
  EXPECT_EQ(pair.consumer.count(1), pair.consumer.memory.size());
  EXPECT_EQ(pair.consumer.transport->next_poll(true, at_us(120)), kNever);
  EXPECT_EQ(pair.network.next_event(), kNever);
}

TEST(Network, NothingMovesInsideAPostEvenWithoutLatency) {
  Pair pair({.read_latency = Duration::zero(), .notif_latency = Duration::zero()});
  const TransferHandle read = pair.post();
  ASSERT_TRUE(pair.notify("x"));
  EXPECT_EQ(pair.poll(read), TransferState::kInProgress);
  EXPECT_EQ(pair.consumer.count(1), 0u);
  EXPECT_EQ(pair.received(), "");
  pair.network.advance_to(kTimeZero);
  EXPECT_EQ(pair.poll(read), TransferState::kDone);
  EXPECT_EQ(pair.received(), "x");
}

// The bytes are those of the landing, not those of the post: a late read is stale or torn.
TEST(Network, ReadSeesWhatTheSourceHoldsWhenEachChunkLands) {
  Pair pair({.read_latency = microseconds(10), .bandwidth_bytes_per_us = 1, .chunk_bytes = 2000});
  const TransferHandle read = pair.post();  // 8,000 bytes in four chunks, 2 ms each
  EXPECT_EQ(pair.network.next_event(), at_us(8010));
  pair.network.advance_to(at_us(4010));
  pair.producer.fill(2);
  pair.network.advance_to(at_us(8010));
  EXPECT_EQ(pair.poll(read), TransferState::kDone);
  EXPECT_EQ(pair.consumer.count(1), 4000u);
  EXPECT_EQ(pair.consumer.count(2), 4000u);
}

TEST(Network, ReadersShareTheBandwidthOfTheirSource) {
  Pair pair({.read_latency = Duration::zero(), .bandwidth_bytes_per_us = 8});
  const TransferHandle first = pair.post();
  const TransferHandle second = pair.post();
  pair.network.advance_to(at_us(1000));
  EXPECT_EQ(pair.poll(first), TransferState::kDone);
  EXPECT_EQ(pair.network.next_event(), at_us(2000));
  pair.network.advance_to(at_us(2000));
  EXPECT_EQ(pair.poll(second), TransferState::kDone);
}

// C07: whatever the order of the segments, a done read is whole.
TEST(Network, C07_SegmentsLandInAnyOrderAndTheLastOneEndsTheRead) {
  bool landed_out_of_order = false;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    Pair pair({.seed = seed, .chunk_bytes = 1600, .chunk_jitter_max = microseconds(100)});
    const TransferHandle read = pair.post();
    for (std::int64_t us = 0; pair.poll(read) == TransferState::kInProgress; us += 10) {
      ASSERT_LE(us, 200) << "seed " << seed;
      pair.network.advance_to(at_us(us));
      landed_out_of_order |= pair.consumer.memory.front() < pair.consumer.memory.back();
    }
    pair.producer.fill(9);
    pair.network.advance_to(at_us(10'000));
    ASSERT_EQ(pair.consumer.count(1), pair.consumer.memory.size()) << "seed " << seed;
  }
  EXPECT_TRUE(landed_out_of_order);
}

TEST(Network, LateLandingOverwritesADestinationLongGivenUp) {
  Pair pair({});
  pair.network.set_read_latency(std::chrono::seconds(90));
  const TransferHandle read = pair.post();
  pair.network.set_read_latency(microseconds(20));
  pair.network.advance_to(at_us(89'000'000));
  EXPECT_EQ(pair.poll(read), TransferState::kInProgress);
  pair.producer.fill(3);
  pair.network.advance_to(at_us(90'000'000));
  EXPECT_EQ(pair.poll(read), TransferState::kDone);
  EXPECT_EQ(pair.consumer.count(3), pair.consumer.memory.size());
}

TEST(Network, DeathIsNoticedAfterAWhileAndEndsReadsInError) {
  Pair pair({.read_latency = microseconds(10),
             .bandwidth_bytes_per_us = 1,
             .chunk_bytes = 2000,
             .death_notice = milliseconds(20)});
  const TransferHandle before = pair.post();
  pair.network.advance_to(at_us(3000));  // one chunk of four has landed
  pair.network.kill(pair.producer.transport->name());
  const TransferHandle unnoticed = pair.post();
  EXPECT_TRUE(pair.notify("into the void"));
  EXPECT_EQ(pair.network.next_event(), at_us(23'000));

  pair.network.advance_to(at_us(22'999));
  EXPECT_EQ(pair.poll(before), TransferState::kInProgress);
  pair.network.advance_to(at_us(23'000));
  EXPECT_EQ(pair.poll(before), TransferState::kError);
  EXPECT_EQ(pair.poll(unnoticed), TransferState::kError);
  EXPECT_EQ(pair.consumer.count(1), 2000u);
  EXPECT_EQ(pair.try_post().error().code, ErrorCode::kSuspectPeer);
  EXPECT_EQ(pair.notify("x").error().code, ErrorCode::kSuspectPeer);
  EXPECT_EQ(pair.received(), "");
}

TEST(Network, DeathThatNobodyNoticesLeavesReadsInProgress) {
  Pair pair({.death_notice = kForever});
  const TransferHandle before = pair.post();
  pair.network.kill(pair.producer.transport->name());
  const TransferHandle after = pair.post();
  EXPECT_EQ(pair.network.next_event(), kNever);
  pair.network.advance_to(at_us(3'600'000'000));
  EXPECT_EQ(pair.poll(before), TransferState::kInProgress);
  EXPECT_EQ(pair.poll(after), TransferState::kInProgress);
  EXPECT_TRUE(pair.notify("x"));
}

TEST(Network, DeadReaderReceivesNoMoreBytes) {
  Pair pair({});
  const TransferHandle read = pair.post();
  ASSERT_TRUE(pair.notify("lost"));
  pair.network.kill(pair.consumer.transport->name());
  EXPECT_EQ(pair.network.next_event(), kNever);
  pair.network.advance_to(at_us(1000));
  EXPECT_EQ(pair.consumer.count(1), 0u);
  EXPECT_EQ(pair.poll(read), TransferState::kError);
  EXPECT_EQ(pair.try_post().error().code, ErrorCode::kSuspectPeer);
  EXPECT_EQ(pair.received(), "");
}

TEST(Network, EndingAnAgentIsItsDeath) {
  Pair pair({.death_notice = milliseconds(5)});
  const TransferHandle read = pair.post();
  pair.producer.transport.reset();
  pair.network.advance_to(at_us(5000));
  EXPECT_EQ(pair.poll(read), TransferState::kError);
  EXPECT_EQ(pair.consumer.count(1), 0u);
}

// L47: what was sent to a stopped process still sits in sockets when it runs again.
TEST(Network, L47_NotificationsToAStoppedAgentArriveAfterItRunsAgain) {
  Pair pair({.notif_latency = microseconds(100)});
  ASSERT_TRUE(pair.notify("a"));
  pair.network.advance_to(at_us(60));
  pair.network.stop(pair.producer.transport->name());
  ASSERT_TRUE(pair.notify("b"));
  EXPECT_EQ(pair.network.next_event(), kNever);
  pair.network.advance_to(at_us(50'000'000));
  EXPECT_EQ(pair.received(), "");
  pair.network.cont(pair.producer.transport->name());
  EXPECT_EQ(pair.received(), "");
  ASSERT_TRUE(pair.notify("c"));
  EXPECT_EQ(pair.network.next_event(), at_us(50'000'040));
  pair.network.advance_to(at_us(50'000'100));
  EXPECT_EQ(pair.received(), "abc");
}

TEST(Network, ReadFromAStoppedProcessHangsOverTcpAndEndsOverCma) {
  for (const bool readable : {false, true}) {
    Pair pair({.read_latency = microseconds(20), .stopped_memory_is_readable = readable});
    const TransferHandle before = pair.post();
    pair.network.stop(pair.producer.transport->name());
    const TransferHandle after = pair.post();
    pair.network.advance_to(at_us(1'000'000));
    const TransferState expected = readable ? TransferState::kDone : TransferState::kInProgress;
    EXPECT_EQ(pair.poll(before), expected);
    EXPECT_EQ(pair.poll(after), expected);
    pair.network.cont(pair.producer.transport->name());
    pair.network.advance_to(at_us(1'000'020));
    EXPECT_EQ(pair.poll(before), TransferState::kDone);
    EXPECT_EQ(pair.poll(after), TransferState::kDone);
  }
}

TEST(Network, ReadOfAStoppedReaderLandsLateWithTheBytesOfThen) {
  Pair pair({.read_latency = microseconds(20), .stopped_memory_is_readable = true});
  const TransferHandle read = pair.post();
  pair.network.stop(pair.consumer.transport->name());
  pair.network.advance_to(at_us(60'000'000));
  EXPECT_EQ(pair.consumer.count(0), pair.consumer.memory.size());
  pair.producer.fill(5);
  pair.network.cont(pair.consumer.transport->name());
  pair.network.advance_to(at_us(60'000'020));
  EXPECT_EQ(pair.poll(read), TransferState::kDone);
  EXPECT_EQ(pair.consumer.count(5), pair.consumer.memory.size());
}

TEST(Network, StoppedPeerCanDie) {
  Pair pair({.death_notice = milliseconds(20)});
  const TransferHandle read = pair.post();
  pair.network.stop(pair.producer.transport->name());
  pair.network.kill(pair.producer.transport->name());
  pair.network.advance_to(at_us(20'000));
  EXPECT_EQ(pair.poll(read), TransferState::kError);
}

TEST(Network, AbandonedReadsDoNotWakeWhoWaitsForNotificationsOnly) {
  Pair pair({});
  pair.post();
  pair.network.advance_to(at_us(1000));
  EXPECT_EQ(pair.consumer.transport->next_poll(true, at_us(1000)), at_us(1000));
  EXPECT_EQ(pair.consumer.transport->next_poll(false, at_us(1000)), kNever);
}

TEST(Network, MetadataOfAnotherNetworkIsRefused) {
  Network elsewhere{{}};
  const Instance stranger(elsewhere.make_agent(AgentName("stranger/0/1.0")));
  Pair pair({});
  const auto peer = pair.consumer.transport->add_peer(*stranger.transport->local_metadata());
  ASSERT_FALSE(peer);
  EXPECT_EQ(peer.error().code, ErrorCode::kIncompatible);
}

TEST(Network, VramIsNotDram) {
  Pair pair({});
  std::vector<MemoryRegion> descriptors = pair.consumer.blocks();
  descriptors[3].kind = MemoryKind::kVram;
  EXPECT_EQ(pair.consumer.transport->prepare_local(descriptors).error().code,
            ErrorCode::kInvalidArgument);
}

// Runs random actions and mixes everything that the agents see into one number.
std::uint64_t digest_of_run(std::uint64_t seed) {
  Pair pair({.seed = seed,
             .bandwidth_bytes_per_us = 100,
             .chunk_bytes = 700,
             .chunk_jitter_max = microseconds(300)});
  Prng prng(seed ^ 0xd1ce);
  std::vector<TransferHandle> reads;
  std::uint64_t digest = 0;
  const auto mix = [&](std::uint64_t value) { digest = mix64(digest ^ value); };
  std::int64_t now_us = 0;
  for (int step = 0; step < 300; ++step) {
    pair.producer.fill(step % 200);
    switch (prng.below(5)) {
      case 0:
        reads.push_back(pair.post());
        break;
      case 1:
        EXPECT_TRUE(pair.notify(std::to_string(step)));
        break;
      case 2:
        pair.network.stop(pair.producer.transport->name());
        break;
      case 3:
        pair.network.cont(pair.producer.transport->name());
        break;
      case 4:
        now_us += static_cast<std::int64_t>(prng.below(200));
        pair.network.advance_to(at_us(now_us));
        break;
    }
    for (const TransferHandle read : reads) mix(static_cast<std::uint64_t>(pair.poll(read)));
    for (const std::byte byte : pair.consumer.memory) mix(static_cast<std::uint64_t>(byte));
    mix(std::hash<std::string>{}(pair.received()));
    mix(static_cast<std::uint64_t>(pair.network.next_event().time_since_epoch().count()));
  }
  return digest;
}

TEST(Network, SameSeedSameRun) {
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    EXPECT_EQ(digest_of_run(seed), digest_of_run(seed)) << "seed " << seed;
  }
  EXPECT_NE(digest_of_run(0), digest_of_run(1));
}

using NetworkDeathTest = testing::Test;

TEST(NetworkDeathTest, MisuseIsABugOfOurs) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Pair pair({});
  const TransferHandle read = pair.post();
  EXPECT_DEATH(pair.consumer.transport->release(read), "final state");
  EXPECT_DEATH(pair.network.make_agent(AgentName("p/0/1.0")), "used once");
  const ReadIndices unequal{.local = pair.all, .remote = std::span(pair.all).first(1)};
  EXPECT_DEATH((void)pair.consumer.transport->post_read(pair.local, pair.remote, unequal),
               "one to one");
  const std::array<std::uint32_t, 1> outside{kBlocks};
  const ReadIndices beyond{.local = outside, .remote = std::span(pair.all).first(1)};
  EXPECT_DEATH((void)pair.consumer.transport->post_read(pair.local, pair.remote, beyond),
               "inside its list");
  pair.consumer.transport->remove_peer(pair.producer.transport->name());
  EXPECT_DEATH((void)pair.try_post(), "after its peer was removed");
}

}  // namespace
}  // namespace kvlease::fabric
