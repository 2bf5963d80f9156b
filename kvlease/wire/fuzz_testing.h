// What must hold for every input from outside, whatever it is: no crash, and what was understood is
// written and understood again as the same. The fuzzers run this on new inputs, corpus_test.cc on
// the committed ones.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "kvlease/base/check.h"
#include "kvlease/wire/handshake.h"
#include "kvlease/wire/kv_transfer_config.h"
#include "kvlease/wire/kv_transfer_params.h"
#include "kvlease/wire/notification.h"

namespace kvlease {

inline constexpr std::size_t kFuzzedNotifBytesMax = 1024;

inline void check_heartbeat(const HeartbeatNotif& heartbeat, std::span<const std::byte> payload,
                            std::size_t bytes_max) {
  const auto commas = std::ranges::count(as_text(payload), ',');
  KVL_CHECK(heartbeat.ids.size() + heartbeat.empty_pieces == static_cast<std::size_t>(commas) + 1,
            "every piece is an id or counted as empty");
  std::vector<LeaseId> ids;
  for (const std::string_view id : heartbeat.ids) {
    if (is_wire_id(id)) ids.emplace_back(std::string(id));
  }
  std::vector<LeaseId> parsed;
  for (const Bytes& message : encode_heartbeat(ids, bytes_max)) {
    const ParsedNotif notif = parse_notif(message, bytes_max);
    KVL_CHECK(std::holds_alternative<HeartbeatNotif>(notif), "a heartbeat reads as one");
    for (const std::string_view id : std::get<HeartbeatNotif>(notif).ids) {
      parsed.emplace_back(std::string(id));
    }
  }
  KVL_CHECK(parsed == ids, "heartbeats name the same ids again");
}

inline void check_notification(std::span<const std::byte> payload) {
  const ParsedNotif notif = parse_notif(payload, kFuzzedNotifBytesMax);
  if (const auto* heartbeat = std::get_if<HeartbeatNotif>(&notif)) {
    check_heartbeat(*heartbeat, payload, kFuzzedNotifBytesMax);
  } else if (const auto* completion = std::get_if<CompletionNotif>(&notif)) {
    const Bytes again =
        encode_completion(LeaseId(std::string(completion->id)), completion->readers_expected);
    KVL_CHECK(std::ranges::equal(again, payload), "a completion has one spelling");
  } else {
    KVL_CHECK(!malformed_cause_name(std::get<MalformedNotif>(notif).cause).empty(),
              "every cause has a name");
  }
}

// `parse(to_json(value)) == value`, and the text is the same again.
template <typename Value, typename Parse>
void check_round_trip(const Value& value, Parse parse) {
  const std::string json = to_json(value);
  const Result<Value> again = parse(json);
  KVL_CHECK(again.has_value(), "what we write can be parsed");
  KVL_CHECK(*again == value, "what we write is the value that was parsed");
  KVL_CHECK(to_json(*again) == json, "a value has one text");
}

inline void check_kv_transfer_params(std::string_view json) {
  const auto parse = [](std::string_view text) {
    return parse_kv_transfer_params(text, 16u << 20);
  };
  if (const Result<KvTransferParams> params = parse(json)) check_round_trip(*params, parse);
}

// What was taken holds what L12 and L13 promise; the same text is taken the same way again.
inline void check_kv_transfer_config(std::string_view json) {
  using std::chrono_literals::operator""ms;
  const Result<KvTransferConfig> config = parse_kv_transfer_config(json);
  const Result<KvTransferConfig> again = parse_kv_transfer_config(json);
  KVL_CHECK(config.has_value() == again.has_value(), "a text has one meaning");
  if (!config) {
    KVL_CHECK(!config.error().message.empty(), "a refusal says why");
    return;
  }
  const LeaseConfig& lease = config->lease;
  KVL_CHECK(lease == again->lease && config->warnings == again->warnings, "a text has one meaning");
  KVL_CHECK(lease.times.duration >= 50ms && lease.times.heartbeat_interval >= 1ms, "L13");
  KVL_CHECK(lease.times.heartbeat_interval <= lease.times.extension / 2, "L13");
  KVL_CHECK(lease.lease_max_hold >= lease.times.duration, "L48");
  KVL_CHECK(lease.lease_slots >= 2 && lease.lease_slots <= 1u << 24, "L22");
  KVL_CHECK(lease.lease_max_blocks_fraction > 0 && lease.lease_max_blocks_fraction <= 1, "L43");
  KVL_CHECK(lease.hold_max_blocks_fraction > 0 && lease.hold_max_blocks_fraction <= 1, "L49");
  KVL_CHECK(lease.handshake_timeout >= 1ms && lease.load_timeout >= 1ms, "L48");
  KVL_CHECK(lease.engine_ttl >= 1ms && lease.hold_ttl >= 50ms, "L32, L39");
  KVL_CHECK(
      lease.hold_max_lifetime == Duration::zero() || lease.hold_max_lifetime >= lease.hold_ttl,
      "L39");
  KVL_CHECK(lease.notification_bytes_max >= 256 && lease.notification_bytes_max <= 1u << 20, "L17");
  KVL_CHECK(lease.recompute_threshold <= 2147483647, "L42");
  KVL_CHECK(!config->engine_id || config->engine_id->str().find('/') == std::string::npos, "L7");
}

inline void check_handshake(std::string_view json) {
  if (const auto request = parse_handshake_request(json)) {
    check_round_trip(*request, [](std::string_view text) { return parse_handshake_request(text); });
  }
  if (const auto reply = parse_handshake_reply(json)) {
    check_round_trip(*reply, [](std::string_view text) { return parse_handshake_reply(text); });
  }
}

}  // namespace kvlease
