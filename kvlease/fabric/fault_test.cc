// Each fault of the decorator, over the fabric.
#include "kvlease/fabric/fault.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <string>
#include <vector>

#include "kvlease/fabric/network.h"
#include "kvlease/fabric/pair_testing.h"

namespace kvlease::fabric {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

// A network without latency, so that the only delays are the plan's.
constexpr NetworkConfig kAtOnce{.read_latency = Duration::zero(),
                                .notif_latency = Duration::zero()};

// Sends a, b, c, … in one turn; returns what has arrived in the end.
std::string deliver(const FaultPlan& plan, int count) {
  Pair pair(kAtOnce, plan);
  for (int i = 0; i < count; ++i) {
    EXPECT_TRUE(pair.notify(std::string(1, static_cast<char>('a' + i % 26))));
  }
  pair.turn(kTimeZero);
  pair.turn(at_us(1'000'000));
  pair.network.advance_to(at_us(2'000'000));
  return pair.received();
}

TEST(Fault, NotificationsAreDroppedByNumberPrefixAndChance) {
  EXPECT_EQ(deliver({.drop_notif = Strikes::nth(2)}, 4), "acd");
  EXPECT_EQ(deliver({.drop_notif = Strikes::after(2)}, 4), "ab");
  EXPECT_EQ(deliver({.drop_notif = {.skip = 1, .count = 2}}, 4), "ad");
  EXPECT_EQ(deliver({.drop_notif = {.numerator = 1}}, 4), "");

  Pair pair(kAtOnce, {.drop_notifs_with_prefix = "HB:"});
  for (const char* text : {"HB:x", "x:1", "HB:", "HB"}) EXPECT_TRUE(pair.notify(text));
  pair.network.advance_to(kTimeZero);
  EXPECT_EQ(pair.received(), "x:1HB");
}

TEST(Fault, NotificationsAreDuplicated) {
  EXPECT_EQ(deliver({.duplicate_notif = Strikes::nth(2)}, 3), "abbc");
}

TEST(Fault, NotificationsAreRefused) {
  Pair pair(kAtOnce, {.refuse_notif = Strikes::after(1)});
  EXPECT_TRUE(pair.notify("a"));
  EXPECT_EQ(pair.notify("b").error().code, ErrorCode::kSuspectPeer);
  EXPECT_EQ(pair.notify("c").error().code, ErrorCode::kSuspectPeer);
  pair.network.advance_to(kTimeZero);
  EXPECT_EQ(pair.received(), "a");
}

TEST(Fault, DelayedNotificationHoldsBackThoseBehindIt) {
  Pair pair(kAtOnce, {.delay_notif = Strikes::nth(2), .notif_delay = milliseconds(3)});
  pair.turn(at_us(500));
  for (const char* text : {"a", "b", "c"}) EXPECT_TRUE(pair.notify(text));
  EXPECT_EQ(pair.turn(at_us(500)), at_us(3500));
  EXPECT_EQ(pair.received(), "a");
  EXPECT_EQ(pair.turn(at_us(3499)), at_us(3500));
  EXPECT_EQ(pair.turn(at_us(3500)), kNever);
  pair.network.advance_to(at_us(3500));
  EXPECT_EQ(pair.received(), "bc");
  EXPECT_TRUE(pair.notify("d"));
  pair.network.advance_to(at_us(3500));
  EXPECT_EQ(pair.received(), "d");
}

TEST(Fault, ReorderedNotificationOvertakesTheDelayed) {
  EXPECT_EQ(deliver({.delay_notif = {.count = 2},
                     .notif_delay = milliseconds(1),
                     .reorder_notif = Strikes::nth(3)},
                    4),
            "cabd");
}

// A late read: what it brings is what the source holds by then.
TEST(Fault, DelayedPostIsAcceptedAtOnceAndLandsLate) {
  Pair pair({.read_latency = microseconds(20)},
            {.delay_post = Strikes::nth(1), .post_delay = seconds(4)});
  // The host has slept; the delay counts from the turn that posts.
  pair.turn(at_us(1'000'000));
  pair.network.advance_to(at_us(6'000'000));
  const TransferHandle late = pair.post();
  const TransferHandle punctual = pair.post();
  EXPECT_EQ(pair.turn(at_us(6'000'000)), at_us(6'000'020));
  pair.turn(at_us(6'000'020));
  EXPECT_EQ(pair.poll(punctual), TransferState::kDone);
  EXPECT_EQ(pair.poll(late), TransferState::kInProgress);

  pair.producer.fill(2);
  EXPECT_EQ(pair.turn(at_us(6'000'020)), at_us(10'000'000));
  EXPECT_EQ(pair.consumer.count(1), pair.consumer.memory.size());
  EXPECT_EQ(pair.turn(at_us(10'000'000)), at_us(10'000'020));
  EXPECT_EQ(pair.poll(late), TransferState::kInProgress);
  pair.turn(at_us(10'000'020));
  EXPECT_EQ(pair.poll(late), TransferState::kDone);
  EXPECT_EQ(pair.consumer.count(2), pair.consumer.memory.size());
}

TEST(Fault, DelayedPostThatIsRefusedEndsInError) {
  Pair pair({.death_notice = Duration::zero()},
            {.delay_post = Strikes::always(), .post_delay = milliseconds(1)});
  const TransferHandle read = pair.post();
  EXPECT_EQ(pair.turn(kTimeZero), at_us(1000));
  pair.network.kill(pair.producer.transport->name());
  EXPECT_EQ(pair.turn(at_us(1000)), at_us(1000));
  EXPECT_EQ(pair.poll(read), TransferState::kError);
  EXPECT_EQ(pair.turn(at_us(1000)), kNever);
  pair.consumer.transport->release(read);
}

TEST(Fault, DelayedWorkForARemovedPeerIsGivenUp) {
  Pair pair(kAtOnce, {.delay_notif = Strikes::always(),
                      .notif_delay = milliseconds(1),
                      .delay_post = Strikes::always(),
                      .post_delay = milliseconds(1)});
  const TransferHandle read = pair.post();
  ASSERT_TRUE(pair.notify("x"));
  pair.turn(kTimeZero);
  pair.consumer.transport->release_list(pair.remote);
  pair.consumer.transport->remove_peer(pair.producer.transport->name());
  EXPECT_EQ(pair.turn(kTimeZero), kTimeZero);
  EXPECT_EQ(pair.poll(read), TransferState::kError);
  EXPECT_EQ(pair.turn(at_us(1000)), kNever);
  pair.network.advance_to(at_us(2000));
  EXPECT_EQ(pair.consumer.count(1), 0u);
  EXPECT_EQ(pair.received(), "");
}

TEST(Fault, PostsAreRefused) {
  Pair pair(kAtOnce, {.refuse_post = Strikes::nth(2)});
  EXPECT_TRUE(pair.try_post());
  EXPECT_EQ(pair.try_post().error().code, ErrorCode::kSuspectPeer);
  EXPECT_TRUE(pair.try_post());
}

// G04: in progress, in progress, error: never done, and quiet once it says error (L26).
TEST(Fault, G04_FailedReadIsInProgressUntilItsBytesHaveLanded) {
  Pair pair({.bandwidth_bytes_per_us = 1, .chunk_bytes = 4000}, {.fail_read = Strikes::nth(1)});
  const TransferHandle read = pair.post();  // 8 ms
  for (const std::int64_t us : {0, 5000}) {
    pair.turn(at_us(us));
    EXPECT_EQ(pair.poll(read), TransferState::kInProgress);
  }
  pair.turn(at_us(8020));
  EXPECT_EQ(pair.poll(read), TransferState::kError);
  pair.consumer.fill(7);
  pair.network.advance_to(at_us(1'000'000));
  EXPECT_EQ(pair.consumer.count(7), pair.consumer.memory.size());
  EXPECT_EQ(pair.poll(read), TransferState::kError);
}

// F08: of eight reads one never ends; the others do.
TEST(Fault, F08_HangingReadIsInProgressForEverAndHoldsUpNoOther) {
  Pair pair({}, {.hang_read = Strikes::nth(3)});
  std::vector<TransferHandle> reads;
  for (int i = 0; i < 8; ++i) reads.push_back(pair.post());
  pair.turn(at_us(3'600'000'000));
  for (std::size_t i = 0; i < reads.size(); ++i) {
    EXPECT_EQ(pair.poll(reads[i]), i == 2 ? TransferState::kInProgress : TransferState::kDone);
  }
  EXPECT_EQ(pair.consumer.count(1), pair.consumer.memory.size());
  EXPECT_EQ(pair.turn(at_us(3'600'000'000)), kNever);
}

TEST(Fault, PeerDiesAtItsTime) {
  Pair pair({.read_latency = milliseconds(2), .notif_latency = Duration::zero()},
            {.delay_post = Strikes::nth(2),
             .post_delay = milliseconds(2),
             .peer_deaths = {{.peer = AgentName("p/0/1.0"), .at = at_us(1000)}}});
  ASSERT_TRUE(pair.producer.transport->add_peer(*pair.consumer.transport->local_metadata()));
  const auto notify_back = [&] {
    EXPECT_TRUE(pair.producer.transport->send_notif(pair.consumer.transport->name(), {}));
    pair.network.advance_to(at_us(1000));
    return pair.consumer.transport->take_notifs().size();
  };
  const TransferHandle under_way = pair.post();
  const TransferHandle delayed = pair.post();
  pair.turn(at_us(0));
  EXPECT_TRUE(pair.notify("a"));
  EXPECT_EQ(notify_back(), 1u);

  pair.turn(at_us(1000));
  EXPECT_EQ(pair.notify("b").error().code, ErrorCode::kSuspectPeer);
  EXPECT_EQ(pair.try_post().error().code, ErrorCode::kSuspectPeer);
  EXPECT_EQ(notify_back(), 0u);
  EXPECT_EQ(pair.poll(under_way), TransferState::kInProgress);
  pair.turn(at_us(2000));
  EXPECT_EQ(pair.poll(under_way), TransferState::kError);
  EXPECT_EQ(pair.poll(delayed), TransferState::kError);
  EXPECT_EQ(pair.received(), "a");
}

TEST(Fault, NothingIsStruckAfterTheEnd) {
  Pair pair(kAtOnce, {.drop_notif = Strikes::always(), .ends_at = at_us(5)});
  EXPECT_TRUE(pair.notify("a"));
  pair.turn(at_us(4));
  EXPECT_TRUE(pair.notify("b"));
  pair.turn(at_us(5));
  EXPECT_TRUE(pair.notify("c"));
  pair.network.advance_to(at_us(6));
  EXPECT_EQ(pair.received(), "c");
}

TEST(Fault, SameSeedSameFaultsAndOneFaultDoesNotShiftAnother) {
  const Strikes half{.numerator = 1, .denominator = 2};
  const std::string first = deliver({.seed = 1, .drop_notif = half}, 400);
  EXPECT_EQ(deliver({.seed = 1, .drop_notif = half}, 400), first);
  EXPECT_NE(deliver({.seed = 2, .drop_notif = half}, 400), first);
  EXPECT_NEAR(static_cast<double>(first.size()), 200, 40);
  const FaultPlan delays_too{
      .seed = 1, .drop_notif = half, .delay_notif = half, .notif_delay = milliseconds(1)};
  EXPECT_EQ(deliver(delays_too, 400), first);
}

TEST(Fault, CallsThatBreakTheContractAreNotCounted) {
  Pair pair(kAtOnce, {.refuse_notif = Strikes::nth(1)});
  EXPECT_EQ(pair.consumer.transport->send_notif(AgentName("nobody"), {}).error().code,
            ErrorCode::kNotFound);
  EXPECT_EQ(pair.notify("a").error().code, ErrorCode::kSuspectPeer);
}

}  // namespace
}  // namespace kvlease::fabric
