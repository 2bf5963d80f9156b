// Implements notification.h.
#include "kvlease/wire/notification.h"

#include <optional>
#include <string>

#include "kvlease/base/check.h"
#include "kvlease/base/text.h"

namespace kvlease {
namespace {

constexpr char kIdSeparator = ',';
constexpr char kCountSeparator = ':';
constexpr std::string_view kBarePrefix = kHeartbeatPrefix.substr(0, kHeartbeatPrefix.size() - 1);

// Splits at every comma of `list`, of which there are `commas`. Ids are mostly of one length, so
// the next comma is looked for where the one before suggests it. None has been passed over if all
// were met; else the list is split once more, with care.
HeartbeatNotif parse_heartbeat(std::string_view list, std::size_t commas, bool careful) {
  HeartbeatNotif heartbeat;
  std::size_t met = 0;
  std::size_t end = 0;
  for (std::string_view rest = list;; rest.remove_prefix(end + 1), ++met) {
    if (careful || end >= rest.size() || rest[end] != kIdSeparator) end = rest.find(kIdSeparator);
    const std::string_view piece = rest.substr(0, end);
    if (piece.empty()) {
      ++heartbeat.empty_pieces;  // L17
    } else {
      heartbeat.ids.push_back(piece);
    }
    if (end == std::string_view::npos) break;
  }
  if (met != commas) return parse_heartbeat(list, commas, /*careful=*/true);
  return heartbeat;
}

// One spelling a number: no sign, no leading zero.
std::optional<std::uint32_t> parse_count(std::string_view text) {
  const std::optional<std::uint32_t> count = parse_number<std::uint32_t>(text);
  if (!count || *count > kReadersMax || text.starts_with('0')) return std::nullopt;
  return count;
}

ParsedNotif parse_completion(std::string_view text) {
  const std::size_t colon = text.rfind(kCountSeparator);  // L7: ids may hold colons
  if (colon == std::string_view::npos) return MalformedNotif{MalformedCause::kNoColon};
  if (colon == 0) return MalformedNotif{MalformedCause::kEmptyId};
  const std::optional<std::uint32_t> count = parse_count(text.substr(colon + 1));
  if (!count) return MalformedNotif{MalformedCause::kBadCount};
  return CompletionNotif{.id = text.substr(0, colon), .readers_expected = *count};
}

}  // namespace

std::string_view malformed_cause_name(MalformedCause cause) {
  switch (cause) {
    case MalformedCause::kEmpty:
      return "empty";
    case MalformedCause::kTooLong:
      return "too_long";
    case MalformedCause::kNotText:
      return "not_text";
    case MalformedCause::kNoColon:
      return "no_colon";
    case MalformedCause::kEmptyId:
      return "empty_id";
    case MalformedCause::kBadCount:
      return "bad_count";
  }
  KVL_UNREACHABLE("a cause outside its enum");
}

// L44: every payload has an answer here.
ParsedNotif parse_notif(std::span<const std::byte> payload, std::size_t bytes_max) {
  if (payload.empty()) return MalformedNotif{MalformedCause::kEmpty};
  if (payload.size() > bytes_max) return MalformedNotif{MalformedCause::kTooLong};
  const std::string_view text = as_text(payload);
  const TextScan scan = scan_text(text, kIdSeparator);
  if (!scan.printable_ascii) return MalformedNotif{MalformedCause::kNotText};
  if (text.starts_with(kHeartbeatPrefix)) {
    return parse_heartbeat(text.substr(kHeartbeatPrefix.size()), scan.count, /*careful=*/false);
  }
  return parse_completion(text);
}

std::vector<Bytes> encode_heartbeat(std::span<const LeaseId> ids, std::size_t bytes_max) {
  KVL_CHECK(bytes_max > 200, "a message has room for any id of our own (L45)");
  std::vector<Bytes> messages;
  std::string message;
  const auto finish_message = [&] {
    const auto bytes = as_byte_span(message);
    messages.emplace_back(bytes.begin(), bytes.end());
  };
  for (const LeaseId& id : ids) {
    if (!is_wire_id(id.str()) || kHeartbeatPrefix.size() + id.str().size() > bytes_max) continue;
    if (message.empty()) {
      message = kHeartbeatPrefix;
    } else if (message.size() + 1 + id.str().size() > bytes_max) {  // L17
      finish_message();
      message = kHeartbeatPrefix;
    } else {
      message += kIdSeparator;
    }
    message += id.str();
  }
  if (!message.empty()) finish_message();
  return messages;
}

Bytes encode_completion(const LeaseId& id, std::uint32_t readers_expected) {
  KVL_CHECK(readers_expected >= 1 && readers_expected <= kReadersMax, "readers are 1 to 1024 (L7)");
  const std::string text = id.str() + kCountSeparator + std::to_string(readers_expected);
  const auto bytes = as_byte_span(text);
  return {bytes.begin(), bytes.end()};
}

bool is_wire_id(std::string_view id) {
  return !id.empty() && id.size() <= kWireIdBytesMax && is_printable_ascii(id) &&
         id.find(kIdSeparator) == std::string_view::npos && id != kBarePrefix &&
         !id.starts_with(kHeartbeatPrefix);
}

}  // namespace kvlease
