// The scheduler's part in a hand-off, on both sides: grants and pins on P; parking, loading,
// failing and aborting on D. The test plays the ranks, the model and the handshake.
#include <gtest/gtest.h>

#include "kvlease/engine/scheduler_testing.h"

namespace kvlease {
namespace {

constexpr SchedulerOptions kPool16{.num_blocks = 16, .block_size = 4};

LeaseConfig lease_all_blocks() {
  LeaseConfig config;
  config.lease_max_blocks_fraction = 1.0;
  return config;
}

LeaseConfig failing_policy() {
  LeaseConfig config;
  config.load_failure_policy = LoadFailurePolicy::kFail;
  return config;
}

// --- P
// ---------------------------------------------------------------------------------------------

// The lease of `orders` ends on the one rank.
WorkerOutput lease_ended(const ConnectorMetadata& orders, LeaseEnd end) {
  return {.finished_sending = {{.id = orders.reqs_to_send.at(0).id, .end = end}}};
}

// L1: ends by length and by a stop token grant, aborts and preemptions do not.
TEST(SchedulerHandoff, H05_EndsByLengthAndByAStopTokenGrant) {
  Side p(kPool16);
  const RequestId by_length = p.add_remote_decode(prompt_of(6, 1));
  const RequestId by_stop =
      p.add(prompt_of(6, 2), {.max_tokens = 9, .stop_token_ids = {token_after(prompt_of(6, 2))}},
            KvTransferParams{.do_remote_decode = true});
  p.step(at(1));
  for (const RequestId& id : {by_length, by_stop}) {
    ASSERT_TRUE(p.last.at(id).kv_transfer_params.has_value());
    EXPECT_TRUE(p.last.at(id).kv_transfer_params->do_remote_prefill);
    EXPECT_EQ(p.last.at(id).kv_transfer_params->remote_num_tokens, 6u);
  }
  EXPECT_EQ(p.connector.leases().live(), 2u);
  EXPECT_EQ(p.scheduler.pool().counts().leased, 4u);

  const RequestId aborted = p.add_remote_decode(prompt_of(6, 3));
  const Batch batch = p.scheduler.schedule(at(2)).value();
  p.scheduler.abort(aborted, at(2));
  p.scheduler.update_from_output(sample(batch), at(2));
  p.step(at(2));
  EXPECT_FALSE(p.last.at(aborted).kv_transfer_params.has_value());
  EXPECT_EQ(p.connector.leases().live(), 2u);
  p.check_ledger();
}

TEST(SchedulerHandoff, H05_APreemptedPrefillGrantsOnlyWhenItEnds) {
  Side p({.num_blocks = 4, .block_size = 4, .max_num_batched_tokens = 8}, lease_all_blocks());
  p.add(prompt_of(4, 1), {.max_tokens = 9});
  const RequestId id = p.add_remote_decode(prompt_of(12, 2));
  p.step(at(1));  // both run; the prefill is in its first chunk
  p.step(at(2));  // the first request grows, the prefill gives way
  EXPECT_EQ(p.scheduler.stats().preemptions, 1u);
  EXPECT_EQ(p.connector.leases().live(), 0u);
  for (int i = 3; i < 20; ++i) p.step(at(i));
  EXPECT_TRUE(p.last.at(id).kv_transfer_params.has_value());
  EXPECT_EQ(p.connector.leases().live(), 1u);
  p.check_ledger();
}

// L34: an abort that comes just after the end changes nothing; the blocks are given back once.
TEST(SchedulerHandoff, B03_AbortAfterTheGrantChangesNothing) {
  for (const LeaseEnd end : {LeaseEnd::kCompleted, LeaseEnd::kExpired}) {
    Side p(kPool16);
    const RequestId id = p.add_remote_decode(prompt_of(8, 1));
    p.step(at(0));
    const WorkerOutput ended = lease_ended(p.orders, end);
    p.scheduler.abort(id, at(0.1));
    p.step(at(0.1));
    EXPECT_EQ(p.scheduler.pool().counts().leased, 2u);
    EXPECT_EQ(p.finish_reason(id), FinishReason::kLength);
    p.report(ended, at(4));
    EXPECT_EQ(p.scheduler.pool().counts().in_use, 0u);
    p.report(ended, at(5));  // L35: the same report again
    EXPECT_EQ(p.scheduler.pool().available(), 16u);
  }
}

// The blocks of a prefill that ends in a step are pinned before that step's other request looks for
// room.
TEST(SchedulerHandoff, F07_EndedPrefillIsPinnedBeforeAnyoneSeesItsBlocks) {
  Side p({.num_blocks = 4, .block_size = 4, .max_num_seqs = 1}, lease_all_blocks());
  p.add_remote_decode(prompt_of(16, 1));
  const RequestId next = p.add(prompt_of(4, 2), {.max_tokens = 1});
  p.step(at(0));
  const WorkerOutput ended = lease_ended(p.orders, LeaseEnd::kCompleted);
  EXPECT_EQ(p.scheduler.pool().counts().leased, 4u);
  EXPECT_FALSE(p.step(at(0)).has_value());  // it waits
  EXPECT_FALSE(p.finish_reason(next).has_value());
  p.report(ended, at(3));
  p.step(at(3));
  EXPECT_EQ(p.finish_reason(next), FinishReason::kLength);
}

// L43: when all that may be leased is leased, newcomers are told so at once, and others run on.
TEST(SchedulerHandoff, F13_AFullBudgetAnswersAtOnceAndStopsNobodyElse) {
  Side p(kPool16);  // a budget of 14 blocks
  std::vector<WorkerOutput> ends;
  for (TokenId kind = 1; kind <= 4; ++kind) {
    p.add_remote_decode(prompt_of(12, kind));
    p.step(at(1));
    ends.push_back(lease_ended(p.orders, LeaseEnd::kCompleted));
  }
  EXPECT_EQ(p.scheduler.pool().counts().leased, 12u);
  for (TokenId kind = 5; kind <= 24; ++kind) {
    const auto refused =
        p.scheduler.add_request({.client_id = "late",
                                 .prompt_token_ids = prompt_of(12, kind),
                                 .sampling = {.max_tokens = 1},
                                 .kv_transfer_params = KvTransferParams{.do_remote_decode = true}},
                                at(2));
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  }
  const RequestId local = p.add(prompt_of(8, 30), {.max_tokens = 1});
  p.step(at(2));
  EXPECT_EQ(p.finish_reason(local), FinishReason::kLength);
  p.report(ends[0], at(3));
  p.add_remote_decode(prompt_of(12, 31));
  p.step(at(3));
  EXPECT_EQ(p.connector.leases().live(), 4u);
  p.check_ledger();
}

// L43: what is leased already costs an admission nothing.
TEST(SchedulerHandoff, CountsSharedLeasedBlocksOnceAtAdmission) {
  Side p({.num_blocks = 4, .block_size = 4}, lease_all_blocks());
  p.add_remote_decode(prompt_of(12, 1));
  p.step(at(1));
  std::vector<TokenId> longer = prompt_of(12, 1);
  longer.push_back(7);
  p.add_remote_decode(longer);
  p.step(at(2));
  EXPECT_EQ(p.connector.leases().live(), 2u);
  EXPECT_EQ(p.scheduler.pool().counts().leased, 4u);
  EXPECT_EQ(p.scheduler.pool().counts().lease_refs, 7u);
  p.check_ledger();
}

// --- D
// ---------------------------------------------------------------------------------------------

// A decode side, and a prefill side that hands prompts over to it.
struct Decoder {
  explicit Decoder(const SchedulerOptions& options) : Decoder(options, LeaseConfig{}) {}
  Decoder(const SchedulerOptions& options, const LeaseConfig& config)
      : p({.num_blocks = 64, .block_size = options.block_size}), d("decoder", options, config) {}

  KvTransferParams prefilled(const std::vector<TokenId>& prompt) {
    const RequestId id = p.add_remote_decode(prompt);
    p.step(at(0));
    return p.last.at(id).kv_transfer_params.value();
  }

  RequestId add(const std::vector<TokenId>& prompt, std::uint32_t max_tokens) {
    return d.add(prompt, {.max_tokens = max_tokens}, prefilled(prompt));
  }

  void shake_hands(Instant now) {
    for (const auto& handshake : d.connector.take_handshakes(now)) {
      d.connector.on_handshake(handshake.address, p.connector.handshake_reply(now), now);
    }
  }

  // Adds a request and steps until its read is ordered and under way.
  RequestId load(const std::vector<TokenId>& prompt, std::uint32_t max_tokens, Instant now) {
    const RequestId id = add(prompt, max_tokens);
    shake_hands(now);
    d.step(now);
    KVL_CHECK(d.orders.reqs_to_recv.size() == 1, "the read is ordered in this step");
    return id;
  }

  Side p;
  Side d;
};

WorkerOutput loaded(const RequestId& id) { return {.finished_recving = {id}}; }
WorkerOutput failed(const RequestId& id) {
  return {.failed_recving = {{id, LoadFailure::kTransferFailed}}};
}
WorkerOutput quiet(const RequestId& id) { return {.quiet_recving = {id}}; }
WorkerOutput failed_and_quiet(const RequestId& id) {
  return {.failed_recving = {{id, LoadFailure::kTransferFailed}}, .quiet_recving = {id}};
}

TEST(SchedulerHandoff, ParksALoadAndComputesOnlyTheLastTokenAfterIt) {
  Decoder pair(kPool16);
  Side& d = pair.d;
  const RequestId id = pair.load(prompt_of(10, 1), 3, at(1));
  EXPECT_EQ(d.orders.reqs_to_recv[0].local_block_ids.size(), 3u);
  EXPECT_EQ(d.scheduler.stats().waiting_for_remote_kvs, 1u);
  EXPECT_FALSE(d.step(at(2)).has_value());
  d.report(loaded(id), at(3));
  const Batch batch = d.step(at(3)).value();
  EXPECT_EQ(batch.items.at(0).num_computed_tokens, 9u);
  EXPECT_EQ(batch.items.at(0).num_tokens_with_kv, 10u);
  d.step(at(4));
  d.step(at(5));
  EXPECT_EQ(d.texts[id], tokens_after(prompt_of(10, 1), 3));
  EXPECT_EQ(d.last.at(id).num_cached_tokens, 9u);
  EXPECT_EQ(d.scheduler.pool().available(), 16u);
}

// A request whose peer has not answered holds no block and keeps nobody from running.
TEST(SchedulerHandoff, PassesOverARequestWhoseHandshakeIsUnderWay) {
  Decoder pair(kPool16);
  Side& d = pair.d;
  const RequestId remote = pair.add(prompt_of(10, 1), 1);
  const RequestId local = d.add(prompt_of(10, 2), {.max_tokens = 1});
  d.step(at(1));
  EXPECT_EQ(d.finish_reason(local), FinishReason::kLength);
  EXPECT_EQ(d.scheduler.pool().counts().in_use, 0u);
  pair.shake_hands(at(2));
  d.step(at(2));
  ASSERT_EQ(d.orders.reqs_to_recv.size(), 1u);
  EXPECT_EQ(d.orders.reqs_to_recv[0].request, remote);
}

// Only what is missing is read; the prefix that is here is shared.
TEST(SchedulerHandoff, ReadsOnlyWhatTheLocalPrefixLacks) {
  Decoder pair(kPool16);
  Side& d = pair.d;
  d.add(prompt_of(8, 1), {.max_tokens = 1});
  d.step(at(1));
  pair.load(prompt_of(14, 1), 1, at(2));
  EXPECT_EQ(d.orders.reqs_to_recv[0].local_block_ids.size(), 2u);
  EXPECT_EQ(d.scheduler.pool().counts().running, 4u);
}

// L33: all is here already: no read, a completion in the same step, the last token recomputed.
TEST(SchedulerHandoff, B05_FullLocalHitCompletesWithoutARead) {
  Decoder pair(kPool16);
  Side& d = pair.d;
  d.add(prompt_of(16, 1), {.max_tokens = 1});
  d.step(at(1));
  const RequestId id = pair.add(prompt_of(16, 1), 1);
  pair.shake_hands(at(2));
  d.step(at(2));
  EXPECT_TRUE(d.orders.reqs_to_recv.empty());
  EXPECT_EQ(d.orders.completions_to_send.size(), 1u);
  EXPECT_EQ(d.texts[id], tokens_after(prompt_of(16, 1), 1));
}

// L26: the destination of an aborted load is free when the load has ended, and not before. Nor is
// it given out in between by a pool that reuses what was freed last (B11).
TEST(SchedulerHandoff, B02a_AbortDuringALoadQuarantinesItsBlocks) {
  Decoder pair({.num_blocks = 10, .block_size = 4});
  Side& d = pair.d;
  const RequestId id = pair.load(prompt_of(32, 1), 1, at(1));
  d.scheduler.abort(id, at(3));
  EXPECT_EQ(d.scheduler.pool().counts(), (BlockCounts{.free = 2, .quarantined = 8}));
  const RequestId next = d.add(prompt_of(32, 2), {.max_tokens = 1});
  EXPECT_FALSE(d.step(at(4)).has_value());
  EXPECT_TRUE(d.scheduler.has_work());
  d.report(loaded(id), at(5));  // it ended well, for nobody
  EXPECT_EQ(d.scheduler.pool().counts(), (BlockCounts{.free = 10}));
  d.step(at(5));
  EXPECT_EQ(d.finish_reason(next), FinishReason::kLength);
  EXPECT_EQ(d.finish_reason(id), FinishReason::kAbort);
}

TEST(SchedulerHandoff, B02b_AbortAfterTheLoadFreesAtOnce) {
  Decoder pair({.num_blocks = 10, .block_size = 4, .max_num_seqs = 1});
  Side& d = pair.d;
  const RequestId id = pair.load(prompt_of(32, 1), 1, at(1));
  d.report(loaded(id), at(5));
  EXPECT_EQ(d.scheduler.stats().loaded, 1u);
  d.scheduler.abort(id, at(6));
  EXPECT_EQ(d.scheduler.pool().available(), 10u);
  EXPECT_FALSE(d.scheduler.has_work());
}

TEST(SchedulerHandoff, B06_AbortBeforeAnyBlocksReleasesTheLease) {
  Decoder pair(kPool16);
  Side& d = pair.d;
  const RequestId id = pair.add(prompt_of(10, 1), 1);
  pair.shake_hands(at(1));
  d.scheduler.abort(id, at(1));
  d.step(at(1));
  EXPECT_EQ(d.orders.completions_to_send.size(), 1u);
  EXPECT_TRUE(d.orders.heartbeat_by_engine.empty());
  EXPECT_EQ(d.connector.tracked_requests(), 0u);
  EXPECT_FALSE(d.scheduler.has_work());
}

// L33: a request that is wrong in itself ends before it begins, and P is told.
TEST(SchedulerHandoff, B07_ARefusedRequestReleasesTheLease) {
  Decoder pair({.num_blocks = 2, .block_size = 4});
  Side& d = pair.d;
  const std::vector<TokenId> prompt = prompt_of(10, 1);  // too long for this engine
  EXPECT_FALSE(d.scheduler
                   .add_request({.client_id = "c",
                                 .prompt_token_ids = prompt,
                                 .sampling = {.max_tokens = 1},
                                 .kv_transfer_params = pair.prefilled(prompt)},
                                at(1))
                   .has_value());
  pair.shake_hands(at(1));
  d.step(at(1));
  EXPECT_EQ(d.orders.completions_to_send.size(), 1u);
  EXPECT_EQ(d.connector.tracked_requests(), 0u);
}

// L27: the load failed; the text is the same, from blocks that no read can still write.
TEST(SchedulerHandoff, RecomputesAFailedLoadWhileItsBlocksAreQuarantined) {
  Decoder pair(kPool16);
  Side& d = pair.d;
  const RequestId id = pair.load(prompt_of(12, 1), 2, at(1));
  const std::vector<BlockId> destination = d.orders.reqs_to_recv[0].local_block_ids;
  d.report(failed(id), at(2));
  EXPECT_EQ(d.scheduler.pool().counts().quarantined, 3u);
  const Batch batch = d.step(at(2)).value();
  EXPECT_EQ(batch.items.at(0).num_new_tokens(), 12u);
  for (const BlockId block : batch.items[0].block_ids) {
    EXPECT_EQ(std::ranges::count(destination, block), 0);
  }
  d.step(at(3));
  EXPECT_EQ(d.texts[id], tokens_after(prompt_of(12, 1), 2));
  EXPECT_TRUE(d.scheduler.has_work());  // L11: its blocks are not quiet yet
  d.report(quiet(id), at(9));
  EXPECT_FALSE(d.scheduler.has_work());
  EXPECT_EQ(d.scheduler.pool().available(), 16u);
}

TEST(SchedulerHandoff, FailsAFailedLoadByPolicyWithOneOutput) {
  Decoder pair(kPool16, failing_policy());
  Side& d = pair.d;
  const RequestId id = pair.load(prompt_of(12, 1), 2, at(1));
  d.report(failed_and_quiet(id), at(2));
  EXPECT_EQ(d.finish_reason(id), FinishReason::kError);
  EXPECT_NE(d.last.at(id).error_message.find("transfer_failed"), std::string::npos);
  EXPECT_EQ(d.scheduler.pool().counts(), (BlockCounts{.free = 16}));
  EXPECT_FALSE(d.step(at(3)).has_value());
  EXPECT_TRUE(d.texts[id].empty());
}

// A reference that is refused before there are blocks takes the same two ways (L27, L52).
TEST(SchedulerHandoff, TakesThePolicyForAReferenceThatDoesNotHold) {
  for (const LoadFailurePolicy policy : {LoadFailurePolicy::kRecompute, LoadFailurePolicy::kFail}) {
    LeaseConfig config;
    config.load_failure_policy = policy;
    Decoder pair(kPool16, config);
    Side& d = pair.d;
    KvTransferParams params = pair.prefilled(prompt_of(12, 1));
    params.kvlease->word += 1;
    const RequestId id = d.add(prompt_of(12, 1), {.max_tokens = 2}, params);
    pair.shake_hands(at(1));
    d.report({}, at(1));
    for (int i = 1; i < 4; ++i) d.step(at(i));
    const bool recomputes = policy == LoadFailurePolicy::kRecompute;
    EXPECT_EQ(d.finish_reason(id), recomputes ? FinishReason::kLength : FinishReason::kError);
    EXPECT_EQ(d.texts[id], recomputes ? tokens_after(prompt_of(12, 1), 2) : std::vector<TokenId>{});
    EXPECT_EQ(d.scheduler.pool().available(), 16u);
  }
}

// L24: what was not validated is never found by others; what was recomputed or validated is.
TEST(SchedulerHandoff, F03_BlocksOfAFailedLoadAreNoCacheHits) {
  const auto cached_tokens_of_the_next = [](Side& d, Instant now) {
    const RequestId id = d.add(prompt_of(16, 1), {.max_tokens = 1});
    d.step(now);
    return d.last.at(id).num_cached_tokens;
  };
  {
    Decoder pair(kPool16, failing_policy());
    const RequestId id = pair.load(prompt_of(16, 1), 1, at(1));
    pair.d.report(failed_and_quiet(id), at(2));
    EXPECT_EQ(cached_tokens_of_the_next(pair.d, at(3)), 0u);
  }
  {
    Decoder pair(kPool16);
    const RequestId id = pair.load(prompt_of(16, 1), 1, at(1));
    pair.d.report(failed(id), at(2));
    pair.d.step(at(2));
    EXPECT_EQ(cached_tokens_of_the_next(pair.d, at(3)), 15u);
  }
  {
    Decoder pair(kPool16);
    const RequestId id = pair.load(prompt_of(16, 1), 1, at(1));
    EXPECT_EQ(cached_tokens_of_the_next(pair.d, at(2)), 0u);  // the load is still under way
    pair.d.report(loaded(id), at(3));
    EXPECT_EQ(cached_tokens_of_the_next(pair.d, at(3)), 15u);
  }
}

// A finished load never waits for the blocks of the queue's head.
TEST(SchedulerHandoff, F05_AFinishedLoadIsResumedWhileTheQueueHeadWaits) {
  Decoder pair({.num_blocks = 10, .block_size = 4});
  Side& d = pair.d;
  const RequestId a = pair.load(prompt_of(24, 1), 2, at(1));
  const RequestId b = d.add(prompt_of(24, 2), {.max_tokens = 1});
  EXPECT_FALSE(d.step(at(2)).has_value());
  d.report(loaded(a), at(3));
  const Batch batch = d.step(at(3)).value();
  EXPECT_EQ(batch.items.at(0).request, a);
  for (int i = 4; i < 7; ++i) d.step(at(i));
  EXPECT_EQ(d.finish_reason(a), FinishReason::kLength);
  EXPECT_EQ(d.finish_reason(b), FinishReason::kLength);
}

// Two loads that fill the pool exactly: each can go on without a block of the other.
TEST(SchedulerHandoff, F05_LoadedRequestsDoNotLockEachOtherOut) {
  Decoder pair({.num_blocks = 8, .block_size = 4});
  Side& d = pair.d;
  const RequestId a = pair.load(prompt_of(16, 1), 6, at(1));
  const RequestId b = pair.load(prompt_of(16, 2), 6, at(1));
  EXPECT_EQ(d.scheduler.pool().available(), 0u);
  d.report({.finished_recving = {a, b}}, at(2));
  for (int i = 2; i < 20; ++i) d.step(at(i));
  EXPECT_EQ(d.texts[a], tokens_after(prompt_of(16, 1), 6));
  EXPECT_EQ(d.texts[b], tokens_after(prompt_of(16, 2), 6));
}

// Of a load that is here and a request that has not begun, the load goes first.
TEST(SchedulerHandoff, F05_AFinishedLoadGoesBeforeTheQueue) {
  Decoder pair({.num_blocks = 16, .block_size = 4, .max_num_seqs = 1});
  Side& d = pair.d;
  const RequestId id = pair.load(prompt_of(16, 1), 1, at(1));
  d.report(loaded(id), at(2));
  const RequestId next = d.add(prompt_of(4, 2), {.max_tokens = 1});
  d.step(at(2));
  EXPECT_EQ(d.finish_reason(id), FinishReason::kLength);
  EXPECT_FALSE(d.finish_reason(next).has_value());
}

// The batch is full from t=3 to t=9: the load is not forgotten, not repeated, and completed once.
TEST(SchedulerHandoff, F06_AFinishedLoadWaitsForRoomAndIsNotLost) {
  Decoder pair({.num_blocks = 16, .block_size = 4, .max_num_seqs = 1});
  Side& d = pair.d;
  const RequestId id = pair.load(prompt_of(16, 1), 2, at(1));
  d.add(prompt_of(4, 2), {.max_tokens = 7});
  d.step(at(2));
  d.report(loaded(id), at(3));
  std::size_t completions = 0;
  for (int t = 3; t < 9; ++t) {
    const Batch batch = d.step(at(t)).value();
    EXPECT_NE(batch.items.at(0).request, id);
    EXPECT_TRUE(d.orders.reqs_to_recv.empty());
    completions += d.orders.completions_to_send.size();
  }
  const Batch batch = d.step(at(9)).value();
  EXPECT_EQ(batch.items.at(0).request, id);
  EXPECT_EQ(batch.items.at(0).num_new_tokens(), 1u);
  EXPECT_TRUE(d.orders.reqs_to_recv.empty());
  EXPECT_EQ(completions, 1u);
}

// A request that waits for its remote KVs is no victim: a transfer writes its blocks.
TEST(SchedulerHandoff, NeverPreemptsAParkedRequest) {
  Decoder pair({.num_blocks = 4, .block_size = 4});
  Side& d = pair.d;
  const RequestId local = d.add(prompt_of(7, 1), {.max_tokens = 6});
  d.step(at(1));
  const RequestId parked = pair.load(prompt_of(8, 2), 1, at(1));
  for (int i = 2; i < 6; ++i) d.step(at(i));
  EXPECT_EQ(d.scheduler.stats().waiting_for_remote_kvs, 1u);
  EXPECT_EQ(d.scheduler.stats().preemptions, 1u);  // the local one, which had nobody else
  d.report(loaded(parked), at(6));
  for (int i = 6; i < 16; ++i) d.step(at(i));
  EXPECT_EQ(d.texts[parked], tokens_after(prompt_of(8, 2), 1));
  EXPECT_EQ(d.texts[local], tokens_after(prompt_of(7, 1), 6));
}

// L35: reports about requests that are gone, or that compute for themselves, change nothing.
TEST(SchedulerHandoff, IgnoresLateReports) {
  Decoder pair(kPool16);
  Side& d = pair.d;
  const RequestId id = pair.load(prompt_of(12, 1), 1, at(1));
  d.report(loaded(id), at(2));
  d.step(at(2));
  d.report({.finished_recving = {id, RequestId("nobody")},
            .failed_recving = {{id, LoadFailure::kTimedOut}},
            .quiet_recving = {id}},
           at(3));
  EXPECT_EQ(d.finish_reason(id), FinishReason::kLength);
  EXPECT_EQ(d.scheduler.pool().available(), 16u);
}

}  // namespace
}  // namespace kvlease
