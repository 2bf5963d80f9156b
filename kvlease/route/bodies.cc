// Implements bodies.h by moving pieces of the text about; Boost.JSON has checked its syntax before.
#include "kvlease/route/bodies.h"

#include <algorithm>
#include <chrono>

#include "kvlease/base/prng.h"
#include "kvlease/wire/json_fields.h"

namespace kvlease {
namespace {

using Elements = std::vector<std::string_view>;

constexpr std::string_view kParams = "kv_transfer_params";
constexpr std::string_view kConversation = "conversation_id";
constexpr std::size_t kConversationBytesMax = 256;
constexpr std::size_t kPrefixBytes = 1024;
constexpr std::uint64_t kRenewIntervalMsMax = 86'400'000;  // a day is as good as never
constexpr std::string_view kEventData = "data: ";
constexpr std::string_view kEventEnd = "\n\n";
// Of one server-sent event, or of an answer in one piece (L43).
constexpr std::size_t kWatchedBytesMax = std::size_t{4} << 20;

// Asks P for a lease (spec of vLLM's connector, section 2.2).
constexpr std::string_view kRemoteDecode =
    R"({"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,)"
    R"("remote_block_ids":null,"remote_host":null,"remote_port":null})";

// What the router itself needs of P's params, whatever else is in them: a newer P's lease is kept
// alive as well.
void read_lease(std::string_view params, Handoff& handoff) {
  std::optional<Error> problem;
  JsonObject fields = open_json(params, kRoutedBodyBytesMax, kParams, problem);
  for (const std::string_view group :
       fields.array("remote_block_ids", false, "lists of ids").value_or(Elements{})) {
    handoff.blocks += json_array(group).value_or(Elements{}).size();
  }
  std::optional<LeaseId> lease;
  std::optional<std::uint64_t> interval_ms;
  fields.string("remote_request_id", kAnyText, lease);
  if (auto reference = fields.object("kvlease", false)) {
    reference->integer("heartbeat_interval_ms", {.min = 1}, interval_ms);
  }
  if (!lease || !interval_ms) return;
  handoff.lease = std::move(lease);
  handoff.renew_interval = std::chrono::milliseconds(std::min(*interval_ms, kRenewIntervalMsMax));
}

}  // namespace

Result<JsonEdit> JsonEdit::open(std::string text, std::string_view what) {
  std::optional<Error> problem;
  const JsonObject object = open_json(text, kRoutedBodyBytesMax, what, problem);
  if (problem) return std::unexpected(*std::move(problem));
  std::vector<std::pair<std::string_view, std::string_view>> fields(object.rest().begin(),
                                                                    object.rest().end());
  std::ranges::sort(fields, {}, [](const auto& field) { return field.second.data(); });
  JsonEdit edit;
  const char* end = text.data();  // of the value before: the next quote opens the next key
  for (const auto& [name, value] : fields) {
    const char* const value_begin = value.data();
    const char* const key = std::find(end, value_begin, '"');
    edit.members_.push_back({std::string(name), std::string(key, value_begin), std::string(value)});
    end = value.data() + value.size();
  }
  return edit;
}

std::optional<std::string_view> JsonEdit::find(std::string_view name) const {
  const auto found = std::ranges::find(members_, name, &Member::name);
  return found == members_.end() ? std::nullopt : std::optional<std::string_view>(found->value);
}

void JsonEdit::set(std::string_view name, std::string_view value) {
  const auto found = std::ranges::find(members_, name, &Member::name);
  if (found == members_.end()) {
    members_.push_back({std::string(name), quoted(name) + ':', std::string(value)});
  } else {
    found->value = value;
  }
}

void JsonEdit::remove(std::string_view name) {
  std::erase_if(members_, [&](const Member& member) { return member.name == name; });
}

std::string JsonEdit::text() const {
  std::string text = "{";
  for (const Member& member : members_) {
    if (text.size() > 1) text += ',';
    text += member.key;
    text += member.value;
  }
  return text + '}';
}

Result<ClientBody> ClientBody::parse(std::string body) {
  auto fields = JsonEdit::open(body, "the body");
  if (!fields) return std::unexpected(fields.error());
  ClientBody parsed(*std::move(fields));
  JsonEdit& own = parsed.fields_;
  if (const auto held = own.find(kParams); held.value_or("null") != "null") {
    const auto params = JsonEdit::open(std::string(*held), kParams);
    if (!params || params->find("do_remote_decode") != "true") {
      return error(ErrorCode::kInvalidArgument,
                   "`" + std::string(kParams) +
                       "` must be what the answer before held, null, or nothing: the router fills "
                       "in the rest");
    }
    parsed.held_params_ = std::string(*held);
    own.remove(kParams);
  }
  const auto conversation = own.find(kConversation);
  if (conversation.value_or("null") != "null") {
    auto text = json_string(*conversation);
    if (!text || text->empty() || text->size() > kConversationBytesMax) {
      return error(ErrorCode::kInvalidArgument,
                   "`" + std::string(kConversation) + "` must be a string of 1 to " +
                       std::to_string(kConversationBytesMax) + " bytes");
    }
    parsed.conversation_ = *std::move(text);
  }
  if (conversation) own.remove(kConversation);
  const bool untouched = !conversation && !parsed.held_params_;
  parsed.alone_body_ = untouched ? std::move(body) : own.text();
  return parsed;
}

std::string ClientBody::prefill_body(const std::optional<std::string>& held_params) const {
  JsonEdit fields = fields_;
  fields.set("stream", "false");
  fields.set("max_tokens", "1");
  if (fields.find("max_completion_tokens")) fields.set("max_completion_tokens", "1");
  fields.set("n", "1");
  for (const std::string_view name : {"stream_options", "min_tokens", "min_completion_tokens"}) {
    fields.remove(name);
  }
  fields.set(kParams, held_params ? std::string_view(*held_params) : kRemoteDecode);
  return fields.text();
}

std::string ClientBody::decode_body(std::string_view kv_transfer_params) const {
  JsonEdit fields = fields_;
  fields.set(kParams, kv_transfer_params);
  return fields.text();
}

std::uint64_t ClientBody::prefix_hash() const {
  const auto begins = fields_.find("messages").value_or(fields_.find("prompt").value_or(""));
  std::uint64_t hash = 0;
  for (const char c : begins.substr(0, kPrefixBytes)) {
    hash = mix64(hash ^ static_cast<unsigned char>(c));
  }
  return hash;
}

std::optional<Handoff> take_handoff(std::string_view prefill_answer, ReleaseBy release_by) {
  std::optional<Error> problem;
  const JsonObject answer = open_json(prefill_answer, kRoutedBodyBytesMax, "the answer", problem);
  const auto found = answer.rest().find(kParams);
  if (found == answer.rest().end()) return std::nullopt;
  auto params = JsonEdit::open(std::string(found->second), kParams);
  if (!params) return std::nullopt;
  Handoff handoff{.kv_transfer_params = std::string(found->second)};
  read_lease(found->second, handoff);
  if (release_by == ReleaseBy::kDecoder) return handoff;
  auto reference = JsonEdit::open(std::string(params->find("kvlease").value_or("null")), "kvlease");
  if (!reference) return handoff;
  reference->set("release_by", R"("router")");  // L33
  params->set("kvlease", reference->text());
  handoff.kv_transfer_params = params->text();
  handoff.release_by = ReleaseBy::kRouter;
  return handoff;
}

void ParamsWatch::feed(std::string_view piece) {
  if (gave_up_) return;
  text_ += piece;
  for (std::size_t end = text_.find(kEventEnd); end != std::string::npos;
       end = text_.find(kEventEnd)) {
    const std::string_view event = std::string_view(text_).substr(0, end);
    if (event.starts_with(kEventData)) look_into(event.substr(kEventData.size()));
    text_.erase(0, end + kEventEnd.size());
  }
  gave_up_ = text_.size() > kWatchedBytesMax;
  if (gave_up_) text_.clear();
}

std::optional<std::string> ParamsWatch::params() const {
  if (params_ || text_.empty()) return params_;
  ParamsWatch whole;
  whole.look_into(text_);
  return whole.params_;
}

void ParamsWatch::look_into(std::string_view json) {
  if (json.find(kParams) == std::string_view::npos) return;  // cheap, and mostly so
  std::optional<Error> problem;
  const JsonObject answer = open_json(json, kWatchedBytesMax, "an answer", problem);
  const auto found = answer.rest().find(kParams);
  if (found != answer.rest().end() && found->second != "null") params_ = std::string(found->second);
}

}  // namespace kvlease
