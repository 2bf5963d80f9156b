// The JSON bodies that a router sends on: a client's request as the prefill and the decode instance
// get it, and the hand-off that the first one answers with. What is not the router's to change
// keeps its bytes. Source: spec of vLLM's connector, sections 2.2 and 2.4 (docs/protocol.md).
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvlease/base/ids.h"
#include "kvlease/base/result.h"
#include "kvlease/wire/kv_transfer_params.h"

namespace kvlease {

inline constexpr std::size_t kRoutedBodyBytesMax = std::size_t{32} << 20;  // L43

// A JSON object whose members can be replaced, added and taken out; the others keep their order
// and, from the key's opening quote to the value's end, their bytes.
class JsonEdit {
 public:
  // Errors: kInvalidArgument for what is no JSON object, is longer than kRoutedBodyBytesMax, or has
  // a field twice. `what` names the text in messages.
  static Result<JsonEdit> open(std::string text, std::string_view what);

  // The value's text; nullopt when there is no such member.
  std::optional<std::string_view> find(std::string_view name) const;
  // Replaces the value where it stands, or adds the member as the last one.
  void set(std::string_view name, std::string_view value);
  void remove(std::string_view name);

  std::string text() const;

 private:
  struct Member {
    std::string name;   // decoded
    std::string key;    // as it stood, up to the value
    std::string value;  // as it stands
  };
  std::vector<Member> members_;  // in their order
};

// What a client asked for.
class ClientBody {
 public:
  // Errors: as JsonEdit::open; kInvalidArgument when it brings kv_transfer_params of its own.
  static Result<ClientBody> parse(std::string body);

  // For P: one token, in one piece, and a lease on its KV.
  std::string prefill_body() const;
  // For D, with the object that P answered with.
  std::string decode_body(std::string_view kv_transfer_params) const;
  // As the client sent it, byte for byte: for a D that computes the prompt itself.
  const std::string& original() const { return original_; }

 private:
  ClientBody(std::string original, JsonEdit fields)
      : original_(std::move(original)), fields_(std::move(fields)) {}

  std::string original_;
  JsonEdit fields_;
};

// What P hands to D.
struct Handoff {
  std::string kv_transfer_params;  // for D
  std::optional<LeaseId> lease;    // what the router would release (L10)
  ReleaseBy release_by = ReleaseBy::kDecoder;
  bool operator==(const Handoff&) const = default;
};

// Takes the hand-off out of P's answer; nullopt when there is none in it. The params are verbatim
// but for `release_by`, which is set only for kRouter and only inside a `kvlease` object that P
// sent: another P's leases are its own decoder's to release (L33).
std::optional<Handoff> take_handoff(std::string_view prefill_answer, ReleaseBy release_by);

}  // namespace kvlease
