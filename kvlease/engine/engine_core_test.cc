// One engine's turn: its order, its deadlines, and that a long forward delays nothing.
#include "kvlease/engine/engine_core.h"

#include <gtest/gtest.h>

#include "kvlease/engine/engine_testing.h"

namespace kvlease {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

LonelyEngineOptions small_engine() {
  return {.core = {.scheduler = {.num_blocks = 16, .block_size = 4}, .encode_steps = true},
          .lease = {.lease_slots = 16}};
}

NewRequest request(std::size_t prompt, TokenId kind, std::uint32_t max_tokens) {
  return {.client_id = "c",
          .prompt_token_ids = prompt_of(prompt, kind),
          .sampling = {.max_tokens = max_tokens}};
}

NewRequest remote_decode(std::size_t prompt, TokenId kind) {
  NewRequest incoming = request(prompt, kind, 1);
  incoming.kv_transfer_params = KvTransferParams{.do_remote_decode = true};
  return incoming;
}

TEST(EngineCore, GeneratesAndThenHasNothingToDo) {
  TestRunner runner(milliseconds(10));
  LonelyEngine engine(small_engine(), runner);
  EXPECT_FALSE(engine.core().has_work());
  const RequestId id = engine.core().add_request(request(6, 1, 3), engine.now()).value();
  EXPECT_TRUE(engine.core().has_work());
  engine.run_until(engine.now() + milliseconds(29));
  EXPECT_EQ(engine.texts[id].size(), 2u);
  engine.run_until(engine.now() + milliseconds(1));
  EXPECT_EQ(engine.texts[id], tokens_after(prompt_of(6, 1), 3));
  EXPECT_FALSE(engine.core().has_work());
}

TEST(EngineCore, RunsAsFastAsItIsTurnedWhenAForwardCostsNothing) {
  TestRunner runner(Duration::zero());
  LonelyEngine engine(small_engine(), runner);
  const RequestId id = engine.core().add_request(request(6, 1, 20), engine.now()).value();
  engine.run_until(engine.now());
  EXPECT_EQ(engine.texts[id], tokens_after(prompt_of(6, 1), 20));
}

// A prefill of 7 s: the ranks drain, leases expire and blocks come back while it runs (L4, L11).
TEST(EngineCore, ALongForwardDelaysNoExpiry) {
  TestRunner runner(seconds(7));
  LonelyEngine engine(small_engine(), runner);
  engine.core().add_request(remote_decode(8, 1), engine.now()).value();
  engine.run_until(at(107));
  EXPECT_EQ(engine.core().stats().blocks.leased, 2u);
  engine.run_until(at(135));
  engine.core().add_request(request(8, 2, 1), engine.now()).value();
  engine.run_until(at(137) - milliseconds(1));
  EXPECT_EQ(engine.core().stats().blocks.leased, 2u);
  engine.run_until(at(137));
  EXPECT_EQ(engine.core().stats().running, 1u);  // the forward is in flight until t=142
  EXPECT_EQ(engine.core().stats().blocks.leased, 0u);
}

// H05, B03 over both halves: granted at the end of the prefill, ended by the clock at 30 s, once.
TEST(EngineCore, B03_ALeaseWithoutAReaderEndsAtItsDeadline) {
  TestRunner runner(milliseconds(10));
  LonelyEngineOptions options = small_engine();
  options.regions = {{}, {}};  // two ranks: the lease ends when both have ended
  LonelyEngine engine(options, runner);
  const RequestId id = engine.core().add_request(remote_decode(8, 1), engine.now()).value();
  engine.run_until(engine.now() + milliseconds(10));
  const Instant granted_at = engine.now();
  EXPECT_TRUE(engine.last.at(id).kv_transfer_params.has_value());
  engine.core().abort(id, engine.now());  // L34
  EXPECT_TRUE(engine.core().has_work());  // L11
  engine.run_until(granted_at + seconds(30) - milliseconds(1));
  EXPECT_EQ(engine.core().stats().blocks.leased, 2u);
  engine.run_until(granted_at + seconds(30));
  EXPECT_EQ(engine.core().stats().blocks.in_use, 0u);
  EXPECT_FALSE(engine.core().has_work());
  EXPECT_EQ(engine.core().connector().leases().ledger().ended[static_cast<std::size_t>(
                LeaseEnd::kExpired)],
            1u);
}

// L10: released by its id; the second time it is not found.
TEST(EngineCore, ReleasesALeaseOnce) {
  TestRunner runner(milliseconds(10));
  LonelyEngine engine(small_engine(), runner);
  const RequestId id = engine.core().add_request(remote_decode(8, 1), engine.now()).value();
  engine.run_until(engine.now() + milliseconds(10));
  const LeaseId lease = *engine.last.at(id).kv_transfer_params->remote_request_id;
  EXPECT_TRUE(engine.core().release(lease));
  engine.run_until(engine.now());
  EXPECT_EQ(engine.core().stats().blocks.leased, 0u);
  EXPECT_FALSE(engine.core().release(lease));
}

// L47: the ranks learn when the loop had asked to be woken; a turn 60 s late sweeps nothing at
// once.
TEST(EngineCore, TellsTheRanksWhenItHadAskedToWake) {
  TestRunner runner(milliseconds(10));
  LonelyEngine engine(small_engine(), runner);
  engine.core().add_request(remote_decode(8, 1), engine.now()).value();
  engine.run_until(engine.now() + milliseconds(10));
  const Instant late = engine.now() + seconds(60);
  const Instant due = engine.core().turn(late);
  EXPECT_EQ(engine.core().stats().blocks.leased, 2u);
  EXPECT_LE(due, late + seconds(1));
  engine.core().turn(late + seconds(1));
  EXPECT_EQ(engine.core().stats().blocks.leased, 0u);
}

// L11, L44: an idle engine drains its inbox once a second and does nothing else.
TEST(EngineCore, AnIdleEngineTurnsOnceASecond) {
  TestRunner runner(milliseconds(10));
  LonelyEngine engine(small_engine(), runner);
  const std::uint64_t before = engine.transport(0).drains;
  engine.run_until(engine.now() + seconds(10));
  EXPECT_LE(engine.transport(0).drains - before, 11u);
  EXPECT_TRUE(runner.launched.empty());
}

// L26: an abort while the forward is in flight keeps the blocks until its output.
TEST(EngineCore, AnAbortedRequestKeepsItsBlocksUntilItsForwardIsDone) {
  TestRunner runner(milliseconds(10));
  LonelyEngine engine(small_engine(), runner);
  const RequestId id = engine.core().add_request(request(8, 1, 9), engine.now()).value();
  engine.run_until(engine.now());
  engine.core().abort(id, engine.now());
  engine.core().abort(id, engine.now());
  engine.run_until(engine.now() + milliseconds(9));
  EXPECT_EQ(engine.core().stats().blocks.running, 2u);
  EXPECT_EQ(engine.last.at(id).finish_reason, FinishReason::kAbort);
  engine.run_until(engine.now() + milliseconds(1));
  EXPECT_EQ(engine.core().stats().blocks.in_use, 0u);
  EXPECT_FALSE(engine.core().has_work());
  EXPECT_EQ(runner.launched.size(), 1u);
}

}  // namespace
}  // namespace kvlease
