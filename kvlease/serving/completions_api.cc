// Implements completions_api.h.
#include "kvlease/serving/completions_api.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "kvlease/base/check.h"
#include "kvlease/synthetic/tokenizer.h"
#include "kvlease/wire/json_fields.h"
#include "kvlease/wire/kv_transfer_params.h"

namespace kvlease {
namespace {

constexpr std::size_t kBodyBytesMax = 32u << 20;
constexpr std::size_t kTransferParamsBytesMax = 16u << 20;
constexpr std::size_t kStopTokensMax = 128;
constexpr std::size_t kMessagesMax = 4096;
constexpr std::size_t kContentPartsMax = 1024;
constexpr std::uint32_t kTokensMax = std::numeric_limits<std::uint32_t>::max();
constexpr std::string_view kPromptAllowed = "a string that is not empty, or an array of token ids";
constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};

// --- requests
// ------------------------------------------------------------------------------------

// Fields that would change the shape of the answer, and what they may hold here, beside null.
struct Unsupported {
  std::string_view name;
  std::string_view harmless[2];
};
constexpr Unsupported kUnsupported[] = {
    {"best_of", {"1", "1"}},
    {"echo", {"false", "false"}},
    {"logprobs", {"false", "false"}},
    {"prompt_logprobs", {"0", "0"}},
    {"top_logprobs", {"0", "0"}},
    {"suffix", {R"("")", R"("")"}},
    {"stop", {R"("")", "[]"}},
    {"tools", {"[]", "[]"}},
    {"functions", {"[]", "[]"}},
    {"tool_choice", {R"("none")", R"("auto")"}},
    {"audio", {"null", "null"}},
    {"response_format", {R"({"type":"text"})", R"({"type": "text"})"}},
};

void refuse_unsupported(JsonObject& body) {
  std::optional<std::uint32_t> n;
  body.integer("n", {.min = 1, .max = 1}, n);
  for (const Unsupported& field : kUnsupported) {
    const auto it = body.rest().find(field.name);
    if (it == body.rest().end() || it->second == "null") continue;
    if (std::ranges::count(field.harmless, it->second) > 0) continue;
    body.refuse(field.name, it->second, "nothing else than " + std::string(field.harmless[0]));
  }
}

// Fields that the synthetic model has no use for; what they hold is checked all the same, as vLLM
// does (its SamplingParams).
struct SamplingRule {
  std::string_view name;
  std::string_view allowed;
  bool (*accepts)(double value);
};
constexpr SamplingRule kSamplingRules[] = {
    {"temperature", "a number of 0 at least", [](double x) { return x >= 0; }},
    {"top_p", "a number above 0 and at most 1", [](double x) { return x > 0 && x <= 1; }},
    {"top_k", "-1, 0 or an integer of 1 at least",
     [](double x) { return x >= -1 && x == std::floor(x); }},
    {"min_p", "a number from 0 to 1", [](double x) { return x >= 0 && x <= 1; }},
    {"presence_penalty", "a number from -2 to 2", [](double x) { return x >= -2 && x <= 2; }},
    {"frequency_penalty", "a number from -2 to 2", [](double x) { return x >= -2 && x <= 2; }},
    {"repetition_penalty", "a number above 0", [](double x) { return x > 0; }},
};

void read_sampling(JsonObject& body, SamplingParams& sampling) {
  for (const SamplingRule& rule : kSamplingRules) {
    const auto json = body.take_json(rule.name, false, rule.allowed);
    if (!json) continue;
    const std::optional<double> value = json_number(*json);
    if (!value || !rule.accepts(*value)) body.refuse(rule.name, *json, rule.allowed);
  }
  std::optional<bool> ignore_eos;
  std::optional<std::uint32_t> min_tokens;
  body.boolean("ignore_eos", ignore_eos);
  body.integer("min_tokens", {.max = kTokensMax}, min_tokens);
  sampling.ignore_eos = ignore_eos.value_or(false);
  sampling.min_tokens = min_tokens.value_or(0);
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

void read_stream(JsonObject& body, CompletionRequest& out) {
  std::optional<bool> stream;
  body.boolean("stream", stream);
  out.stream = stream.value_or(false);
  if (auto options = body.object("stream_options", false)) {
    std::optional<bool> include_usage;
    options->boolean("include_usage", include_usage);
    out.include_usage = out.stream && include_usage.value_or(false);
  }
  const auto& params = out.request.kv_transfer_params;
  if (out.stream && params && params->do_remote_decode) {
    body.refuse("stream", "true", "false for a prefill (do_remote_decode): it has one token");
  }
}

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

void read_prompt(JsonObject& body, std::optional<Error>& problem, NewRequest& out) {
  const auto it = body.rest().find("prompt");
  const std::string_view json = it == body.rest().end() ? "null" : it->second;
  auto tokens = parse_prompt(json);
  if (!tokens || tokens->empty()) {
    if (!problem) body.refuse("prompt", json, kPromptAllowed);
    return;
  }
  out.prompt_token_ids = std::move(*tokens);
}

// Text, or parts of it; an assistant that called a tool has none.
std::string read_content(JsonObject& message) {
  const auto it = message.rest().find("content");
  const std::string_view json = it == message.rest().end() ? "null" : it->second;
  if (json == "null") return "";
  if (auto text = json_string(json)) return *std::move(text);
  std::string text;
  for (JsonObject& part : message.objects("content", kContentPartsMax)) {
    std::string type;
    std::string piece;
    part.string("type", kAnyText, type);
    if (type != "text") {
      part.refuse("type", quoted(type), R"("text")");
      break;
    }
    part.string("text", kAnyText, piece);
    text += piece;
  }
  return text;
}

void read_messages(JsonObject& body, std::optional<Error>& problem, NewRequest& out) {
  std::string prompt;
  for (JsonObject& message : body.objects("messages", kMessagesMax)) {
    std::string role;
    message.choice("role", kRoles, role);
    prompt += "<|" + role + "|>\n" + read_content(message) + "\n";
  }
  if (!problem) out.prompt_token_ids = tokenize(prompt + "<|assistant|>\n");
}

// --- answers
// -------------------------------------------------------------------------------------

std::string usage_json(const CompletionAnswer& answer) {
  JsonWriter details;
  details.integer("cached_tokens", answer.num_cached_tokens);
  JsonWriter usage;
  usage.integer("prompt_tokens", answer.num_prompt_tokens);
  usage.integer("completion_tokens", answer.token_ids.size());
  usage.integer("total_tokens", answer.num_prompt_tokens + answer.token_ids.size());
  usage.json("prompt_tokens_details", details.take());
  return usage.take();
}

JsonWriter begin_body(const CompletionAnswer& answer, std::string_view object) {
  JsonWriter body;
  body.string("id", answer.id);
  body.string("object", object);
  body.integer("created", static_cast<std::uint64_t>(answer.created_seconds));
  body.string("model", answer.model);
  return body;
}

void write_finish_reason(JsonWriter& choice, const std::optional<FinishReason>& reason) {
  if (reason) {
    choice.string("finish_reason", finish_reason_name(*reason));
  } else {
    choice.null("finish_reason");
  }
}

std::string token_ids_json(std::span<const TokenId> tokens) {
  return json_array_of(tokens, [](TokenId token) { return std::to_string(token); });
}

// What one choice says: text in a completion, a message or a delta of it in a chat.
std::string choice_json(const CompletionAnswer& answer, std::size_t first_token,
                        std::string_view chat_field) {
  const auto tokens = std::span(answer.token_ids).subspan(first_token);
  JsonWriter choice;
  choice.integer("index", 0);
  if (answer.kind == CompletionKind::kChat) {
    JsonWriter message;
    if (chat_field == "message") message.string("role", "assistant");
    message.string("content", detokenize(tokens));
    choice.json(chat_field, message.take());
  } else {
    choice.string("text", detokenize(tokens));
  }
  choice.null("logprobs");
  write_finish_reason(choice, answer.finish_reason);
  choice.json("token_ids", token_ids_json(tokens));
  return choice.take();
}

std::string chunk_event(const CompletionAnswer& answer, const std::string& choices,
                        std::string_view usage) {
  JsonWriter body = begin_body(
      answer, answer.kind == CompletionKind::kChat ? "chat.completion.chunk" : "text_completion");
  body.json("choices", "[" + choices + "]");
  if (answer.include_usage) body.json("usage", usage);
  if (answer.finish_reason && answer.kv_transfer_params && !choices.empty()) {
    body.json("kv_transfer_params", to_json(*answer.kv_transfer_params));
  }
  return stream_event(body.take());
}

}  // namespace

CompletionRequest parse_completion_request(CompletionKind kind, std::string_view text,
                                           std::optional<Error>& problem) {
  JsonObject body = open_json(text, kBodyBytesMax, "the request body", problem);
  CompletionRequest parsed;
  NewRequest& request = parsed.request;
  const bool chat = kind == CompletionKind::kChat;
  if (chat) {
    read_messages(body, problem, request);
  } else {
    read_prompt(body, problem, request);
  }
  std::optional<std::string> model;
  body.string("model", kAnyText, model);
  std::optional<std::uint32_t> max_tokens;
  body.integer("max_tokens", {.min = 1, .max = kTokensMax}, max_tokens);
  std::optional<std::uint32_t> max_completion_tokens;
  body.integer("max_completion_tokens", {.min = 1, .max = kTokensMax}, max_completion_tokens);
  read_sampling(body, request.sampling);
  read_stop_tokens(body, request.sampling.stop_token_ids);
  refuse_unsupported(body);
  read_transfer_params(body, problem, request.kv_transfer_params);
  read_stream(body, parsed);
  parsed.model = model.value_or("");
  // A chat that names no limit may fill what the sequence still holds, as in vLLM.
  const std::uint32_t unlimited = chat ? kTokensMax : request.sampling.max_tokens;
  request.sampling.max_tokens =
      chat && max_completion_tokens ? *max_completion_tokens : max_tokens.value_or(unlimited);
  if (request.sampling.min_tokens > request.sampling.max_tokens) {
    body.refuse("min_tokens", std::to_string(request.sampling.min_tokens),
                "at most max_tokens, " + std::to_string(request.sampling.max_tokens));
  }
  return parsed;
}

std::string completion_body(const CompletionAnswer& answer) {
  KVL_CHECK(answer.finish_reason.has_value(), "a whole answer is finished");
  JsonWriter body = begin_body(
      answer, answer.kind == CompletionKind::kChat ? "chat.completion" : "text_completion");
  body.json("choices", "[" + choice_json(answer, 0, "message") + "]");
  body.json("usage", usage_json(answer));
  if (answer.kv_transfer_params) {
    body.json("kv_transfer_params", to_json(*answer.kv_transfer_params));
  }
  return body.take();
}

std::string stream_head(const CompletionAnswer& answer) {
  if (answer.kind != CompletionKind::kChat) return "";
  JsonWriter delta;
  delta.string("role", "assistant");
  delta.string("content", "");
  JsonWriter choice;
  choice.integer("index", 0);
  choice.json("delta", delta.take());
  choice.null("logprobs");
  choice.null("finish_reason");
  return chunk_event(answer, choice.take(), "null");
}

std::string stream_chunk(const CompletionAnswer& answer, std::size_t first_token) {
  return chunk_event(answer, choice_json(answer, first_token, "delta"), "null");
}

std::string stream_end(const CompletionAnswer& answer) {
  std::string end = answer.include_usage ? chunk_event(answer, "", usage_json(answer)) : "";
  return end + stream_event("[DONE]");
}

std::string stream_event(std::string_view json) {
  return std::string("data: ").append(json).append("\n\n");
}

std::string models_body(std::string_view model, std::int64_t created_seconds,
                        std::uint32_t max_model_len) {
  JsonWriter entry;
  entry.string("id", model);
  entry.string("object", "model");
  entry.integer("created", static_cast<std::uint64_t>(created_seconds));
  entry.string("owned_by", "kvlease");
  entry.integer("max_model_len", max_model_len);
  JsonWriter body;
  body.string("object", "list");
  body.json("data", "[" + entry.take() + "]");
  return body.take();
}

}  // namespace kvlease
