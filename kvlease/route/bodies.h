// The JSON bodies that a router sends on: a client's request as the prefill and the decode instance
// get it, and the hand-off that the first one answers with. What is not the router's to change
// keeps its bytes. Source: vLLM's proxy flow (docs/vllm-wire.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvlease/base/ids.h"
#include "kvlease/base/result.h"
#include "kvlease/base/time.h"
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
  // Errors: as JsonEdit::open; kInvalidArgument for kv_transfer_params that are not what a decode
  // instance holds for the next turn (L39), and for a conversation_id that is no text.
  static Result<ClientBody> parse(std::string body);

  // `conversation_id`, which goes to no instance; empty: none.
  const std::string& conversation() const { return conversation_; }
  // The kv_transfer_params of the answer before, when the client carries them itself.
  const std::optional<std::string>& held_params() const { return held_params_; }

  // For P: one token, in one piece, a lease on its KV, and what D holds for this turn, if anything.
  std::string prefill_body(const std::optional<std::string>& held_params) const;
  // For D, with the object that P answered with.
  std::string decode_body(std::string_view kv_transfer_params) const;
  // For a D that computes the prompt itself: as the client sent it, byte for byte but for what is
  // no instance's.
  const std::string& alone_body() const { return alone_body_; }

  // A hash of how the prompt or the first messages begin (of 1 KiB): alike for requests that could
  // share a prefix cache.
  std::uint64_t prefix_hash() const;

 private:
  explicit ClientBody(JsonEdit fields) : fields_(std::move(fields)) {}

  JsonEdit fields_;
  std::string alone_body_;
  std::string conversation_;
  std::optional<std::string> held_params_;
};

// Watches an answer go by, whole or as server-sent events, for the kv_transfer_params in it: what D
// holds for the next turn.
class ParamsWatch {
 public:
  void feed(std::string_view piece);
  // The last ones that were seen. Requires: the whole answer was fed.
  std::optional<std::string> params() const;

 private:
  void look_into(std::string_view json);

  std::string text_;  // since the last event's end
  bool gave_up_ = false;
  std::optional<std::string> params_;
};

// What P hands to D.
struct Handoff {
  std::string kv_transfer_params;  // for D
  // What the router keeps alive and releases (L2, L10): leases of P's that are ours, which have a
  // `kvlease` object; vLLM's P knows neither call.
  std::optional<LeaseId> lease;
  Duration renew_interval{};  // with a lease; > 0
  std::size_t blocks = 0;     // of P, in all groups
  ReleaseBy release_by = ReleaseBy::kDecoder;
  bool operator==(const Handoff&) const = default;
};

// Takes the hand-off out of P's answer; nullopt when there is none in it. The params are verbatim
// but for `release_by`, which is set only for kRouter and only inside a `kvlease` object that P
// sent: another P's leases are its own decoder's to release (L33).
std::optional<Handoff> take_handoff(std::string_view prefill_answer, ReleaseBy release_by);

}  // namespace kvlease
