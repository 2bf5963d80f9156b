// What must hold for every body that goes through a router, whatever it is: no crash, what is not
// the router's to change keeps its bytes, and what it makes is understood. The fuzzers run this on
// new inputs, corpus_test.cc on the committed ones.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kvlease/base/bytes.h"
#include "kvlease/base/check.h"
#include "kvlease/base/prng.h"
#include "kvlease/route/bodies.h"
#include "kvlease/wire/json_fields.h"

namespace kvlease {

// The fields of an object that is one.
inline JsonObject::Fields json_fields_of(std::string_view json) {
  std::optional<Error> problem;
  const JsonObject object = open_json(json, 2 * kRoutedBodyBytesMax, "a body", problem);
  KVL_CHECK(!problem, "what a router makes is a JSON object");
  return object.rest();
}

// Every field of `from` but the named ones stands in `to` with the same bytes.
inline void check_same_but(std::string_view from, std::string_view to,
                           std::initializer_list<std::string_view> changed) {
  const JsonObject::Fields sent = json_fields_of(to);
  for (const auto& [name, value] : json_fields_of(from)) {
    if (std::ranges::count(changed, std::string_view(name)) > 0) continue;
    const auto found = sent.find(name);
    KVL_CHECK(found != sent.end() && found->second == value, "other fields keep their bytes");
  }
}

inline void check_client_body(std::string_view json) {
  const std::string params = "kv_transfer_params";
  const Result<ClientBody> body = ClientBody::parse(std::string(json));
  if (!body) {
    KVL_CHECK(body.error().message.size() < 4096, "a refusal is short");
    return;
  }
  const std::string prefill = body->prefill_body(body->held_params());
  const std::string decode = body->decode_body("{}");
  const std::string& alone = body->alone_body();
  const JsonObject::Fields asked = json_fields_of(prefill);
  KVL_CHECK(asked.at("stream") == "false" && asked.at("max_tokens") == "1" && asked.at("n") == "1",
            "a prefill has one token, in one piece");
  KVL_CHECK(json_fields_of(asked.at(params)).contains("do_remote_decode"), "L1");
  KVL_CHECK(json_fields_of(decode).at(params) == "{}", "D gets the params");
  for (const std::string_view sent :
       {std::string_view(prefill), std::string_view(decode), std::string_view(alone)}) {
    KVL_CHECK(!json_fields_of(sent).contains("conversation_id"), "it goes to no instance");
  }
  KVL_CHECK(body->conversation().size() <= 256, "L43");
  check_same_but(json, alone, {"conversation_id", params});
  check_same_but(alone, decode, {params});
  check_same_but(alone, prefill,
                 {params, "stream", "max_tokens", "max_completion_tokens", "n", "stream_options",
                  "min_tokens", "min_completion_tokens"});
  const Result<ClientBody> again = ClientBody::parse(alone);
  KVL_CHECK(again && again->alone_body() == alone, "a router behind a router changes no more");
}

inline void check_handoff(std::string_view answer) {
  const auto handoff = take_handoff(answer, ReleaseBy::kDecoder);
  const auto ours = take_handoff(answer, ReleaseBy::kRouter);
  KVL_CHECK(handoff.has_value() == ours.has_value(), "there is a hand-off or there is none");
  if (!handoff) return;
  KVL_CHECK(handoff->release_by == ReleaseBy::kDecoder, "L33");
  KVL_CHECK(handoff->lease == ours->lease, "it is the same lease");
  KVL_CHECK(answer.find(handoff->kv_transfer_params) != std::string_view::npos, "verbatim");
  check_same_but(handoff->kv_transfer_params, ours->kv_transfer_params, {"kvlease"});
  if (ours->release_by == ReleaseBy::kRouter) {  // L33
    const auto before = json_fields_of(handoff->kv_transfer_params);
    const auto after = json_fields_of(ours->kv_transfer_params);
    const std::string_view reference = after.at("kvlease");
    KVL_CHECK(json_fields_of(reference).at("release_by") == R"("router")",
              "P is told who releases");
    check_same_but(before.at("kvlease"), reference, {"release_by"});
  } else {
    KVL_CHECK(*ours == *handoff, "another P's params stay as they are");
  }
  for (const std::string& params : {handoff->kv_transfer_params, ours->kv_transfer_params}) {
    const auto parsed = parse_kv_transfer_params(params, params.size());
    const auto before = parse_kv_transfer_params(handoff->kv_transfer_params, params.size());
    KVL_CHECK(!before || parsed, "release_by makes no params worse");
  }
}

// The same params, however the answer comes in pieces.
inline void check_watch(std::string_view answer) {
  ParamsWatch whole;
  whole.feed(answer);
  ParamsWatch pieces;
  Prng prng(answer.size());
  for (std::string_view rest = answer; !rest.empty();) {
    const std::size_t size = 1 + prng.below(std::min<std::size_t>(rest.size(), 32));
    pieces.feed(rest.substr(0, std::min(size, rest.size())));
    rest.remove_prefix(std::min(size, rest.size()));
  }
  KVL_CHECK(pieces.params() == whole.params(), "pieces make a whole");
  if (const auto params = whole.params()) {
    KVL_CHECK(answer.find(*params) != std::string_view::npos && *params != "null", "verbatim");
  }
}

inline void check_answer(std::string_view answer) {
  check_handoff(answer);
  check_watch(answer);
}

}  // namespace kvlease
