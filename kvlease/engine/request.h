// What goes into an engine and what comes out of it: a new request, its sampling parameters, and
// the outputs that it yields until the last one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvlease/base/ids.h"
#include "kvlease/connector/scheduler_connector.h"

namespace kvlease {

struct SamplingParams {
  std::uint32_t max_tokens = 16;
  std::uint32_t min_tokens = 0;  // before them nothing but max_tokens ends the request
  std::vector<TokenId> stop_token_ids;
  bool ignore_eos = false;
};

struct NewRequest {
  std::string client_id;  // X-Request-Id or the server's own; need not be unique (L45)
  std::vector<TokenId> prompt_token_ids;
  SamplingParams sampling;
  std::vector<std::string> cache_keys;  // what else keys the prefix cache: LoRA name, salt, … (L52)
  std::optional<KvTransferParams> kv_transfer_params;
};

enum class FinishReason : std::uint8_t {
  kStop,    // the end-of-text token or a stop token; it is the last of the output's tokens
  kLength,  // max_tokens, or the longest sequence that the engine holds
  kAbort,   // abort() was called
  kError,   // see error_message
};
// `stop`, `length`, `abort`, `error`, as in the API.
std::string_view finish_reason_name(FinishReason reason);

// What one step did for one request. Every request that was added gets exactly one output with a
// finish_reason, its last.
struct RequestOutput {
  RequestId request;
  std::vector<TokenId> new_token_ids;
  std::optional<FinishReason> finish_reason;
  std::string error_message;                           // for kError
  std::optional<KvTransferParams> kv_transfer_params;  // with the last output of a leased prefill
  std::uint32_t num_cached_tokens = 0;  // of the prompt, not computed here: found or received
};

}  // namespace kvlease
