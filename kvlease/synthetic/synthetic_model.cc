// Implements synthetic_model.h: the bytes of a token, and the token that follows from all bytes.
#include "kvlease/synthetic/synthetic_model.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kvlease/base/check.h"
#include "kvlease/base/prng.h"
#include "kvlease/synthetic/tokenizer.h"

namespace kvlease {
namespace {

// Fills `out` with a stream that `key` determines.
void fill(std::byte* out, std::size_t bytes, std::uint64_t key) {
  for (std::size_t done = 0; done < bytes; done += sizeof key) {
    const std::uint64_t word = mix64(key++);
    std::memcpy(out + done, &word, std::min(sizeof word, bytes - done));
  }
}

// Absorbs words; a change of one of them always changes the value, for each step is a bijection.
class Lanes {
 public:
  // Four lanes side by side, so that a sequence of megabytes is read at the speed of memory.
  void absorb(const std::byte* in, std::size_t bytes) {
    for (; bytes >= sizeof lanes_; bytes -= sizeof lanes_, in += sizeof lanes_) {
      std::uint64_t words[4];
      std::memcpy(words, in, sizeof words);
      for (int i = 0; i < 4; ++i) step(lanes_[i], words[i]);
    }
    while (bytes > 0) {
      const std::size_t part = std::min(bytes, sizeof(std::uint64_t));
      std::uint64_t word = 0;
      std::memcpy(&word, in, part);
      step(lanes_[0], word);
      bytes -= part;
      in += part;
    }
  }

  std::uint64_t value() const {
    std::uint64_t value = 0;
    for (const std::uint64_t lane : lanes_) value = mix64(value ^ lane);
    return value;
  }

 private:
  static void step(std::uint64_t& lane, std::uint64_t word) {
    lane = std::rotl((lane ^ word) * 0x9e3779b97f4a7c15u, 29);
  }

  std::uint64_t lanes_[4] = {1, 2, 3, 4};
};

}  // namespace

SyntheticModel::SyntheticModel(const SyntheticConfig& config,
                               std::vector<std::span<std::byte>> memory)
    : config_(config), memory_(std::move(memory)) {
  KVL_CHECK(config_.layout.check().has_value(), "the layout was checked where it came in");
  KVL_CHECK(memory_.size() == config_.layout.tp, "one memory for each rank");
  for (const std::span<std::byte> rank : memory_) {
    KVL_CHECK(rank.size() == config_.layout.rank_bytes(), "the memory of one rank's KV cache");
  }
}

ModelOutput SyntheticModel::compute(const Batch& batch) {
  ModelOutput output;
  for (const BatchItem& item : batch.items) {
    write_kv(item);
    output.sampled_token_ids.push_back(item.sample ? std::optional(next_token(item))
                                                   : std::nullopt);
  }
  return output;
}

Duration SyntheticModel::forward_time(const Batch& batch) const {
  std::size_t prefill_tokens = 0;
  bool decodes = false;
  for (const BatchItem& item : batch.items) {
    if (item.num_new_tokens() > 1) {
      prefill_tokens += item.num_new_tokens();
    } else {
      decodes = true;
    }
  }
  return config_.prefill_time_per_token * static_cast<Duration::rep>(prefill_tokens) +
         (decodes ? config_.inter_token_latency : Duration::zero());
}

std::byte* SyntheticModel::head_of_block(std::uint32_t layer, BlockId block, std::uint32_t value,
                                         std::uint32_t head, std::uint32_t replica) const {
  const KvLayout& layout = config_.layout;
  KVL_CHECK(block.value() < layout.num_blocks, "a block of this cache");
  const std::uint32_t rank = head / layout.heads_per_rank() * layout.replicas() + replica;
  return memory_[rank]
      .subspan(layout.offset({.layer = layer,
                              .block = block,
                              .value = value,
                              .head_of_rank = head % layout.heads_per_rank()}))
      .data();
}

void SyntheticModel::write_kv(const BatchItem& item) {
  const KvLayout& layout = config_.layout;
  const std::size_t first = std::max(item.num_computed_tokens, item.num_tokens_with_kv);
  std::uint64_t prefix = mix64(config_.seed);  // of all tokens up to the present one
  for (std::size_t position = 0; position < item.token_ids.size(); ++position) {
    prefix = mix64(prefix ^ item.token_ids[position]);
    if (position < first) continue;
    const BlockId block = item.block_ids[position / layout.block_size];
    const std::size_t in_head = position % layout.block_size * layout.head_bytes();
    std::uint64_t place = 0;
    for (std::uint32_t layer = 0; layer < layout.num_layers; ++layer) {
      for (std::uint32_t value = 0; value < 2; ++value) {
        for (std::uint32_t head = 0; head < layout.num_kv_heads; ++head) {
          ++place;
          for (std::uint32_t replica = 0; replica < layout.replicas(); ++replica) {
            fill(head_of_block(layer, block, value, head, replica) + in_head, layout.head_bytes(),
                 mix64(prefix + place));
          }
        }
      }
    }
  }
}

TokenId SyntheticModel::next_token(const BatchItem& item) const {
  const KvLayout& layout = config_.layout;
  Lanes lanes;
  for (std::uint32_t layer = 0; layer < layout.num_layers; ++layer) {
    for (std::size_t begin = 0; begin < item.token_ids.size(); begin += layout.block_size) {
      const BlockId block = item.block_ids[begin / layout.block_size];
      const std::size_t tokens =
          std::min<std::size_t>(layout.block_size, item.token_ids.size() - begin);
      for (std::uint32_t value = 0; value < 2; ++value) {
        for (std::uint32_t head = 0; head < layout.num_kv_heads; ++head) {
          const std::size_t bytes = tokens * layout.head_bytes();
          const std::byte* first = head_of_block(layer, block, value, head, 0);
          lanes.absorb(first, bytes);
          for (std::uint32_t replica = 1; replica < layout.replicas(); ++replica) {
            // The text must not depend on tp, and on every byte: a replica counts if it differs.
            const std::byte* other = head_of_block(layer, block, value, head, replica);
            if (std::memcmp(first, other, bytes) != 0) lanes.absorb(other, bytes);
          }
        }
      }
    }
  }
  const std::uint64_t hash = mix64(lanes.value() ^ config_.seed);
  if (config_.end_of_text_every > 0 && (hash >> 32) % config_.end_of_text_every == 0) {
    return kEndOfText;
  }
  return static_cast<unsigned char>(kOutputBytes[hash % kOutputBytes.size()]);
}

}  // namespace kvlease
