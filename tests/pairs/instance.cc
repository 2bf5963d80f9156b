// Builds an engine on the fabric and checks it.
#include "tests/pairs/instance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

#include "kvlease/base/check.h"
#include "kvlease/base/prng.h"
#include "kvlease/core/agent_name.h"

namespace kvlease::pairs {
namespace {

SyntheticConfig model_config(const InstanceOptions& options) {
  return {.layout = {.num_layers = 2,
                     .num_kv_heads = options.num_kv_heads,
                     .head_dim = 4,
                     .block_size = options.scheduler.block_size,
                     .num_blocks = options.scheduler.num_blocks,
                     .tp = options.tp},
          .seed = 11,
          .prefill_time_per_token = options.prefill_time_per_token,
          .inter_token_latency = options.inter_token_latency};
}

EngineFacts make_facts(const InstanceOptions& options, const InstanceIdentity& identity) {
  const KvLayout layout = model_config(options).layout;
  Prng prng(identity.start);
  EngineFacts facts{.engine_id = EngineId(identity.name),
                    .incarnation = Incarnation(prng.next()),
                    .word_high = static_cast<std::uint32_t>(prng.next()) | 1u,
                    .identity = {.model = "synthetic",
                                 .dtype = "bytes1",
                                 .num_layers = layout.num_layers,
                                 .num_kv_heads = layout.num_kv_heads,
                                 .head_dim = layout.head_dim,
                                 .block_size = layout.block_size,
                                 .kv_cache_layout = "layer,block,kv,head,token"},
                    .protocol = options.protocol,
                    .tp_size = options.tp,
                    .advertise_host = "127.0.0.1",
                    .advertise_port = identity.port,
                    .clock_epoch = options.clock_epoch};
  for (std::byte& byte : facts.seal_key) byte = static_cast<std::byte>(prng.next());
  return facts;
}

}  // namespace

Instance::Instance(const InstanceOptions& options, const InstanceIdentity& identity,
                   fabric::Network& network)
    : options_(options) {
  const SyntheticConfig model = model_config(options_);
  const EngineFacts facts = make_facts(options_, identity);
  std::vector<std::span<std::byte>> memory;
  std::vector<WorkerConnector*> workers;
  std::vector<RankMetadata> metadata;
  for (std::uint32_t rank = 0; rank < options_.tp; ++rank) {
    RankParts& parts = *ranks_.emplace_back(std::make_unique<RankParts>());
    parts.kv.resize(model.layout.rank_bytes());
    parts.entries.resize(options_.lease.lease_slots);
    parts.landing.resize(options_.landing_cells);
    parts.transport = network.make_agent(make_agent_name({.engine_id = facts.engine_id.str(),
                                                          .rank = Rank(rank),
                                                          .incarnation = facts.incarnation}));
    if (rank < options_.faults.size()) {
      parts.transport = fabric::fault(std::move(parts.transport), options_.faults[rank]);
    }
    parts.worker.emplace(WorkerConnectorOptions{.rank = Rank(rank),
                                                .shape = engine_shape(facts),
                                                .config = options_.lease,
                                                .word_high = facts.word_high,
                                                .validate_reads = options_.validate_reads},
                         *parts.transport,
                         KvCaches{.regions = model.layout.regions(parts.kv),
                                  .num_blocks = model.layout.num_blocks,
                                  .entries = parts.entries,
                                  .landing = parts.landing});
    KVL_CHECK(parts.worker->register_kv_caches().has_value(), "the fabric registers any memory");
    metadata.push_back(parts.worker->get_handshake_metadata().value());
    memory.push_back(parts.kv);
    workers.push_back(&*parts.worker);
  }
  model_.emplace(model, memory);
  runner_.emplace(*model_);
  connector_.emplace(SchedulerConnectorOptions{.facts = facts,
                                               .config = options_.lease,
                                               .num_blocks = options_.scheduler.num_blocks,
                                               .allow_peers = options_.allow_peers,
                                               .seed = mix64(identity.start)});
  connector_->set_xfer_handshake_metadata(std::move(metadata));
  options_.scheduler.hash_seed = mix64(identity.start + 1);
  core_.emplace(EngineCoreOptions{.scheduler = options_.scheduler, .encode_steps = true},
                *connector_, workers, *runner_);
}

Instant Instance::turn(Instant now) {
  wake_ = core_->turn(now);
  check_invariants();
  return wake_;
}

Instant Instance::next_deadline(Instant now) {
  Instant next = wake_;
  for (const auto& parts : ranks_) {
    // Asked in any case: a fault's delay counts from here. An idle engine does not listen (L11).
    const Instant arrival = parts->transport->next_poll(true, now);
    if (core_->has_work()) next = earlier(next, arrival);
  }
  return std::max(next, now);
}

std::vector<AgentName> Instance::agents() const {
  std::vector<AgentName> names;
  for (const auto& parts : ranks_) names.push_back(parts->transport->name());
  return names;
}

// L6, L22, L43: what is counted is what a recount from the leases and the blocks gives.
void Instance::check_invariants() const {
  const EngineLeases& leases = connector_->leases();
  const BlockPool& pool = core_->pool();
  const BlockCounts& counts = pool.counts();
  EXPECT_EQ(counts, pool.recount());
  EXPECT_EQ(counts.free + counts.cached + counts.in_use + counts.quarantined, pool.size());
  EXPECT_TRUE(leases.ledger().balanced());
  std::size_t references = 0;
  std::set<BlockId> distinct;
  std::set<SlotId> slots;
  for (const auto& [id, lease] : leases.live_leases()) {
    references += lease.blocks.size();
    distinct.insert(lease.blocks.begin(), lease.blocks.end());
    EXPECT_TRUE(slots.insert(lease.slot).second) << "two live leases in one slot";
  }
  EXPECT_EQ(counts.lease_refs, references);
  EXPECT_EQ(counts.leased, distinct.size());
  EXPECT_EQ(leases.ledger().live_blocks, references);
  EXPECT_EQ(leases.free_slots() + leases.live() + leases.reserved() + leases.retired_slots(),
            options_.lease.lease_slots - 1);
}

bool Instance::is_at_rest() const {
  return !core_->has_work() && blocks().in_use == 0 && blocks().quarantined == 0 &&
         connector_->leases().reserved() == 0 &&
         std::ranges::all_of(ranks_, [this](const auto& parts) {
           return parts->worker->leases().live() == 0 && parts->worker->reads_in_flight() == 0 &&
                  parts->worker->free_landing_cells() == options_.landing_cells;
         });
}

void Instance::expect_all_back() const {
  EXPECT_FALSE(core_->has_work());
  EXPECT_EQ(blocks().in_use, 0u);
  EXPECT_EQ(blocks().quarantined, 0u);
  EXPECT_EQ(core_->pool().available(), core_->pool().size());
  EXPECT_EQ(connector_->leases().live(), 0u);
  EXPECT_EQ(connector_->leases().reserved(), 0u);
  EXPECT_EQ(connector_->tracked_requests(), 0u);
  const EngineStats stats = core_->stats();
  EXPECT_EQ(stats.running + stats.waiting + stats.waiting_for_remote_kvs + stats.loaded, 0u);
  for (const auto& parts : ranks_) {
    EXPECT_EQ(parts->worker->leases().live(), 0u);
    EXPECT_EQ(parts->worker->leases().in_batch(), 0u);
    EXPECT_EQ(parts->worker->reads_in_flight(), 0u);
    EXPECT_EQ(parts->worker->free_landing_cells(), options_.landing_cells);
  }
}

}  // namespace kvlease::pairs
