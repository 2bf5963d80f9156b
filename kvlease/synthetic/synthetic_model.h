// The synthetic model: needs no weights, but its KV bytes are real. The bytes of a token are a
// function of the seed, their place in the model and all tokens up to it; the next token is a
// function of *all* KV bytes of the sequence, as they lie in memory. So one wrong, late, missing or
// misplaced byte changes the text, and equal texts mean that transfer, layout, lease and fence are
// right.
//
// The text does not depend on block ids, chunks, batches or the number of ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvlease/base/ids.h"
#include "kvlease/base/result.h"
#include "kvlease/base/time.h"
#include "kvlease/engine/model_runner.h"
#include "kvlease/synthetic/kv_layout.h"

namespace kvlease {

struct SyntheticConfig {
  KvLayout layout;
  std::uint64_t seed = 0;  // the model: another seed is another model
  // One output token in so many ends the text; 0: none does.
  std::uint32_t end_of_text_every = 0;
  // What a forward costs; 0: as fast as possible.
  Duration prefill_time_per_token{};
  Duration inter_token_latency{};
};

class SyntheticModel {
 public:
  // memory: by rank, layout.rank_bytes() each; outlives this. Requires: layout.check() succeeded.
  SyntheticModel(const SyntheticConfig& config, std::vector<std::span<std::byte>> memory);

  // Writes the KV of the batch's new tokens and samples where asked. O(bytes written + bytes of the
  // sampled sequences). Threads: any one at a time; touches only the blocks of the batch.
  ModelOutput compute(const Batch& batch);

  // prefill_time_per_token for each token of items with several, inter_token_latency once if there
  // is an item with one.
  Duration forward_time(const Batch& batch) const;

 private:
  void write_kv(const BatchItem& item);
  TokenId next_token(const BatchItem& item) const;
  // Where the tokens of one block begin in one head, in the memory of the rank that has the head.
  std::byte* head_of_block(std::uint32_t layer, BlockId block, std::uint32_t value,
                           std::uint32_t head, std::uint32_t replica) const;

  SyntheticConfig config_;
  std::vector<std::span<std::byte>> memory_;
};

}  // namespace kvlease
