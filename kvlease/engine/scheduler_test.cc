// The scheduler alone: batches, chunks, preemption, prefix hits, ends, and what is refused. Its
// part in a hand-off is tested in scheduler_handoff_test.cc.
#include "kvlease/engine/scheduler.h"

#include <gtest/gtest.h>

#include "kvlease/engine/scheduler_testing.h"

namespace kvlease {
namespace {

TEST(Scheduler, RunsARequestToItsLengthAndGivesEverythingBack) {
  Side side({.num_blocks = 8, .block_size = 4});
  const RequestId id = side.add(prompt_of(6, 1), {.max_tokens = 3});
  side.step(at(1));
  EXPECT_EQ(side.scheduler.stats().running, 1u);
  side.step(at(2));
  side.step(at(3));
  EXPECT_EQ(side.texts[id], tokens_after(prompt_of(6, 1), 3));
  EXPECT_EQ(side.finish_reason(id), FinishReason::kLength);
  EXPECT_FALSE(side.scheduler.has_work());
  EXPECT_EQ(side.scheduler.pool().available(), 8u);
  EXPECT_FALSE(side.step(at(4)).has_value());
}

TEST(Scheduler, CutsALongPrefillIntoChunksAndSamplesAfterTheLast) {
  Side side({.num_blocks = 8, .block_size = 4, .max_num_batched_tokens = 8});
  side.add(prompt_of(20, 1), {.max_tokens = 1});
  std::vector<std::pair<std::size_t, bool>> chunks;
  for (int i = 1; i <= 3; ++i) {
    const Batch batch = side.step(at(i)).value();
    chunks.emplace_back(batch.items.at(0).num_new_tokens(), batch.items.at(0).sample);
  }
  EXPECT_EQ(chunks, (std::vector<std::pair<std::size_t, bool>>{{8, false}, {8, false}, {4, true}}));
}

TEST(Scheduler, LetsRunningRequestsDecodeBeforeNewOnesPrefill) {
  Side side({.num_blocks = 16, .block_size = 4, .max_num_batched_tokens = 8});
  side.add(prompt_of(4, 1), {.max_tokens = 9});
  side.step(at(1));
  side.add(prompt_of(20, 2), {.max_tokens = 1});
  const Batch batch = side.step(at(2)).value();
  ASSERT_EQ(batch.items.size(), 2u);
  EXPECT_EQ(batch.items[0].num_new_tokens(), 1u);
  EXPECT_EQ(batch.items[1].num_new_tokens(), 7u);
}

TEST(Scheduler, RunsNoMoreThanMaxNumSeqsAtOnce) {
  Side side({.num_blocks = 16, .block_size = 4, .max_num_seqs = 2});
  for (TokenId kind = 1; kind <= 3; ++kind) side.add(prompt_of(4, kind), {.max_tokens = 2});
  EXPECT_EQ(side.step(at(1)).value().items.size(), 2u);
  EXPECT_EQ(side.scheduler.stats().waiting, 1u);
}

// A preempted request is recomputed, and its text is the same.
TEST(Scheduler, PreemptsTheRequestThatBeganLast) {
  Side side({.num_blocks = 4, .block_size = 4, .enable_prefix_caching = false});
  const RequestId first = side.add(prompt_of(7, 1), {.max_tokens = 6});
  const RequestId second = side.add(prompt_of(7, 2), {.max_tokens = 6});
  side.step(at(1));
  side.step(at(2));
  EXPECT_EQ(side.scheduler.stats().running, 2u);
  side.step(at(3));
  EXPECT_EQ(side.scheduler.stats().running, 1u);
  EXPECT_EQ(side.scheduler.stats().preemptions, 1u);
  for (int i = 4; i < 20; ++i) side.step(at(i));
  EXPECT_EQ(side.texts[first], tokens_after(prompt_of(7, 1), 6));
  EXPECT_EQ(side.texts[second], tokens_after(prompt_of(7, 2), 6));
  EXPECT_EQ(side.scheduler.pool().counts(), (BlockCounts{.free = 4}));
}

TEST(Scheduler, StopsAtTheEndOfTextAndAtStopTokens) {
  const std::vector<TokenId> prompt = prompt_of(5, 1);
  const std::vector<TokenId> text = tokens_after(prompt, 4);
  Side side({.num_blocks = 16, .block_size = 4, .eos_token_id = text[1]});
  const RequestId by_eos = side.add(prompt, {.max_tokens = 4});
  const RequestId by_token = side.add(prompt, {.max_tokens = 4, .stop_token_ids = {text[0]}});
  const RequestId ignoring = side.add(prompt, {.max_tokens = 4, .ignore_eos = true});
  for (int i = 1; i < 6; ++i) side.step(at(i));
  EXPECT_EQ(side.texts[by_eos], (std::vector{text[0], text[1]}));
  EXPECT_EQ(side.finish_reason(by_eos), FinishReason::kStop);
  EXPECT_EQ(side.texts[by_token], (std::vector{text[0]}));
  EXPECT_EQ(side.finish_reason(by_token), FinishReason::kStop);
  EXPECT_EQ(side.texts[ignoring], text);
  EXPECT_EQ(side.finish_reason(ignoring), FinishReason::kLength);
}

// The longest sequence fills the pool; the last token needs no KV.
TEST(Scheduler, EndsASequenceThatCannotGrow) {
  Side side({.num_blocks = 2, .block_size = 4});
  const RequestId id = side.add(prompt_of(6, 1), {.max_tokens = 100});
  for (int i = 1; i < 8; ++i) side.step(at(i));
  EXPECT_EQ(side.texts[id].size(), 3u);
  EXPECT_EQ(side.finish_reason(id), FinishReason::kLength);
}

TEST(Scheduler, ComputesOnlyTheLastTokenAgainAfterAFullHitAndDoesNotWriteIt) {
  Side side({.num_blocks = 8, .block_size = 4});
  side.add(prompt_of(8, 1), {.max_tokens = 1});
  side.step(at(1));
  const RequestId id = side.add(prompt_of(8, 1), {.max_tokens = 2});
  const Batch batch = side.step(at(2)).value();
  EXPECT_EQ(batch.items.at(0).num_computed_tokens, 7u);
  EXPECT_EQ(batch.items.at(0).num_tokens_with_kv, 8u);
  side.step(at(3));
  EXPECT_EQ(side.texts[id], tokens_after(prompt_of(8, 1), 2));
  EXPECT_EQ(side.last.at(id).num_cached_tokens, 7u);
}

TEST(Scheduler, SharesAPrefixOnlyWithEqualCacheKeys) {
  Side side({.num_blocks = 16, .block_size = 4});
  NewRequest request{.client_id = "a",
                     .prompt_token_ids = prompt_of(8, 1),
                     .sampling = {.max_tokens = 1},
                     .cache_keys = {"lora-1"}};
  ASSERT_TRUE(side.scheduler.add_request(request, at(0)).has_value());
  side.step(at(1));
  request.cache_keys = {"lora-2"};
  ASSERT_TRUE(side.scheduler.add_request(request, at(1)).has_value());
  EXPECT_EQ(side.step(at(2)).value().items.at(0).num_computed_tokens, 0u);
}

TEST(Scheduler, RefusesWhatCanNeverRunAndWhatTheQueueCannotHold) {
  Side side({.num_blocks = 4, .block_size = 4, .max_num_waiting = 1});
  const auto refusal = [&](std::size_t prompt, std::uint32_t max_tokens) {
    const auto added = side.scheduler.add_request({.client_id = "x",
                                                   .prompt_token_ids = prompt_of(prompt, 1),
                                                   .sampling = {.max_tokens = max_tokens}},
                                                  at(0));
    return added ? std::nullopt : std::optional(added.error().code);
  };
  EXPECT_EQ(refusal(0, 1), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal(1, 0), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal(17, 1), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal(16, 1), std::nullopt);
  EXPECT_EQ(refusal(1, 1), ErrorCode::kResourceExhausted);  // L43
}

TEST(Scheduler, AbortEndsAWaitingARunningAndAFinishedRequestOnce) {
  Side side({.num_blocks = 8, .block_size = 4, .max_num_seqs = 1});
  const RequestId running = side.add(prompt_of(4, 1), {.max_tokens = 9});
  const RequestId waiting = side.add(prompt_of(4, 2), {.max_tokens = 9});
  side.step(at(1));
  for (int twice = 0; twice < 2; ++twice) {
    side.scheduler.abort(waiting, at(1));
    side.scheduler.abort(running, at(1));
  }
  side.scheduler.abort(RequestId("nobody"), at(1));
  side.step(at(2));
  EXPECT_EQ(side.finish_reason(running), FinishReason::kAbort);
  EXPECT_EQ(side.finish_reason(waiting), FinishReason::kAbort);
  EXPECT_FALSE(side.scheduler.has_work());
  EXPECT_EQ(side.scheduler.pool().available(), 8u);
}

// The result of chunk 2 comes after the abort: cleaned up once, nothing of it is cached or leased
// (L26).
TEST(Scheduler, B12_AChunkResultAfterTheAbortOrphansNothing) {
  Side side({.num_blocks = 8, .block_size = 4, .max_num_batched_tokens = 8});
  const RequestId id = side.add_remote_decode(prompt_of(24, 1));
  side.step(at(1));
  const Batch chunk = side.scheduler.schedule(at(2)).value();
  side.scheduler.abort(id, at(2));
  EXPECT_EQ(side.scheduler.pool().available(), 2u);  // the forward may still write (L26)
  EXPECT_TRUE(side.scheduler.has_work());
  side.scheduler.update_from_output(sample(chunk), at(3));
  side.step(at(3));
  EXPECT_EQ(side.scheduler.pool().available(), 8u);
  EXPECT_EQ(side.scheduler.pool().counts().cached, 2u);  // of chunk 1, which was whole before
  EXPECT_EQ(side.connector.leases().live(), 0u);
  EXPECT_EQ(side.connector.leases().reserved(), 0u);
  EXPECT_EQ(side.finish_reason(id), FinishReason::kAbort);
  EXPECT_FALSE(side.scheduler.has_work());
}

}  // namespace
}  // namespace kvlease
