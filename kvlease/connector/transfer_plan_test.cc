// Tests of transfer_plan.h: vLLM's vectors, what does not divide, and that every byte of every head
// arrives at its place, once, for all pairs of sizes.
#include "kvlease/connector/transfer_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "kvlease/wire/json_fields.h"

namespace kvlease {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::uint32_t kSizes[] = {1, 2, 4, 8};

std::string read_vectors() {
  std::ifstream file(std::string(KVL_SOURCE_DIR) + "/tests/vectors/vectors.json");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::uint32_t> as_numbers(std::string_view json_list) {
  std::vector<std::uint32_t> numbers;
  const auto elements = json_array(json_list).value();
  for (const std::string_view element : elements) {
    numbers.push_back(static_cast<std::uint32_t>(json_integer(element, {}).value()));
  }
  return numbers;
}

std::uint32_t number(const JsonObject& object, const char* name) {
  return static_cast<std::uint32_t>(json_integer(object.rest().at(name), {}).value());
}

// Whom vLLM shakes hands with, reads from, at which slice, and how many completions P waits for.
TEST(TransferPlan, PairsAsVllmDoes) {  // L7, L37; tp_consumers
  const std::string text = read_vectors();
  std::optional<Error> problem;
  JsonObject vectors = open_json(text, 1 << 24, "the vectors", problem);
  std::size_t pairs = 0;
  for (const JsonObject& row : vectors.objects("tp_consumers", 1000)) {
    if (json_boolean(row.rest().at("mla")).value()) continue;  // refused by the identity (L30)
    const std::uint32_t heads = number(row, "total_kv_heads");
    const EngineShape remote{.tp_size = number(row, "p_tp"), .num_kv_heads = heads};
    const EngineShape local{.tp_size = number(row, "d_tp"), .num_kv_heads = heads};
    SCOPED_TRACE(std::to_string(remote.tp_size) + " to " + std::to_string(local.tp_size));
    ASSERT_TRUE(check_shapes(local, remote));
    EXPECT_EQ(readers_per_rank(local, remote), number(row, "suffix_in_notif"));
    const auto elements = json_array(row.rest().at("d")).value();
    for (const std::string_view element : elements) {
      const JsonObject d(element, "d", problem);
      std::vector<std::uint32_t> told;
      std::vector<std::uint32_t> read;
      for (const PairedRank& pair : paired_ranks(local, remote, Rank(number(d, "d_rank")))) {
        told.push_back(pair.remote.value());
        if (pair.num_heads > 0) read.push_back(pair.remote.value());
        if (local.tp_size > remote.tp_size) {
          EXPECT_EQ(pair.remote_first_head, number(d, "head_offset_factor") * pair.num_heads);
        }
      }
      EXPECT_EQ(told, as_numbers(d.rest().at("handshake_p_ranks")));
      EXPECT_EQ(read, as_numbers(d.rest().at("read_p_ranks")));
      ++pairs;
    }
  }
  ASSERT_FALSE(problem) << problem->message;
  EXPECT_GT(pairs, 30u);
}

TEST(TransferPlan, ReplicasOfAHeadAreReadOnceAndAllAreTold) {  // L37
  const EngineShape remote{.tp_size = 8, .num_kv_heads = 4};
  const EngineShape local{.tp_size = 2, .num_kv_heads = 4};
  EXPECT_THAT(
      paired_ranks(local, remote, Rank(1)),
      ElementsAre(PairedRank{.remote = Rank(4), .num_heads = 1}, PairedRank{.remote = Rank(5)},
                  PairedRank{.remote = Rank(6), .num_heads = 1, .local_first_head = 1},
                  PairedRank{.remote = Rank(7)}));
}

// L19: whoever has a copy of the lease is renewed, and hears of its end from as many as it expects.
TEST(TransferPlan, EveryRankIsToldByAsManyAsItExpects) {  // L7, L19
  for (const std::uint32_t remote_tp : kSizes) {
    for (const std::uint32_t local_tp : kSizes) {
      const EngineShape remote{.tp_size = remote_tp, .num_kv_heads = 4};
      const EngineShape local{.tp_size = local_tp, .num_kv_heads = 4};
      std::map<Rank, std::uint32_t> told;
      for (std::uint32_t rank = 0; rank < local_tp; ++rank) {
        for (const PairedRank& pair : paired_ranks(local, remote, Rank(rank))) ++told[pair.remote];
      }
      EXPECT_EQ(told.size(), remote_tp);
      for (const auto& [rank, count] : told) {
        EXPECT_EQ(count, readers_per_rank(local, remote)) << remote_tp << " to " << local_tp;
      }
    }
  }
}

TEST(TransferPlan, WhatDoesNotDivideIsRefusedWithBothNumbers) {  // L37
  const EngineShape base{.tp_size = 2, .num_kv_heads = 4, .block_size = 16};
  const auto refused = [&](EngineShape local) {
    const auto checked = check_shapes(local, base);
    return checked ? std::string("good") : checked.error().message;
  };
  EXPECT_THAT(refused({.tp_size = 3, .num_kv_heads = 3, .block_size = 16}),
              HasSubstr("tp_size: 3 here and 2 there"));
  EXPECT_THAT(refused({.tp_size = 8, .num_kv_heads = 6, .block_size = 16}),
              HasSubstr("6 KV heads do not divide among tp_size 8"));
  EXPECT_THAT(refused({.tp_size = 2, .num_kv_heads = 4, .block_size = 24}),
              HasSubstr("block_size: 24 here and 16 there"));
  EXPECT_THAT(refused({.tp_size = 2, .num_kv_heads = 4, .block_size = 8}),
              HasSubstr("block_size: 8 here and 16 there"));
  EXPECT_THAT(refused({.tp_size = 0, .num_kv_heads = 4, .block_size = 16}),
              HasSubstr("tp_size: 0"));
  EXPECT_EQ(refused({.tp_size = 8, .num_kv_heads = 4, .block_size = 64}), "good");
}

TEST(TransferPlan, EqualShapesMoveWholeBlocks) {
  const EngineShape shape{.tp_size = 2, .num_kv_heads = 8, .block_size = 16};
  const BlockRuns whole{.offsets = {0}, .length = 2 * 4 * 16};
  const auto paired = paired_ranks(shape, shape, Rank(1));
  ASSERT_THAT(paired, ElementsAre(PairedRank{.remote = Rank(1), .num_heads = 4}));
  EXPECT_EQ(plan_block(shape, shape, paired[0]), (BlockPlan{.remote = whole, .local = whole}));
}

// Region-major, blocks ascending, as vLLM's ids.
TEST(TransferPlan, DescriptorsStandWhereVllmCountsThem) {  // desc_ids
  const EngineShape shape{.tp_size = 1, .num_kv_heads = 1, .block_size = 1};
  const std::vector<KvRegion> regions{{.base_address = 1000, .block_len_bytes = 8},
                                      {.base_address = 5000, .block_len_bytes = 8}};
  const auto descriptors = run_descriptors(regions, 10, shape, {.offsets = {0}, .length = 2});
  EXPECT_EQ(descriptors.size(), 20u);
  EXPECT_EQ(descriptors[3].address, 1000u + 3 * 8);
  EXPECT_EQ(descriptors[17].address, 5000u + 7 * 8);
  EXPECT_EQ(descriptors[17].length_bytes, 8u);
}

// A byte by its meaning: K or V, head of the model, token.
std::uint32_t meaning(std::uint32_t half, std::uint32_t head, std::uint32_t token) {
  return half * 10'000 + head * 100 + token;
}

// The blocks of one rank, as `tokens` tokens lie in them.
std::vector<std::uint32_t> rank_memory(const EngineShape& shape, Rank rank, std::uint32_t tokens) {
  std::vector<std::uint32_t> memory;
  for (std::uint32_t first = 0; first < tokens; first += shape.block_size) {
    for (std::uint32_t half = 0; half < 2; ++half) {
      for (std::uint32_t head = 0; head < shape.heads_per_rank(); ++head) {
        for (std::uint32_t token = 0; token < shape.block_size; ++token) {
          memory.push_back(meaning(half, shape.first_head(rank) + head, first + token));
        }
      }
    }
  }
  return memory;
}

void expect_all_bytes_in_place(const EngineShape& local, const EngineShape& remote) {
  const std::uint32_t tokens = 2 * local.block_size;
  const auto units = [](const EngineShape& shape) {
    return 2 * shape.heads_per_rank() * shape.block_size;
  };
  for (std::uint32_t rank = 0; rank < local.tp_size; ++rank) {
    std::vector<std::uint32_t> ours(2 * units(local), 0xffff'ffff);
    for (const PairedRank& pair : paired_ranks(local, remote, Rank(rank))) {
      if (pair.num_heads == 0) continue;
      const BlockPlan plan = plan_block(local, remote, pair);
      const auto theirs = rank_memory(remote, pair.remote, tokens);
      const std::size_t runs = plan.remote.offsets.size();
      for (std::uint32_t block = 0; block * remote.block_size < tokens; ++block) {
        const std::uint32_t sub = block % plan.sub_blocks;
        for (std::size_t run = 0; run < runs; ++run) {
          for (std::uint32_t i = 0; i < plan.remote.length; ++i) {
            std::uint32_t& to = ours[block / plan.sub_blocks * units(local) +
                                     plan.local.offsets[sub * runs + run] + i];
            EXPECT_EQ(to, 0xffff'ffff) << "written twice";
            to = theirs[block * units(remote) + plan.remote.offsets[run] + i];
          }
        }
      }
    }
    EXPECT_EQ(ours, rank_memory(local, Rank(rank), tokens));
  }
}

TEST(TransferPlan, EveryByteOfEveryHeadArrivesAtItsPlaceOnce) {
  for (const std::uint32_t heads : kSizes) {
    for (const std::uint32_t remote_tp : kSizes) {
      for (const std::uint32_t local_tp : kSizes) {
        for (const std::uint32_t ratio : {1u, 2u, 4u}) {
          const EngineShape remote{.tp_size = remote_tp, .num_kv_heads = heads, .block_size = 4};
          const EngineShape local{
              .tp_size = local_tp, .num_kv_heads = heads, .block_size = 4 * ratio};
          SCOPED_TRACE(std::to_string(remote_tp) + " to " + std::to_string(local_tp) + ", " +
                       std::to_string(heads) + " heads, blocks 1:" + std::to_string(ratio));
          ASSERT_TRUE(check_shapes(local, remote));
          expect_all_bytes_in_place(local, remote);
          if (HasFailure()) return;
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvlease
