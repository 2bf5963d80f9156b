// The OpenAI-style API as values: the bodies of /v1/completions and /v1/chat/completions into a
// NewRequest, and an answer into one body or the pieces of a stream, in vLLM's forms.
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

enum class CompletionKind : std::uint8_t { kCompletion, kChat };

struct CompletionRequest {
  NewRequest request;  // client_id is empty: the header X-Request-Id or the server gives it
  std::string model;   // as the client named it; empty when it named none
  bool stream = false;
  bool include_usage = false;  // a last chunk with the usage
};

// Reads what can be read; `problem` is set to the first thing that is wrong (kInvalidArgument,
// naming the field, its value and what it may be). So a request that is refused can still tell P
// (L33; B07). What would change the shape of the answer and is not there is refused; other fields
// that we do not know are ignored, for proxies add some.
//
// A chat becomes the prompt `<|role|>\ncontent\n` of each message and, last, `<|assistant|>\n`.
CompletionRequest parse_completion_request(CompletionKind kind, std::string_view body,
                                           std::optional<Error>& problem);

struct CompletionAnswer {
  CompletionKind kind = CompletionKind::kCompletion;
  std::string id;
  std::string model;
  std::int64_t created_seconds = 0;  // of the Unix epoch
  bool include_usage = false;
  std::size_t num_prompt_tokens = 0;
  std::uint32_t num_cached_tokens = 0;
  std::vector<TokenId> token_ids;
  std::optional<FinishReason> finish_reason;
  std::optional<KvTransferParams> kv_transfer_params;
};

// The whole answer. Requires: it is finished.
std::string completion_body(const CompletionAnswer& answer);

// The pieces of a stream, server-sent events each: what a chat begins with ("" for a completion),
// the tokens since `first_token` (with the reason and the params when it is finished), and what
// ends it.
std::string stream_head(const CompletionAnswer& answer);
std::string stream_chunk(const CompletionAnswer& answer, std::size_t first_token);
std::string stream_end(const CompletionAnswer& answer);
// One event with any JSON, for an error in mid-stream.
std::string stream_event(std::string_view json);

// The body of GET /v1/models.
std::string models_body(std::string_view model, std::int64_t created_seconds,
                        std::uint32_t max_model_len);

}  // namespace kvlease
