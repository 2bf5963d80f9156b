// How an engine runs its model: one forward at a time, launched with everything it needs and polled
// for its output, so that the loop turns on while the model computes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "kvlease/base/ids.h"
#include "kvlease/base/time.h"

namespace kvlease {

// One request's part of a forward: the tokens from num_computed_tokens to the end of token_ids.
struct BatchItem {
  RequestId request;
  std::vector<TokenId> token_ids;  // the sequence from its first token on
  std::uint32_t num_computed_tokens = 0;
  // The KV of so many tokens is in the blocks already and must not be written again: the block may
  // be shared. More than num_computed_tokens only when the last token is recomputed for its output
  // alone.
  std::uint32_t num_tokens_with_kv = 0;
  std::vector<BlockId> block_ids;  // of the sequence, from its first token on
  bool sample = false;             // whether the token after token_ids is wanted

  std::size_t num_new_tokens() const { return token_ids.size() - num_computed_tokens; }
};

struct Batch {
  std::vector<BatchItem> items;
};

// By item of the batch: the next token where one was asked for.
struct ModelOutput {
  std::vector<std::optional<TokenId>> sampled_token_ids;
};

class ModelRunner {
 public:
  virtual ~ModelRunner() = default;

  // Starts a forward. Its blocks may be written until poll() has returned its output (L26).
  // Requires: none is in flight; at least one item, each with at least one new token.
  virtual void launch(Batch batch, Instant now) = 0;

  // The output of the forward in flight, once, when it is done. Never blocks.
  virtual std::optional<ModelOutput> poll(Instant now) = 0;

  // When to poll next; kNever when nothing is in flight or something else wakes the loop.
  virtual Instant next_deadline() const = 0;
};

}  // namespace kvlease
