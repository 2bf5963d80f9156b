// The synthetic model: every KV byte counts, and nothing but the tokens and the seed does.
#include "kvlease/synthetic/synthetic_model.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "kvlease/base/prng.h"
#include "kvlease/synthetic/synthetic_runner.h"
#include "kvlease/synthetic/tokenizer.h"

namespace kvlease {
namespace {

constexpr KvLayout kSmall{.num_layers = 2,
                          .num_kv_heads = 4,
                          .head_dim = 3,
                          .element_bytes = 2,
                          .block_size = 4,
                          .num_blocks = 16};

// A model with its memory.
struct Instance {
  explicit Instance(const SyntheticConfig& config)
      : memory(config.layout.tp, std::vector<std::byte>(config.layout.rank_bytes())),
        model(config, {memory.begin(), memory.end()}) {}

  std::vector<std::vector<std::byte>> memory;
  SyntheticModel model;
};

Batch batch_of(std::vector<TokenId> tokens, std::uint32_t from, std::vector<BlockId> blocks) {
  return {.items = {{.token_ids = std::move(tokens),
                     .num_computed_tokens = from,
                     .num_tokens_with_kv = from,
                     .block_ids = std::move(blocks),
                     .sample = true}}};
}

std::vector<BlockId> blocks_from(std::uint32_t first, std::uint32_t step, std::size_t count) {
  std::vector<BlockId> blocks;
  for (std::uint32_t i = 0; i < count; ++i) blocks.emplace_back(first + i * step);
  return blocks;
}

// The text after a prompt, computed in chunks of `chunk` tokens in the given blocks.
std::vector<TokenId> generate(SyntheticModel& model, std::vector<TokenId> tokens,
                              const std::vector<BlockId>& blocks, std::size_t chunk,
                              std::size_t count) {
  std::vector<TokenId> text;
  std::size_t computed = 0;
  while (text.size() < count) {
    const std::size_t end = std::min(computed + chunk, tokens.size());
    const ModelOutput output =
        model.compute(batch_of({tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(end)},
                               static_cast<std::uint32_t>(computed), blocks));
    computed = end;
    if (computed < tokens.size()) continue;
    text.push_back(*output.sampled_token_ids.at(0));
    tokens.push_back(text.back());
  }
  return text;
}

TEST(KvLayout, CountsItsBytes) {
  EXPECT_EQ((KvLayout{.num_blocks = 1}).token_bytes(), 8u);
  const KvLayout large{.num_layers = 32,
                       .num_kv_heads = 8,
                       .head_dim = 128,
                       .element_bytes = 2,
                       .block_size = 16,
                       .num_blocks = 10,
                       .tp = 2};
  EXPECT_EQ(large.token_bytes(), 128u * 1024);
  EXPECT_EQ(large.rank_bytes() * large.tp, large.token_bytes() * 160);
}

TEST(KvLayout, PlacesEachHeadOnceAndNowhereElse) {
  std::vector<int> uses(kSmall.rank_bytes());
  for (std::uint32_t layer = 0; layer < kSmall.num_layers; ++layer) {
    for (std::uint32_t block = 0; block < kSmall.num_blocks; ++block) {
      for (std::uint32_t value = 0; value < 2; ++value) {
        for (std::uint32_t head = 0; head < kSmall.num_kv_heads; ++head) {
          const std::size_t begin = kSmall.offset({layer, BlockId(block), value, head});
          const std::size_t end = begin + kSmall.block_size * kSmall.head_bytes();
          for (std::size_t i = begin; i < end; ++i) ++uses.at(i);
        }
      }
    }
  }
  EXPECT_EQ(uses, std::vector<int>(kSmall.rank_bytes(), 1));
}

TEST(KvLayout, GivesOneRegionPerLayerWithItsBlocksInARow) {
  const std::vector<std::byte> memory(kSmall.rank_bytes());
  const std::vector<KvRegion> regions = kSmall.regions(memory);
  ASSERT_EQ(regions.size(), 2u);
  EXPECT_EQ(regions[1].base_address - regions[0].base_address, kSmall.region_bytes());
  EXPECT_EQ(regions[1].base_address + 3 * regions[1].block_len_bytes,
            reinterpret_cast<std::uint64_t>(memory.data()) + kSmall.offset({1, BlockId(3), 0, 0}));
}

TEST(KvLayout, RefusesShapesThatDoNotExist) {
  KvLayout layout = kSmall;
  EXPECT_TRUE(layout.check().has_value());
  layout.tp = 3;
  EXPECT_NE(layout.check().error().message.find("4 KV heads"), std::string::npos);
  layout.tp = 0;
  EXPECT_NE(layout.check().error().message.find("tp is 0"), std::string::npos);
}

TEST(Tokenizer, KeepsEveryByte) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes.push_back(static_cast<char>(i));
  EXPECT_EQ(detokenize(tokenize(bytes)), bytes);
  EXPECT_EQ(detokenize(std::vector<TokenId>{'a', kEndOfText, 'b', 70'000}), "ab");
}

// The golden text holds the model still: P and D of different builds must agree.
TEST(SyntheticModel, GeneratesTheSameTextOnEveryMachine) {
  Instance instance({.layout = kSmall, .seed = 1});
  const auto text =
      generate(instance.model, tokenize("Once upon a time"), blocks_from(0, 1, 16), 100, 24);
  EXPECT_EQ(detokenize(text), "tVk1yI-jlcekpTIqkzn5Jc1u");
}

// The text is a function of the prompt and the seed: not of chunks, of where the blocks lie, or of
// how many ranks share the heads.
TEST(SyntheticModelProperty, TextDependsOnThePromptAndTheSeedAlone) {
  rc::check([] {
    const auto seed = *rc::gen::arbitrary<std::uint64_t>();
    const auto prompt =
        *rc::gen::resize(30, rc::gen::nonEmpty(rc::gen::container<std::vector<TokenId>>(
                                 rc::gen::inRange<TokenId>(0, kVocabularySize))));
    RC_PRE(prompt.size() <= 40u);
    const auto chunk = *rc::gen::inRange<std::size_t>(1, 20);
    Instance plain({.layout = kSmall, .seed = seed});
    KvLayout split = kSmall;
    split.tp = *rc::gen::element(1u, 2u, 4u);
    Instance other({.layout = split, .seed = seed});
    const auto expected = generate(plain.model, prompt, blocks_from(0, 1, 16), 1'000, 10);
    RC_ASSERT(generate(other.model, prompt, blocks_from(15, UINT32_MAX, 16), chunk, 10) ==
              expected);
    Instance other_seed({.layout = kSmall, .seed = seed + 1});
    RC_ASSERT(generate(other_seed.model, prompt, blocks_from(0, 1, 16), 1'000, 10) != expected);
  });
}

// One wrong byte, anywhere in the sequence's KV and on any rank, changes the text.
TEST(SyntheticModelProperty, EveryKvByteMatters) {
  KvLayout layout = kSmall;
  layout.tp = 2;
  Prng prng(7);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const std::vector<TokenId> prompt = tokenize("the quick brown");
    const std::vector<BlockId> blocks = blocks_from(2, 1, 8);
    const auto text_with = [&](bool damaged, std::size_t rank, std::size_t index, std::byte flip) {
      Instance instance({.layout = layout, .seed = 3});
      instance.model.compute(batch_of(prompt, 0, blocks));
      if (damaged) instance.memory[rank][index] ^= flip;
      std::vector<TokenId> tokens = prompt;
      std::vector<TokenId> text;
      for (int i = 0; i < 12; ++i) {
        const auto from = static_cast<std::uint32_t>(tokens.size());
        tokens.push_back('x');
        text.push_back(
            *instance.model.compute(batch_of(tokens, from, blocks)).sampled_token_ids.at(0));
      }
      return text;
    };
    const std::size_t position = prng.below(prompt.size());
    const std::size_t index =
        layout.offset({.layer = static_cast<std::uint32_t>(prng.below(2)),
                       .block = blocks[position / 4],
                       .value = static_cast<std::uint32_t>(prng.below(2)),
                       .head_of_rank = static_cast<std::uint32_t>(prng.below(2))}) +
        position % 4 * layout.head_bytes() + prng.below(layout.head_bytes());
    const auto flip = static_cast<std::byte>(1 + prng.below(255));
    EXPECT_NE(text_with(false, 0, 0, flip), text_with(true, prng.below(2), index, flip));
  }
}

// What is shared already is read and not written (a full hit recomputes the last token for its
// output).
TEST(SyntheticModel, DoesNotWriteTokensWhoseKvIsThere) {
  Instance instance({.layout = kSmall, .seed = 1});
  Batch batch = batch_of(tokenize("12345678"), 0, blocks_from(0, 1, 2));
  const ModelOutput first = instance.model.compute(batch);
  batch.items[0].num_computed_tokens = 7;
  batch.items[0].num_tokens_with_kv = 8;
  EXPECT_EQ(instance.model.compute(batch).sampled_token_ids, first.sampled_token_ids);
  const std::size_t last = kSmall.offset({.block = BlockId(1)}) + 3 * kSmall.head_bytes();
  instance.memory[0][last] ^= std::byte{1};
  const std::vector<std::byte> before = instance.memory[0];
  instance.model.compute(batch);
  EXPECT_EQ(instance.memory[0], before);
}

TEST(SyntheticModel, EndsTextsAsOftenAsAsked) {
  Instance instance({.layout = {.num_blocks = 4}, .seed = 5, .end_of_text_every = 4});
  int ends = 0;
  for (TokenId token = 0; token < 400; ++token) {
    const ModelOutput output = instance.model.compute(batch_of({token}, 0, {BlockId(0)}));
    if (output.sampled_token_ids.at(0) == kEndOfText) ++ends;
  }
  EXPECT_GT(ends, 70);
  EXPECT_LT(ends, 130);
}

TEST(SyntheticRunner, WritesNothingBeforeTheForwardsTimeHasPassed) {
  using std::chrono::milliseconds;
  Instance instance({.layout = kSmall,
                     .prefill_time_per_token = milliseconds(2),
                     .inter_token_latency = milliseconds(5)});
  SyntheticRunner runner(instance.model);
  EXPECT_EQ(runner.next_deadline(), kNever);
  EXPECT_FALSE(runner.poll(kTimeZero).has_value());
  const std::vector<std::byte> untouched = instance.memory[0];
  Batch batch = batch_of(tokenize("abcd"), 0, blocks_from(0, 1, 1));
  batch.items.push_back(batch_of(tokenize("z"), 0, blocks_from(1, 1, 1)).items[0]);
  runner.launch(batch, kTimeZero + milliseconds(100));
  EXPECT_EQ(runner.next_deadline(), kTimeZero + milliseconds(113));
  EXPECT_FALSE(runner.poll(kTimeZero + milliseconds(112)).has_value());
  EXPECT_EQ(instance.memory[0], untouched);
  EXPECT_TRUE(runner.poll(kTimeZero + milliseconds(113)).has_value());
  EXPECT_NE(instance.memory[0], untouched);
  EXPECT_EQ(runner.next_deadline(), kNever);
}

}  // namespace
}  // namespace kvlease
