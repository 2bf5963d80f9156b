// What must hold for every body that a client sends: no crash, what was taken is within its bounds,
// and what is answered is JSON. The fuzzer runs this on new inputs, corpus_test.cc on the committed
// ones.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kvlease/base/bytes.h"
#include "kvlease/base/check.h"
#include "kvlease/serving/answers.h"
#include "kvlease/serving/completions_api.h"
#include "kvlease/synthetic/tokenizer.h"
#include "kvlease/wire/json_fields.h"
#include "kvlease/wire/kv_transfer_params.h"

namespace kvlease {

inline void check_is_json(std::string_view text) {
  std::optional<Error> problem;
  open_json(text, std::size_t{64} << 20, "the answer", problem);
  KVL_CHECK(!problem, "an answer is a JSON object");
}

inline void check_refusal(const Error& problem) {
  KVL_CHECK(!problem.message.empty() && problem.message.size() < 4096, "a refusal is short");
  KVL_CHECK(http_status(problem.code) == 400, "the client is told that it is its body");
  check_is_json(error_body(problem, 400));
}

inline bool is_token(TokenId token) { return token < kVocabularySize; }

inline void check_taken(const CompletionRequest& parsed) {
  const NewRequest& request = parsed.request;
  const SamplingParams& sampling = request.sampling;
  KVL_CHECK(!request.prompt_token_ids.empty(), "there is a prompt");
  KVL_CHECK(std::ranges::all_of(request.prompt_token_ids, is_token), "of the vocabulary");
  KVL_CHECK(std::ranges::all_of(sampling.stop_token_ids, is_token), "of the vocabulary");
  KVL_CHECK(sampling.stop_token_ids.size() <= 128, "L43");
  KVL_CHECK(sampling.max_tokens >= 1 && sampling.min_tokens <= sampling.max_tokens, "in order");
  KVL_CHECK(parsed.stream || !parsed.include_usage, "the usage is a stream's last chunk");
  if (const auto& params = request.kv_transfer_params) {
    KVL_CHECK(!parsed.stream || !params->do_remote_decode, "a prefill has one piece");
    const std::string json = to_json(*params);
    KVL_CHECK(parse_kv_transfer_params(json, json.size()) == *params, "params have one meaning");
  }
}

// An answer with whatever of the client's is echoed, and more.
inline void check_answers(CompletionKind kind, const CompletionRequest& parsed) {
  CompletionAnswer answer{.kind = kind,
                          .id = parsed.model,
                          .model = parsed.model,
                          .created_seconds = 1,
                          .include_usage = true,
                          .num_prompt_tokens = parsed.request.prompt_token_ids.size()};
  answer.token_ids = tokenize(kOutputBytes);
  answer.finish_reason = FinishReason::kLength;
  answer.kv_transfer_params = parsed.request.kv_transfer_params;
  check_is_json(completion_body(answer));
  const std::string chunk = stream_chunk(answer, 1);
  KVL_CHECK(chunk.starts_with("data: ") && chunk.ends_with("\n\n"), "an event");
  KVL_CHECK(chunk.find('\n') == chunk.size() - 2, "of one line");
  check_is_json(std::string_view(chunk).substr(6));
}

inline void check_completion_request(std::string_view body) {
  for (const CompletionKind kind : {CompletionKind::kCompletion, CompletionKind::kChat}) {
    std::optional<Error> problem;
    const CompletionRequest parsed = parse_completion_request(kind, body, problem);
    std::optional<Error> second;
    const CompletionRequest again = parse_completion_request(kind, body, second);
    KVL_CHECK(problem.has_value() == second.has_value(), "a body has one meaning");
    KVL_CHECK(parsed.request.prompt_token_ids == again.request.prompt_token_ids, "one meaning");
    if (problem) {
      check_refusal(*problem);
    } else {
      check_taken(parsed);
      check_answers(kind, parsed);
    }
  }
}

}  // namespace kvlease
