// Implements kv_transfer_params.h.
#include "kvlease/wire/kv_transfer_params.h"

#include <array>
#include <utility>

#include "kvlease/base/check.h"
#include "kvlease/base/text.h"
#include "kvlease/wire/json_fields.h"
#include "kvlease/wire/notification.h"

namespace kvlease {
namespace {

constexpr std::array<std::string_view, 2> kReleaseByNames{"decoder", "router"};
constexpr std::array<std::string_view, 2> kTransferModes{"pull", "push"};

// A vLLM peer's engine id may hold what ours may not; it is only compared.
constexpr TextRule kPeerEngineId{"a string of 1 to 255 bytes", [](std::string_view text) {
                                   return !text.empty() && text.size() <= 255;
                                 }};
constexpr TextRule kPeerRequestId{"a string of 1 to 512 bytes", [](std::string_view text) {
                                    return !text.empty() && text.size() <= kWireIdBytesMax;
                                  }};
constexpr TextRule kHost{"a host of 1 to 255 printable ASCII characters",
                         [](std::string_view text) {
                           return !text.empty() && text.size() <= 255 && is_printable_ascii(text);
                         }};
constexpr TextRule kTransferId{"a string of at most 255 bytes",
                               [](std::string_view text) { return text.size() <= 255; }};

constexpr std::string_view kBlockIds = "remote_block_ids";
constexpr IntegerRange kBlockIdRange{.max = UINT32_MAX};
constexpr IntegerRange kMilliseconds{.min = 1, .max = kMillisecondsMax};

using BlockGroups = std::vector<std::vector<BlockId>>;

std::optional<BlockGroups> read_block_ids(JsonObject& fields) {
  const auto group_texts = fields.array(kBlockIds, false, "an array of arrays of block ids");
  if (!group_texts) return std::nullopt;
  BlockGroups groups;
  std::size_t count = 0;
  for (const std::string_view group_text : *group_texts) {
    const std::string group_name =
        std::string(kBlockIds) + "[" + std::to_string(groups.size()) + "]";
    const auto id_texts = json_array(group_text);
    if (!id_texts) {
      fields.refuse(group_name, group_text, "an array of block ids");
      return std::nullopt;
    }
    count += id_texts->size();
    if (count > kBlockIdsMax) {
      fields.refuse(kBlockIds, group_text,
                    "at most " + std::to_string(kBlockIdsMax) + " block ids");
      return std::nullopt;
    }
    std::vector<BlockId>& group = groups.emplace_back();
    group.reserve(id_texts->size());
    for (const std::string_view id_text : *id_texts) {
      const std::optional<std::uint64_t> id = json_integer(id_text, kBlockIdRange);
      if (!id) {
        fields.refuse(group_name + "[" + std::to_string(group.size()) + "]", id_text,
                      integer_allowed(kBlockIdRange));
        return std::nullopt;
      }
      group.emplace_back(static_cast<std::uint32_t>(*id));
    }
  }
  return groups;
}

// L22, L52
LeaseReference read_lease_reference(JsonObject fields) {
  LeaseReference reference;
  fields.integer("v", {.min = kLeaseReferenceVersion, .max = kLeaseReferenceVersion}, reference.v);
  fields.hex("incarnation", reference.incarnation);
  fields.integer("slot", {.min = 1}, reference.slot);
  fields.hex("word", reference.word);
  fields.hex("digest", reference.digest);
  fields.integer("digest_tokens", {}, reference.digest_tokens);
  fields.hex("seal", reference.seal);
  fields.integer("lease_duration_ms", kMilliseconds, reference.lease_duration_ms);
  fields.integer("heartbeat_interval_ms", kMilliseconds, reference.heartbeat_interval_ms);
  fields.choice("release_by", kReleaseByNames, reference.release_by);
  fields.refuse_rest("the fields of version 1");
  return reference;
}

std::string to_json(const LeaseReference& reference) {
  JsonWriter out;
  out.integer("v", reference.v);
  out.hex("incarnation", reference.incarnation.value());
  out.integer("slot", reference.slot.value());
  out.hex("word", reference.word);
  out.hex("digest", reference.digest);
  out.integer("digest_tokens", reference.digest_tokens);
  out.hex("seal", reference.seal);
  out.integer("lease_duration_ms", reference.lease_duration_ms);
  out.integer("heartbeat_interval_ms", reference.heartbeat_interval_ms);
  out.string("release_by", kReleaseByNames[std::to_underlying(reference.release_by)]);
  return out.take();
}

std::string to_json(const BlockGroups& groups) {
  return json_array_of(groups, [](const std::vector<BlockId>& group) {
    return json_array_of(group, [](BlockId id) { return std::to_string(id.value()); });
  });
}

std::string fields_as_object(const JsonObject::Fields& fields) {
  if (fields.empty()) return {};
  JsonWriter out;
  for (const auto& [name, json] : fields) out.json(name, json);
  return out.take();
}

}  // namespace

Result<KvTransferParams> parse_kv_transfer_params(std::string_view json, std::size_t bytes_max) {
  std::optional<Error> problem;
  JsonObject fields = open_json(json, bytes_max, "kv_transfer_params", problem);
  KvTransferParams params;
  std::optional<bool> flag;
  fields.boolean("do_remote_decode", flag);
  params.do_remote_decode = std::exchange(flag, std::nullopt).value_or(false);
  fields.boolean("do_remote_prefill", flag);
  params.do_remote_prefill = flag.value_or(false);
  params.remote_block_ids = read_block_ids(fields);
  fields.string("remote_engine_id", kPeerEngineId, params.remote_engine_id);
  fields.string("remote_request_id", kPeerRequestId, params.remote_request_id);
  fields.string("remote_host", kHost, params.remote_host);
  fields.integer("remote_port", {.min = 1}, params.remote_port);
  fields.integer("tp_size", {.min = 1}, params.tp_size);
  fields.integer("dcp_size", {.min = 1}, params.dcp_size);
  fields.integer("pp_size", {.min = 1}, params.pp_size);
  fields.integer("remote_num_tokens", {}, params.remote_num_tokens);
  fields.number("remote_blocks_expiry_time", params.remote_blocks_expiry_time);
  fields.integer("remote_registration_generation", {}, params.remote_registration_generation);
  fields.integer("remote_prefill_cached_tokens", {}, params.remote_prefill_cached_tokens);
  fields.choice("transfer_mode", kTransferModes, params.transfer_mode);
  fields.string("transfer_id", kTransferId, params.transfer_id);
  if (auto reference = fields.object("kvlease", false)) {
    params.kvlease = read_lease_reference(*std::move(reference));
  }
  params.unknown_fields = fields_as_object(fields.rest());
  if (problem) return std::unexpected(*std::move(problem));
  return params;
}

// In the order of vLLM's answers; `kvlease` and what we do not know follow.
std::string to_json(const KvTransferParams& params) {
  JsonWriter out;
  const auto null_without = [&](std::string_view name, const auto& value) {
    if (!value) out.null(name);
  };
  out.boolean("do_remote_prefill", params.do_remote_prefill);
  out.boolean("do_remote_decode", params.do_remote_decode);
  null_without("remote_block_ids", params.remote_block_ids);
  if (params.remote_block_ids) out.json("remote_block_ids", to_json(*params.remote_block_ids));
  null_without("remote_engine_id", params.remote_engine_id);
  out.string("remote_engine_id", params.remote_engine_id);
  out.string("remote_request_id", params.remote_request_id);
  null_without("remote_host", params.remote_host);
  out.string("remote_host", params.remote_host);
  null_without("remote_port", params.remote_port);
  out.integer("remote_port", params.remote_port);
  out.integer("tp_size", params.tp_size);
  out.integer("dcp_size", params.dcp_size);
  out.integer("pp_size", params.pp_size);
  out.integer("remote_num_tokens", params.remote_num_tokens);
  if (params.remote_request_id) {
    null_without("remote_blocks_expiry_time", params.remote_blocks_expiry_time);
  }
  out.number("remote_blocks_expiry_time", params.remote_blocks_expiry_time);
  out.integer("remote_registration_generation", params.remote_registration_generation);
  out.string("transfer_mode", params.transfer_mode);
  out.integer("remote_prefill_cached_tokens", params.remote_prefill_cached_tokens);
  out.string("transfer_id", params.transfer_id);
  if (params.kvlease) out.json("kvlease", to_json(*params.kvlease));
  out.fields_of(params.unknown_fields);
  return out.take();
}

SealedReference sealed_reference(const KvTransferParams& params) {
  KVL_CHECK(params.kvlease && params.remote_engine_id && params.remote_request_id,
            "only a reference that names a lease is sealed");
  const LeaseReference& reference = *params.kvlease;
  return {.engine_id = *params.remote_engine_id,
          .incarnation = reference.incarnation,
          .remote_request_id = *params.remote_request_id,
          .remote_num_tokens = params.remote_num_tokens.value_or(0),
          .remote_block_ids = params.remote_block_ids.value_or(BlockGroups{}),
          .slot = reference.slot,
          .word = reference.word,
          .lease_duration_ms = reference.lease_duration_ms,
          .heartbeat_interval_ms = reference.heartbeat_interval_ms,
          .digest_tokens = reference.digest_tokens,
          .digest = reference.digest};
}

}  // namespace kvlease
