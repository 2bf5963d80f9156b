// What tests put around one engine: a runner whose tokens follow from the tokens before, a
// transport without peers, and an engine with its ranks in virtual time.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvlease/base/check.h"
#include "kvlease/base/prng.h"
#include "kvlease/engine/engine_core.h"

namespace kvlease {

inline Instant at(double seconds) {
  return kTimeZero + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

// `count` tokens that no other `kind` begins with.
inline std::vector<TokenId> prompt_of(std::size_t count, TokenId kind) {
  std::vector<TokenId> tokens;
  for (std::size_t i = 0; i < count; ++i) tokens.push_back(1000 * kind + static_cast<TokenId>(i));
  return tokens;
}

// The token that a test's model puts after `tokens`: 0 … 99.
inline TokenId token_after(std::span<const TokenId> tokens) {
  std::uint64_t hash = 0;
  for (const TokenId token : tokens) hash = mix64(hash ^ token);
  return static_cast<TokenId>(hash % 100);
}

inline std::vector<TokenId> tokens_after(std::vector<TokenId> tokens, std::size_t count) {
  std::vector<TokenId> generated;
  for (std::size_t i = 0; i < count; ++i) {
    generated.push_back(token_after(tokens));
    tokens.push_back(generated.back());
  }
  return generated;
}

inline ModelOutput sample(const Batch& batch) {
  ModelOutput output;
  for (const BatchItem& item : batch.items) {
    output.sampled_token_ids.push_back(item.sample ? std::optional(token_after(item.token_ids))
                                                   : std::nullopt);
  }
  return output;
}

class TestRunner final : public ModelRunner {
 public:
  explicit TestRunner(Duration forward_time) : forward_time_(forward_time) {}

  void launch(Batch batch, Instant now) override {
    KVL_CHECK(done_at_ == kNever, "one forward in flight");
    launched.push_back(std::move(batch));
    done_at_ = now + forward_time_;
  }
  std::optional<ModelOutput> poll(Instant now) override {
    if (now < done_at_) return {};
    done_at_ = kNever;
    return sample(launched.back());
  }
  Instant next_deadline() const override { return done_at_; }

  std::vector<Batch> launched;

 private:
  Duration forward_time_;
  Instant done_at_ = kNever;
};

class LonelyTransport final : public Transport {
 public:
  explicit LonelyTransport(std::uint32_t rank) : name_("engine/" + std::to_string(rank) + "/1.0") {}

  const AgentName& name() const override { return name_; }
  Result<void> register_memory(const MemoryRegion&) override { return {}; }
  Result<Bytes> local_metadata() override { return Bytes{}; }
  Result<AgentName> add_peer(std::span<const std::byte>) override { return nobody(); }
  void remove_peer(const AgentName&) override {}
  Result<DescListHandle> prepare_local(std::span<const MemoryRegion>) override {
    return DescListHandle(++lists_);
  }
  Result<DescListHandle> prepare_remote(const AgentName&, std::span<const MemoryRegion>) override {
    return nobody();
  }
  void release_list(DescListHandle) override {}
  Result<TransferHandle> post_read(DescListHandle, DescListHandle, ReadIndices) override {
    return nobody();
  }
  TransferState poll(TransferHandle) override { return TransferState::kError; }
  Duration post_time(TransferHandle) const override { return {}; }
  void release(TransferHandle) override {}
  Result<void> send_notif(const AgentName&, std::span<const std::byte>) override {
    return nobody();
  }
  std::vector<Notification> take_notifs() override {
    ++drains;
    return std::exchange(inbox, {});
  }
  std::size_t notification_bytes_max() const override { return 8192; }
  Instant next_poll(bool, Instant now) override { return inbox.empty() ? kNever : now; }

  std::vector<Notification> inbox;
  std::uint64_t drains = 0;

 private:
  static std::unexpected<Error> nobody() { return error(ErrorCode::kNotFound, "nobody is there"); }
  AgentName name_;
  std::uint64_t lists_ = 0;
};

struct LonelyEngineOptions {
  EngineCoreOptions core;
  LeaseConfig lease;
  std::vector<std::vector<KvRegion>> regions = {{}};  // by rank; how many there are is tp
};

class LonelyEngine {
 public:
  // Requires: `runner` outlives this.
  LonelyEngine(const LonelyEngineOptions& options, ModelRunner& runner)
      : connector_({.facts = {.engine_id = EngineId("engine"),
                              .incarnation = Incarnation(1),
                              .word_high = kWordHigh,
                              .identity = {.num_kv_heads = 1,
                                           .block_size = options.core.scheduler.block_size},
                              .tp_size = static_cast<std::uint32_t>(options.regions.size()),
                              .advertise_host = "127.0.0.1",
                              .advertise_port = 8100},
                    .config = options.lease,
                    .num_blocks = options.core.scheduler.num_blocks}) {
    std::vector<WorkerConnector*> workers;
    for (std::uint32_t r = 0; r < options.regions.size(); ++r) {
      ranks_.push_back(std::make_unique<RankParts>(r, options));
      KVL_CHECK(ranks_.back()->worker.register_kv_caches().has_value(), "nothing can fail here");
      workers.push_back(&ranks_.back()->worker);
    }
    core_.emplace(options.core, connector_, workers, runner);
  }

  EngineCore& core() { return *core_; }
  LonelyTransport& transport(std::size_t rank) { return ranks_[rank]->transport; }
  Instant now() const { return now_; }

  // Turns whenever a turn is due, until `end` has come. Every output is kept.
  void run_until(Instant end) {
    for (;;) {
      const Instant due = core_->turn(now_);
      for (RequestOutput& output : core_->take_outputs()) {
        std::vector<TokenId>& text = texts[output.request];
        text.insert(text.end(), output.new_token_ids.begin(), output.new_token_ids.end());
        if (!output.finish_reason) continue;
        const RequestId id = output.request;
        EXPECT_TRUE(last.emplace(id, std::move(output)).second) << "two last outputs";
      }
      if (due <= now_) continue;
      if (due > end) break;
      now_ = due;
    }
    now_ = end;
  }

  std::map<RequestId, std::vector<TokenId>> texts;
  std::map<RequestId, RequestOutput> last;  // with a finish_reason

 private:
  static constexpr std::uint32_t kWordHigh = 77;

  struct RankParts {
    RankParts(std::uint32_t rank, const LonelyEngineOptions& options)
        : transport(rank),
          entries(options.lease.lease_slots),
          landing(8),
          worker({.rank = Rank(rank), .config = options.lease, .word_high = kWordHigh}, transport,
                 {.regions = options.regions[rank],
                  .num_blocks = options.core.scheduler.num_blocks,
                  .entries = entries,
                  .landing = landing}) {}
    LonelyTransport transport;
    std::vector<LeaseEntry> entries;
    std::vector<LeaseEntry> landing;
    WorkerConnector worker;
  };

  SchedulerConnector connector_;
  std::vector<std::unique_ptr<RankParts>> ranks_;
  std::optional<EngineCore> core_;
  Instant now_ = at(100);
};

}  // namespace kvlease
