// The OpenAI-style completions API as values: a request's body into a NewRequest, an answer's parts
// into a body.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvlease/base/ids.h"
#include "kvlease/base/result.h"
#include "kvlease/engine/request.h"

namespace kvlease {

struct CompletionRequest {
  NewRequest request;  // client_id is empty: the header X-Request-Id or the server gives it
  std::string model;   // as the client named it; empty when it named none
};

// Reads what can be read; `problem` is set to the first thing that is wrong (kInvalidArgument,
// naming the field, its value and what it may be). So a request that is refused can still tell P
// (L33; B07).
CompletionRequest parse_completion_request(std::string_view body, std::optional<Error>& problem);

struct CompletionAnswer {
  std::string id;
  std::string model;
  std::int64_t created_seconds = 0;  // of the Unix epoch
  std::size_t num_prompt_tokens = 0;
  std::uint32_t num_cached_tokens = 0;
  std::vector<TokenId> token_ids;
  FinishReason finish_reason = FinishReason::kLength;
  std::optional<KvTransferParams> kv_transfer_params;
};
std::string completion_body(const CompletionAnswer& answer);

}  // namespace kvlease
