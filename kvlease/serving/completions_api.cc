// Implements completions_api.h.
#include "kvlease/serving/completions_api.h"

#include <limits>
#include <optional>
#include <utility>

#include "kvlease/synthetic/tokenizer.h"
#include "kvlease/wire/json_fields.h"
#include "kvlease/wire/kv_transfer_params.h"

namespace kvlease {
namespace {

constexpr std::size_t kBodyBytesMax = 32u << 20;
constexpr std::size_t kTransferParamsBytesMax = 16u << 20;
constexpr std::size_t kStopTokensMax = 128;
constexpr std::string_view kPromptAllowed = "a string that is not empty, or an array of token ids";

// A prompt is text or token ids, as in vLLM; a batch of several prompts is not taken.
std::optional<std::vector<TokenId>> parse_prompt(std::string_view json) {
  if (const auto text = json_string(json)) return tokenize(*text);
  const auto elements = json_array(json);
  if (!elements) return std::nullopt;
  std::vector<TokenId> tokens;
  for (const std::string_view element : *elements) {
    const auto token = json_integer(element, {.max = kVocabularySize - 1});
    if (!token) return std::nullopt;
    tokens.push_back(static_cast<TokenId>(*token));
  }
  return tokens;
}

void read_prompt(JsonObject& body, std::optional<Error>& problem, std::vector<TokenId>& out) {
  const auto it = body.rest().find("prompt");
  const std::string_view json = it == body.rest().end() ? "null" : it->second;
  auto tokens = parse_prompt(json);
  if (!tokens || tokens->empty()) {
    if (!problem) body.refuse("prompt", json, kPromptAllowed);
    return;
  }
  out = std::move(*tokens);
}

void read_stop_tokens(JsonObject& body, std::vector<TokenId>& out) {
  const auto elements = body.array("stop_token_ids", false, "an array of token ids");
  if (!elements) return;
  if (elements->size() > kStopTokensMax) {
    return body.refuse("stop_token_ids", std::to_string(elements->size()) + " ids",
                       "at most " + std::to_string(kStopTokensMax));
  }
  for (const std::string_view element : *elements) {
    const auto token = json_integer(element, {.max = kVocabularySize - 1});
    if (!token) return body.refuse("stop_token_ids", element, "token ids of the vocabulary");
    out.push_back(static_cast<TokenId>(*token));
  }
}

// What a client may ask for elsewhere and does not get here is refused, not ignored.
void refuse_unsupported(JsonObject& body) {
  std::optional<bool> stream;
  body.boolean("stream", stream);
  if (stream.value_or(false)) body.refuse("stream", "true", "false: answers come in one piece");
  std::optional<std::uint32_t> n;
  body.integer("n", {.min = 1, .max = 1}, n);
}

void read_transfer_params(JsonObject& body, std::optional<Error>& problem,
                          std::optional<KvTransferParams>& out) {
  const auto it = body.rest().find("kv_transfer_params");
  if (it == body.rest().end() || it->second == "null") return;
  auto params = parse_kv_transfer_params(it->second, kTransferParamsBytesMax);
  if (params) {
    out = std::move(*params);
  } else if (!problem) {
    problem = params.error();
  }
}

}  // namespace

CompletionRequest parse_completion_request(std::string_view text, std::optional<Error>& problem) {
  JsonObject body = open_json(text, kBodyBytesMax, "the request body", problem);
  CompletionRequest parsed;
  std::optional<std::string> model;
  std::optional<std::uint32_t> max_tokens;
  std::optional<bool> ignore_eos;
  read_prompt(body, problem, parsed.request.prompt_token_ids);
  body.string("model", kAnyText, model);
  body.integer("max_tokens", {.min = 1, .max = std::numeric_limits<std::uint32_t>::max()},
               max_tokens);
  body.boolean("ignore_eos", ignore_eos);
  read_stop_tokens(body, parsed.request.sampling.stop_token_ids);
  refuse_unsupported(body);
  read_transfer_params(body, problem, parsed.request.kv_transfer_params);
  parsed.model = model.value_or("");
  parsed.request.sampling.max_tokens = max_tokens.value_or(parsed.request.sampling.max_tokens);
  parsed.request.sampling.ignore_eos = ignore_eos.value_or(false);
  return parsed;
}

std::string completion_body(const CompletionAnswer& answer) {
  JsonWriter choice;
  choice.integer("index", 0);
  choice.string("text", detokenize(answer.token_ids));
  choice.json("token_ids",
              json_array_of(answer.token_ids, [](TokenId token) { return std::to_string(token); }));
  choice.string("finish_reason", finish_reason_name(answer.finish_reason));
  JsonWriter details;
  details.integer("cached_tokens", answer.num_cached_tokens);
  JsonWriter usage;
  usage.integer("prompt_tokens", answer.num_prompt_tokens);
  usage.integer("completion_tokens", answer.token_ids.size());
  usage.integer("total_tokens", answer.num_prompt_tokens + answer.token_ids.size());
  usage.json("prompt_tokens_details", details.take());
  JsonWriter body;
  body.string("id", answer.id);
  body.string("object", "text_completion");
  body.integer("created", static_cast<std::uint64_t>(answer.created_seconds));
  body.string("model", answer.model);
  body.json("choices", "[" + choice.take() + "]");
  body.json("usage", usage.take());
  if (answer.kv_transfer_params) {
    body.json("kv_transfer_params", to_json(*answer.kv_transfer_params));
  }
  return body.take();
}

}  // namespace kvlease
