// One engine with the synthetic model: the text of a request does not depend on how it was run.
#include <gtest/gtest.h>

#include <map>

#include "kvlease/base/prng.h"
#include "kvlease/engine/engine_testing.h"
#include "kvlease/synthetic/synthetic_runner.h"
#include "kvlease/synthetic/tokenizer.h"

namespace kvlease {
namespace {

// One engine, its ranks' memory and its model.
struct Instance {
  Instance(const SchedulerOptions& scheduler, std::uint32_t tp)
      : layout{.num_layers = 2,
               .num_kv_heads = 2,
               .head_dim = 4,
               .block_size = scheduler.block_size,
               .num_blocks = scheduler.num_blocks,
               .tp = tp},
        memory(tp, std::vector<std::byte>(layout.rank_bytes())),
        model({.layout = layout, .seed = 11}, {memory.begin(), memory.end()}),
        runner(model),
        engine({.core = {.scheduler = scheduler, .encode_steps = true}, .regions = regions()},
               runner) {}

  std::vector<std::vector<KvRegion>> regions() const {
    std::vector<std::vector<KvRegion>> regions;
    for (const std::vector<std::byte>& rank : memory) regions.push_back(layout.regions(rank));
    return regions;
  }

  RequestId add(const std::string& prompt, std::uint32_t max_tokens) {
    return engine.core()
        .add_request({.client_id = "c",
                      .prompt_token_ids = tokenize(prompt),
                      .sampling = {.max_tokens = max_tokens}},
                     engine.now())
        .value();
  }
  std::string text(const RequestId& id) { return detokenize(engine.texts[id]); }

  KvLayout layout;
  std::vector<std::vector<std::byte>> memory;
  SyntheticModel model;
  SyntheticRunner runner;
  LonelyEngine engine;
};

std::string lone_text(const std::string& prompt, std::uint32_t max_tokens) {
  Instance instance({.num_blocks = 64, .block_size = 4}, 1);
  const RequestId id = instance.add(prompt, max_tokens);
  instance.engine.run_until(at(101));
  return instance.text(id);
}

// Batches, chunks, preemption, prefix hits, aborts beside it and the number of ranks change
// nothing.
TEST(EngineTextProperty, DependsOnThePromptAlone) {
  std::map<std::string, std::string> expected;
  std::uint64_t preemptions = 0;
  std::uint64_t cached = 0;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng prng(seed);
    const SchedulerOptions options{
        .num_blocks = 14 + static_cast<std::uint32_t>(prng.below(20)),
        .block_size = 4,
        .max_num_seqs = 1 + static_cast<std::uint32_t>(prng.below(6)),
        .max_num_batched_tokens = 1 + static_cast<std::uint32_t>(prng.below(40)),
        .enable_prefix_caching = prng.chance(3, 4)};
    Instance instance(options, prng.chance(1, 2) ? 1 : 2);
    std::map<RequestId, std::string> prompts;
    for (int i = 0; i < 12; ++i) {
      // Prompts share beginnings; some are whole blocks long.
      const std::string prompt =
          std::string("common beginning of all prompts").substr(0, 1 + prng.below(31)) +
          std::string(prng.below(3), 'q');
      prompts.emplace(instance.add(prompt, 12), prompt);
      if (prng.chance(1, 3)) {
        instance.engine.core().turn(instance.engine.now());
        instance.engine.core().abort(instance.add("another one", 9), instance.engine.now());
      }
      if (prng.chance(1, 2)) instance.engine.run_until(instance.engine.now());
    }
    instance.engine.run_until(at(200));
    for (const auto& [id, prompt] : prompts) {
      const auto [it, is_new] = expected.try_emplace(prompt);
      if (is_new) it->second = lone_text(prompt, 12);
      EXPECT_EQ(instance.text(id), it->second) << prompt;
    }
    EXPECT_FALSE(instance.engine.core().has_work());
    EXPECT_EQ(instance.engine.core().pool().available(), options.num_blocks);
    preemptions += instance.engine.core().stats().preemptions;
    cached += instance.engine.core().stats().cached_tokens;
  }
  EXPECT_GT(preemptions, 0u) << "the walk no longer preempts";
  EXPECT_GT(cached, 0u) << "the walk no longer hits the prefix cache";
}

// A byte that is wrong in the prefix cache reaches the text of the next request.
TEST(EngineText, ShowsAWrongByteInACachedBlock) {
  Instance instance({.num_blocks = 64, .block_size = 4}, 2);
  const RequestId first = instance.add("sixteen bytes ok", 12);
  instance.engine.run_until(at(101));
  instance.memory[1][0] ^= std::byte{1};  // of block 0, which holds the first tokens
  const RequestId second = instance.add("sixteen bytes ok", 12);
  instance.engine.run_until(at(102));
  EXPECT_EQ(instance.engine.last.at(second).num_cached_tokens, 15u);
  EXPECT_NE(instance.text(second), instance.text(first));
}

}  // namespace
}  // namespace kvlease
