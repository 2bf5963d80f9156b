// Hand-offs between engines with different numbers of ranks or sizes of blocks (L19, L37, L38).
#include <gtest/gtest.h>

#include <string>

#include "tests/pairs/world.h"

namespace kvlease::pairs {
namespace {

using std::chrono::seconds;

constexpr std::uint32_t kTps[] = {1, 2, 4, 8};

struct Shapes {
  std::uint32_t prefill_tp = 1;
  std::uint32_t decode_tp = 1;
  std::uint32_t num_kv_heads = 4;
  std::uint32_t blocks_ratio = 1;  // D's block size by P's
};

void PrintTo(const Shapes& shapes, std::ostream* out) {
  *out << shapes.prefill_tp << " to " << shapes.decode_tp << ", " << shapes.num_kv_heads
       << " heads, blocks 1:" << shapes.blocks_ratio;
}

std::vector<Shapes> all_shapes() {
  std::vector<Shapes> all;
  for (const std::uint32_t prefill_tp : kTps) {
    for (const std::uint32_t decode_tp : kTps) {
      for (const std::uint32_t heads : {2u, 8u}) all.push_back({prefill_tp, decode_tp, heads, 1});
      all.push_back({prefill_tp, decode_tp, 4, 2});
    }
  }
  return all;
}

class UnequalWorld {
 public:
  explicit UnequalWorld(const Shapes& shapes) : shapes_(shapes) {
    world.add("P", options(shapes.prefill_tp, kBlockSize));
    world.add("D", options(shapes.decode_tp, kBlockSize * shapes.blocks_ratio));
    world.add("alone", options(1, kBlockSize * shapes.blocks_ratio));
  }

  InstanceOptions options(std::uint32_t tp, std::uint32_t block_size) const {
    return {.tp = tp,
            .num_kv_heads = shapes_.num_kv_heads,
            .scheduler = {.num_blocks = 64, .block_size = block_size}};
  }

  std::string expected(const std::string& text) {
    const Ticket ticket = world.complete("alone", text, 8);
    EXPECT_TRUE(world.finishes(ticket, seconds(5)));
    return world.outcome(ticket).text;
  }

  void expect_hand_off(const std::string& text) {
    const Ticket ticket = world.decode("D", text, world.params_of_prefill("P", text), 8);
    ASSERT_TRUE(world.finishes(ticket, seconds(5)));
    EXPECT_EQ(world.outcome(ticket).error_message, "");
    EXPECT_EQ(world.outcome(ticket).text, expected(text));
  }

  std::uint64_t ended(LeaseEnd end) {
    return world.engine("P").connector().leases().ledger().ended[static_cast<std::size_t>(end)];
  }

  World world;

 private:
  Shapes shapes_;
};

class Unequal : public ::testing::TestWithParam<Shapes> {};
INSTANTIATE_TEST_SUITE_P(Shapes, Unequal, ::testing::ValuesIn(all_shapes()));

// L37: every byte comes from the right rank to the right place, or the text would differ.
TEST_P(Unequal, TheTextIsThatOfASingleInstance) {
  UnequalWorld pair(GetParam());
  pair.expect_hand_off(prompt(22, 'a'));
  pair.expect_hand_off(prompt(22, 'a') + prompt(19, 'b'));  // D has the first blocks already
  pair.expect_hand_off(prompt(3, 'c'));                     // less than a block
  World& world = pair.world;
  world.expect_all_back();
  EXPECT_EQ(world.count("D", Counter::kReadsValidated), 3 * GetParam().decode_tp);
  EXPECT_EQ(world.count("D", Counter::kFallbacks), 0u);
  EXPECT_EQ(pair.ended(LeaseEnd::kCompleted), 3u);               // L7: not one too few …
  EXPECT_EQ(world.count("P", Counter::kCompletionUnknown), 0u);  // … and not one too many
  EXPECT_EQ(world.count("P", Counter::kHeartbeatUnknown), 0u);
}

// E03, L37: of two shards in two replicas each, D reads the shards; the two replicas are no shards
// more: nothing is read from them and nothing is waited for but their own copy's end.
TEST(UnequalRanks, E03_ReplicasAreNoShards) {
  UnequalWorld pair({.prefill_tp = 4, .decode_tp = 2, .num_kv_heads = 2});
  World& world = pair.world;
  const std::string text = prompt(22, 'a');
  pair.expect_hand_off(text);
  world.run_for(seconds(1));                                  // much less than the lease
  EXPECT_EQ(world.count("D", Counter::kReadsPosted), 2u);     // one a rank of D
  EXPECT_EQ(world.count("D", Counter::kReadsValidated), 2u);  // of one shard each
  EXPECT_EQ(world.count_events("P", EventKind::kLeaseEnded), 1u);
  EXPECT_EQ(pair.ended(LeaseEnd::kCompleted), 1u);
  EXPECT_EQ(world.count("P", Counter::kCompletionUnknown), 0u);  // none came after the end
  world.expect_all_back();
}

// E04, L7: with four readers of one rank, three reports free nothing, however often they come.
TEST(UnequalRanks, E04_BlocksStayUntilEveryExpectedReportIsIn) {
  World world;
  world.add("P", {.tp = 1, .num_kv_heads = 4});
  InstanceOptions decode{.tp = 4, .num_kv_heads = 4};
  fabric::FaultPlan twice;
  twice.duplicate_notif = fabric::Strikes::always();
  fabric::FaultPlan lost;
  lost.drop_notif = fabric::Strikes::always();  // the fourth one's report, and its heartbeats
  decode.faults = {twice, twice, twice, lost};
  world.add("D", decode);
  const std::string text = prompt(22, 'a');
  const std::string params = world.params_of_prefill("P", text);
  const std::size_t leased = world.engine("P").blocks().leased;
  const Ticket ticket = world.decode("D", text, params, 8);
  ASSERT_TRUE(world.finishes(ticket, seconds(5)));
  world.run_for(seconds(20));
  EXPECT_EQ(world.engine("P").blocks().leased, leased);
  EXPECT_EQ(world.engine("P").connector().leases().live(), 1u);
  world.run_for(seconds(30));  // a lease, and what the first heartbeats added
  const auto& ended = world.engine("P").connector().leases().ledger().ended;
  EXPECT_EQ(ended[static_cast<std::size_t>(LeaseEnd::kExpired)], 1u);
  EXPECT_EQ(ended[static_cast<std::size_t>(LeaseEnd::kCompleted)], 0u);
  world.expect_all_back();
}

// E02, L19: ranks that nobody reads from are renewed, and told, as the others are.
TEST(UnequalRanks, E02_RanksThatAreNotReadAreRenewedAndTold) {
  UnequalWorld pair({.prefill_tp = 4, .decode_tp = 2, .num_kv_heads = 2});
  World& world = pair.world;
  const std::string text = prompt(22, 'a');
  const std::string params = world.params_of_prefill("P", text);
  world.network().set_read_latency(seconds(38));  // longer than the first lease, shorter than L48
  const Ticket ticket = world.decode("D", text, params, 8);
  world.run_for(seconds(1));
  world.network().set_read_latency(std::chrono::microseconds(20));  // of the entries
  ASSERT_TRUE(world.finishes(ticket, seconds(100)));
  EXPECT_EQ(world.outcome(ticket).text, pair.expected(text));
  world.expect_all_back();
  // Every 5 s from the acceptance on, from two ranks of D to two of P's each.
  const std::uint64_t beats = world.count("P", Counter::kHeartbeatsReceived);
  EXPECT_GE(beats, 4 * 7u);
  EXPECT_EQ(beats % 4, 0u);
  EXPECT_EQ(world.count("D", Counter::kCompletionsSent), 4u);
  EXPECT_EQ(pair.ended(LeaseEnd::kCompleted), 1u);
  EXPECT_EQ(pair.ended(LeaseEnd::kExpired), 0u);
}

TEST(UnequalRanks, D16_TwoRanksOf113BlocksToFourOf211) {
  World world;
  world.add("P", {.tp = 2, .num_kv_heads = 4, .scheduler = {.num_blocks = 113, .block_size = 4}});
  InstanceOptions decode{
      .tp = 4, .num_kv_heads = 4, .scheduler = {.num_blocks = 211, .block_size = 4}};
  decode.faults.resize(4);
  decode.faults[2].fail_read = fabric::Strikes::nth(1);
  world.add("D", decode);
  world.add("alone", {.num_kv_heads = 4, .scheduler = {.num_blocks = 64, .block_size = 4}});
  const std::string text = prompt(20, 'a');
  const Ticket alone = world.complete("alone", text, 8);
  ASSERT_TRUE(world.finishes(alone, seconds(5)));
  for (const std::uint64_t fallbacks :
       {1u, 1u}) {  // the first loses one rank's read, all ranks' load
    const Ticket ticket = world.decode("D", text, world.params_of_prefill("P", text), 8);
    ASSERT_TRUE(world.finishes(ticket, seconds(20)));
    EXPECT_EQ(world.outcome(ticket).text, world.outcome(alone).text);
    EXPECT_EQ(world.count("D", Counter::kFallbacks), fallbacks);
  }
  world.expect_all_back();
}

// L38: what one rank of P has lost is lost; nobody decodes from the rest.
TEST(UnequalRanks, ALeaseThatOneRankHasEndedIsLostOnAll) {
  for (const Shapes& shapes : {Shapes{4, 2}, Shapes{2, 4}, Shapes{8, 1}}) {
    SCOPED_TRACE(testing::PrintToString(shapes));
    UnequalWorld pair(shapes);
    World& world = pair.world;
    const std::string text = prompt(22, 'a');
    const std::string params = world.params_of_prefill("P", text);
    world.network().set_read_latency(seconds(2));
    const Ticket ticket = world.decode("D", text, params, 8);
    world.run_for(seconds(1));  // the read is under way
    const auto live = world.engine("P").connector().leases().live_leases();
    ASSERT_EQ(live.size(), 1u);
    EXPECT_TRUE(world.release("P", live.begin()->first));
    ASSERT_TRUE(world.finishes(ticket, seconds(60)));
    EXPECT_EQ(world.outcome(ticket).text, pair.expected(text));
    EXPECT_EQ(world.count("D", Counter::kReadsValidated), 0u);
    EXPECT_EQ(world.count("D", Counter::kFallbacks), 1u);
    world.expect_all_back();
  }
}

}  // namespace
}  // namespace kvlease::pairs
