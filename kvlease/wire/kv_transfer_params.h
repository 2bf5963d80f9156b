// `kv_transfer_params`: the object that a router carries from P's answer to D's request, with
// vLLM's fields and one nested field of ours, `kvlease`. Fields that we do not know survive
// unchanged. Source: spec of vLLM's connector, section 2 (docs/protocol.md); rules L22, L52.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvlease/base/ids.h"
#include "kvlease/base/result.h"
#include "kvlease/base/time.h"
#include "kvlease/wire/seal.h"

namespace kvlease {

enum class ReleaseBy : std::uint8_t {
  kDecoder,
  kRouter
};  // who tells P of an end without a read (L33)

inline constexpr std::uint32_t kLeaseReferenceVersion = 1;
inline constexpr std::size_t kBlockIdsMax = 1'000'000;  // in all groups together (L43)

// The nested `kvlease` object: {v, incarnation, slot, word, digest, digest_tokens, seal,
// lease_duration_ms, heartbeat_interval_ms, release_by}; version 1 has exactly these fields.
// incarnation and word are strings of 16 lowercase hex digits, digest and seal of 32; what is a
// number is below 2^53 and so survives a proxy that holds numbers as doubles. slot,
// lease_duration_ms and heartbeat_interval_ms are never 0.
struct LeaseReference {
  std::uint32_t v = kLeaseReferenceVersion;
  Incarnation incarnation;
  SlotId slot;
  std::uint64_t word = 0;
  Digest digest{};
  std::uint32_t digest_tokens = 0;
  Seal seal{};
  std::uint64_t lease_duration_ms = 0;
  std::uint64_t heartbeat_interval_ms = 0;
  ReleaseBy release_by = ReleaseBy::kDecoder;
  bool operator==(const LeaseReference&) const = default;
};

// An absent and a null field are the same here: nullopt (false for the two flags). Written as null
// where vLLM writes null: block ids, engine id, host and port always, the expiry time where a
// request id is.
struct KvTransferParams {
  bool do_remote_decode = false;
  bool do_remote_prefill = false;
  std::optional<std::vector<std::vector<BlockId>>> remote_block_ids;  // [group][block], P's ids
  std::optional<EngineId> remote_engine_id;
  std::optional<LeaseId> remote_request_id;
  std::optional<std::string> remote_host;
  std::optional<std::uint16_t> remote_port;
  std::optional<std::uint32_t> tp_size;
  std::optional<std::uint32_t> dcp_size;
  std::optional<std::uint32_t> pp_size;
  std::optional<std::uint64_t> remote_num_tokens;
  std::optional<double> remote_blocks_expiry_time;  // seconds on the holder's clock
  std::optional<std::uint64_t> remote_registration_generation;
  std::optional<std::uint64_t> remote_prefill_cached_tokens;
  std::optional<std::string> transfer_mode;  // "pull" or "push"
  std::optional<std::string> transfer_id;
  std::optional<LeaseReference> kvlease;
  // A JSON object's text with every field that is not above, by name, their values as they stood;
  // "" for none.
  std::string unknown_fields;
  bool operator==(const KvTransferParams&) const = default;
};

// Errors: kInvalidArgument naming the field, what it held and what it may hold; text that is no
// JSON object; depth over 32; more than `bytes_max` bytes; a field that stands twice.
Result<KvTransferParams> parse_kv_transfer_params(std::string_view json, std::size_t bytes_max);

// Compact JSON; parse(to_json(p)) == p.
std::string to_json(const KvTransferParams& params);

// The fields of a P's answer as its seal covers them. Requires: params.kvlease, engine and request
// id are there.
SealedReference sealed_reference(const KvTransferParams& params);

}  // namespace kvlease
