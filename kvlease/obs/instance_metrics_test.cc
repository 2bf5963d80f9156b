// What an instance's scrape says, against the leases that it is about (scenarios H01–H04).
#include "kvlease/obs/instance_metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "kvlease/core/lease_testing.h"
#include "kvlease/obs/counter_families.h"
#include "kvlease/obs/scrape_testing.h"

namespace kvlease {
namespace {

using std::chrono::milliseconds;

constexpr const char* kCommon = R"(model_name="synthetic",engine="P")";

class InstanceMetricsTest : public ::testing::Test {
 protected:
  Scrape scrape(const InstanceSnapshot& snapshot) {
    return read_scrape(metrics.scrape(snapshot), kCommon);
  }

  InstanceMetrics metrics{{.model_name = "synthetic",
                           .engine = "P",
                           .tp_size = 4,
                           .block_size = 16,
                           .num_blocks = 200,
                           .enable_prefix_caching = true}};
};

// The part of a snapshot that a P's leases fill.
InstanceSnapshot snapshot_of(const TestEngine& engine, Instant now) {
  InstanceSnapshot snapshot{.ledger = engine.leases.ledger()};
  if (engine.leases.live() > 0) snapshot.oldest_lease_age = now - engine.leases.oldest_grant();
  for (const TestRank& rank : engine.ranks) snapshot.counters.merge(rank.table.counters());
  return snapshot;
}

Event ended_event(const EngineLeaseEnded& ended) {
  return {.kind = EventKind::kLeaseEnded,
          .lease = ended.id,
          .detail = std::string(lease_end_name(ended.end)),
          .count = ended.blocks.size(),
          .length = ended.held,
          .left = ended.left,
          .silent = ended.silent};
}

// L6: one expiry of an engine with eight ranks is one, and is said with its real hold.
TEST_F(InstanceMetricsTest, H01_AnExpiryIsCountedOnceAnEngine) {
  TestEngine engine(8);
  engine.grant("r", 4, kThirtySeconds, at(0));
  EXPECT_TRUE(engine.step(at(29)).empty());
  const auto ended = engine.step(at(30));
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].readers_done, 0u);
  metrics.on_event(ended_event(ended[0]));

  InstanceSnapshot snapshot = snapshot_of(engine, at(30));
  const Scrape seen = scrape(snapshot);
  EXPECT_EQ(seen.value(R"(kvlease_leases_ended_total{end="expired"})"), 1);
  EXPECT_EQ(seen.value(R"(kvlease_leases_ended_total{end="completed"})"), 0);
  EXPECT_EQ(seen.value("vllm:nixl_num_kv_expired_reqs_total"), 1);
  snapshot.counters.add(Counter::kHoldsDeclined, 2);  // vLLM counts them there, too (L41)
  EXPECT_EQ(scrape(snapshot).value("vllm:nixl_num_kv_expired_reqs_total"), 3);
  EXPECT_EQ(seen.value(R"(kvlease_lease_held_seconds_count{end="expired"})"), 1);
  EXPECT_EQ(seen.value(R"(kvlease_lease_held_seconds_sum{end="expired"})"), 30);
}

// L3: four blocks of a decoder that died after a heartbeat lay about for 20 s, on two ranks or on
// one; what is read in time costs nothing and had some time left, by P's clock.
TEST_F(InstanceMetricsTest, DeadBlocksAndSlackAreMeasuredOnP) {
  TestEngine engine(2);
  const LeaseId dies = engine.grant("dies", 4, kThirtySeconds, at(0));
  const LeaseId read = engine.grant("read", 7, kThirtySeconds, at(0));
  engine.ranks[0].renew({dies.str()}, at(14));  // later ones arrive on one rank only
  engine.ranks[0].renew({dies.str(), read.str()}, at(15));
  engine.ranks[1].renew({dies.str(), read.str()}, at(12));
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    engine.ranks[rank].complete(read.str(), 1, reader_agent("D", rank), at(16));
  }
  for (const double second : {16.0, 32.0, 35.0}) {
    for (const EngineLeaseEnded& ended : engine.step(at(second))) {
      metrics.on_event(ended_event(ended));
    }
  }
  metrics.on_event({.kind = EventKind::kLeaseEnded, .detail = "completed", .left = kForever});
  const Scrape seen = scrape(snapshot_of(engine, at(35)));
  EXPECT_EQ(seen.value(R"(kvlease_leases_ended_total{end="expired"})"), 1);
  EXPECT_EQ(seen.value("kvlease_dead_block_seconds_total"), 4 * 17);  // rank 1 ended it at 32
  EXPECT_EQ(seen.value("kvlease_lease_slack_seconds_count"), 1);      // not the one without an end
  EXPECT_EQ(seen.value("kvlease_lease_slack_seconds_sum"), 16);       // rank 1: 12 + 20 - 16
}

// L14
TEST_F(InstanceMetricsTest, SaysWhatTheNextLeaseGets) {
  InstanceSnapshot snapshot;
  snapshot.lease_duration = milliseconds(6250);
  snapshot.counters.add(Counter::kSignsLate, 3);
  const Scrape seen = scrape(snapshot);
  EXPECT_EQ(seen.value("kvlease_lease_duration_seconds"), 6.25);
  EXPECT_EQ(seen.value("kvlease_signs_late_total"), 3);
}

// Four ranks, each 10 MB in 10 ms: what is a rank's is called so, and the ranks are there to
// multiply by.
TEST_F(InstanceMetricsTest, H02_NumbersOfRanksAreLabelledSo) {
  InstanceSnapshot snapshot;
  for (int rank = 0; rank < 4; ++rank) {
    metrics.on_event({.kind = EventKind::kReadValidated,
                      .count = 10'000'000,
                      .length = milliseconds(10),
                      .posting = milliseconds(2),
                      .descriptors = 20});
    snapshot.counters.add(Counter::kReadsPosted);
    snapshot.counters.add(Counter::kReadsValidated);
  }
  const Scrape seen = scrape(snapshot);
  const double rank_bytes_a_second =
      seen.value("kvlease_rank_read_bytes_total") / seen.value("kvlease_rank_read_seconds_sum");
  EXPECT_DOUBLE_EQ(rank_bytes_a_second, 1000e6);
  EXPECT_DOUBLE_EQ(rank_bytes_a_second * seen.value("kvlease_ranks"), 4000e6);
  EXPECT_EQ(seen.value("kvlease_rank_reads_posted_total"), 4);
  EXPECT_EQ(seen.value(R"(kvlease_rank_reads_total{result="validated"})"), 4);
  EXPECT_EQ(seen.value("vllm:nixl_xfer_time_seconds_count"), 4);
  EXPECT_EQ(seen.value(R"(vllm:nixl_bytes_transferred_bucket{le="8388608"})"), 0);
  EXPECT_EQ(seen.value(R"(vllm:nixl_bytes_transferred_bucket{le="33554432"})"), 4);
  EXPECT_EQ(seen.value(R"(vllm:nixl_post_time_seconds_bucket{le="0.001"})"), 0);
  EXPECT_EQ(seen.value(R"(vllm:nixl_post_time_seconds_bucket{le="0.005"})"), 4);
  EXPECT_EQ(seen.value(R"(vllm:nixl_num_descriptors_bucket{le="10"})"), 0);
  EXPECT_EQ(seen.value(R"(vllm:nixl_num_descriptors_bucket{le="20"})"), 4);
}

// The bounds of a histogram's buckets as they are scraped, for dashboards made for vLLM.
TEST_F(InstanceMetricsTest, NixlsBucketsAreVllms) {
  const Scrape seen = scrape({});
  const auto bounds = [&](const std::string& family) {
    std::set<double> found;
    const std::string head = family + R"(_bucket{le=")";
    for (const auto& [series, _] : seen.values) {
      if (series.starts_with(head)) found.insert(std::stod(series.substr(head.size())));
    }
    found.erase(std::numeric_limits<double>::infinity());
    return found;
  };
  std::set<double> seconds{0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 5};
  EXPECT_EQ(bounds("vllm:nixl_xfer_time_seconds"), seconds);
  seconds.insert(0.001);
  EXPECT_EQ(bounds("vllm:nixl_post_time_seconds"), seconds);
  std::set<double> bytes;
  for (int power = 11; power <= 33; power += 2) bytes.insert(std::exp2(power));
  EXPECT_EQ(bounds("vllm:nixl_bytes_transferred"), bytes);
  EXPECT_EQ(bounds("vllm:nixl_num_descriptors"),
            (std::set<double>{10, 20, 30, 50, 75, 100, 200, 400, 1e3, 2e3, 4e3, 1e4, 2e4, 5e4}));
}

TEST_F(InstanceMetricsTest, HeartbeatsSayHowLateTheyWere) {
  metrics.on_event({.kind = EventKind::kHeartbeatSent, .count = 3});
  metrics.on_event({.kind = EventKind::kHeartbeatSent, .count = 3, .length = milliseconds(30)});
  const Scrape seen = scrape({});
  EXPECT_EQ(seen.value(R"(kvlease_heartbeat_lag_seconds_bucket{le="0.025"})"), 1);
  EXPECT_EQ(seen.value(R"(kvlease_heartbeat_lag_seconds_bucket{le="0.05"})"), 2);
}

// Four requests of 400 tokens, 25 blocks each: 4, 3, 0, 0 of them are live, as a recount says.
TEST_F(InstanceMetricsTest, H03_GaugesEqualARecountAtEveryStep) {
  TestEngine engine(2);
  std::vector<LeaseId> ids;
  const auto expect = [&](double leases, double tokens, Instant now) {
    const Scrape seen = scrape(snapshot_of(engine, now));
    std::size_t recounted = 0;
    for (const auto& [id, lease] : engine.leases.live_leases()) recounted += lease.blocks.size();
    EXPECT_EQ(seen.value("kvlease_leases_live"), leases);
    EXPECT_EQ(seen.value("kvlease_leases_live"), static_cast<double>(engine.leases.live()));
    EXPECT_EQ(seen.value("kvlease_lease_block_refs") * 16, tokens);
    EXPECT_EQ(seen.value("kvlease_lease_block_refs"), static_cast<double>(recounted));
    EXPECT_EQ(seen.value("kvlease_ledger_balanced"), 1);
    EXPECT_EQ(seen.value("kvlease_oldest_lease_age_seconds"),
              leases > 0 ? to_seconds(now - at(0)) : 0);
  };
  for (int i = 0; i < 4; ++i) ids.push_back(engine.grant("r", 25, kThirtySeconds, at(0)));
  engine.step(at(1));
  expect(4, 1600, at(1));
  const auto complete = [&](Instant now) {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      engine.ranks[rank].complete(ids[0].str(), 1, reader_agent("D", rank), now);
    }
  };
  complete(at(2));
  engine.step(at(2));
  expect(3, 1200, at(2));
  engine.step(at(30));
  expect(0, 0, at(30));
  complete(at(31));  // a duplicate
  engine.step(at(31));
  expect(0, 0, at(31));
}

// Every counter of the protocol is one series, and what it counted is seen.
TEST_F(InstanceMetricsTest, H04_WhateverIsCountedIsSeen) {
  InstanceSnapshot snapshot;
  for (std::size_t i = 0; i < kCounterCount; ++i) {
    snapshot.counters.add(static_cast<Counter>(i), 1000 + i);
  }
  const Scrape seen = scrape(snapshot);
  std::vector<int> times_listed(kCounterCount);
  for (const CounterFamily& family : counter_families()) {
    for (const auto& [counter, label_value] : family.series) {
      std::string series(family.name);
      if (!family.label_name.empty()) {
        series += "{" + std::string(family.label_name) + "=\"" + std::string(label_value) + "\"}";
      }
      const auto index = static_cast<std::size_t>(counter);
      EXPECT_EQ(seen.value(series), static_cast<double>(1000 + index)) << counter_name(counter);
      ++times_listed[index];
    }
  }
  EXPECT_EQ(times_listed, std::vector<int>(kCounterCount, 1));
}

// L27, L44: by cause, from what the events say.
TEST_F(InstanceMetricsTest, FailuresAreCountedByCause) {
  metrics.on_event({.kind = EventKind::kLoadFailed,
                    .detail = "lease_lost: the entry has changed; policy recompute"});
  metrics.on_event({.kind = EventKind::kNotifRejected, .detail = "bad_count"});
  metrics.on_event({.kind = EventKind::kNotifRejected, .detail = "bad_count"});
  const Scrape seen = scrape({});
  EXPECT_EQ(seen.value(R"(kvlease_load_failures_total{cause="lease_lost"})"), 1);
  EXPECT_EQ(seen.value(R"(kvlease_load_failures_total{cause="timed_out"})"), 0);
  EXPECT_EQ(seen.value(R"(kvlease_notifications_rejected_total{cause="bad_count"})"), 2);
}

TEST_F(InstanceMetricsTest, ASnapshotIsShownUnderOurNamesAndVllms) {
  metrics.on_first_token(milliseconds(30));
  metrics.on_next_token(milliseconds(10));
  metrics.on_next_token(milliseconds(12));
  metrics.on_request_finished("length", milliseconds(52));
  const Scrape seen = scrape({.blocks_free = 100,
                              .blocks_cached = 40,
                              .blocks_in_use = 50,
                              .blocks_quarantined = 10,
                              .blocks_leased = 20,
                              .requests_running = 3,
                              .requests_waiting = 4,
                              .requests_waiting_for_remote_kvs = 2,
                              .requests_tracked = 5,
                              .handshakes_in_flight = 6,
                              .known_peers = 7,
                              .prompt_tokens = 1000,
                              .cached_tokens = 900,
                              .generated_tokens = 70});
  EXPECT_EQ(seen.value("vllm:num_requests_running"), 3);
  EXPECT_EQ(seen.value("vllm:num_requests_waiting"), 6);
  EXPECT_DOUBLE_EQ(seen.value("vllm:kv_cache_usage_perc"), 0.3);
  EXPECT_EQ(seen.value("vllm:prefix_cache_queries_total"), 1000);
  EXPECT_EQ(seen.value("vllm:prefix_cache_hits_total"), 900);
  EXPECT_EQ(seen.value("vllm:generation_tokens_total"), 70);
  EXPECT_EQ(seen.value(R"(vllm:time_to_first_token_seconds_bucket{le="0.04"})"), 1);
  EXPECT_EQ(seen.value("vllm:inter_token_latency_seconds_count"), 2);
  EXPECT_EQ(seen.value(R"(vllm:request_success_total{finished_reason="length"})"), 1);
  EXPECT_EQ(seen.value(R"(vllm:request_success_total{finished_reason="abort"})"), 0);
  EXPECT_EQ(seen.value(R"(vllm:cache_config_info{block_size="16",)"
                       R"(num_gpu_blocks="200",enable_prefix_caching="True"})"),
            1);
  EXPECT_EQ(seen.value(R"(kvlease_blocks{state="quarantined"})"), 10);
  EXPECT_EQ(seen.value("kvlease_leased_blocks"), 20);
  EXPECT_EQ(seen.value("kvlease_requests_waiting_for_remote_kvs"), 2);
  EXPECT_EQ(seen.value("kvlease_requests_tracked"), 5);
  EXPECT_EQ(seen.value("kvlease_handshakes_in_flight"), 6);
  EXPECT_EQ(seen.value("kvlease_known_peers"), 7);
}

}  // namespace
}  // namespace kvlease
