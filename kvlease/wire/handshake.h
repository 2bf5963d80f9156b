// The handshake (POST /kvlease/v1/handshake): who both sides are, whether they fit, and what D
// needs to reach P's memory on every rank (L14, L30, L51, L52). Values and their JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvlease/base/bytes.h"
#include "kvlease/base/ids.h"
#include "kvlease/base/memory_region.h"
#include "kvlease/base/result.h"
#include "kvlease/core/lease.h"
#include "kvlease/wire/seal.h"

namespace kvlease {

// Versions of this protocol that we speak.
struct ProtocolRange {
  std::uint32_t min = 1;
  std::uint32_t max = 1;
  bool operator==(const ProtocolRange&) const = default;
};
inline constexpr ProtocolRange kProtocol{.min = 1, .max = 1};

// What must be equal on both sides for bytes to mean the same (L30).
struct CompatibilityIdentity {
  std::string model;
  std::string dtype;
  std::uint32_t num_layers = 0;
  std::uint32_t num_kv_heads = 0;  // in all ranks together
  std::uint32_t head_dim = 0;
  std::uint32_t block_size = 0;  // tokens
  std::string transfer_mode = "pull";
  std::string kv_cache_layout;
  bool operator==(const CompatibilityIdentity&) const = default;
};

// The first item in which they differ, with both values, as a sentence; nullopt when they fit.
// Block counts and rank counts are no part of it (D15, D16).
std::optional<std::string> incompatibility(const CompatibilityIdentity& ours,
                                           const CompatibilityIdentity& theirs);

struct HandshakeRequest {
  EngineId engine_id;  // who asks
  Incarnation incarnation;
  EngineId expected_engine_id;  // whom the reference named (D04)
  ProtocolRange protocol = kProtocol;
  CompatibilityIdentity identity;
  std::uint32_t tp_size = 1;
  bool operator==(const HandshakeRequest&) const = default;
};

// One memory region of a rank's KV cache: block b starts at base_address + b * block_len_bytes.
struct KvRegion {
  std::uint64_t base_address = 0;
  std::uint64_t block_len_bytes = 0;
  MemoryKind kind = MemoryKind::kDram;
  std::uint32_t device = 0;
  bool operator==(const KvRegion&) const = default;
};

struct RankMetadata {
  Rank rank;
  AgentName agent_name;
  Bytes agent_metadata;  // opaque, for Transport::add_peer
  std::uint32_t num_blocks = 0;
  std::vector<KvRegion> regions;
  std::uint64_t entries_address = 0;
  std::uint32_t entries_count = 0;  // 0: no lease entries, a foreign peer (L28)
  bool operator==(const RankMetadata&) const = default;
};

struct HandshakeReply {
  EngineId engine_id;
  Incarnation incarnation;
  SealKey seal_key{};
  ProtocolRange protocol = kProtocol;
  CompatibilityIdentity identity;
  LeaseTimes times{};               // P's configured ones (L14)
  double clock_seconds = 0;         // of P's monotonic clock, just before sending (L40)
  std::vector<RankMetadata> ranks;  // rank 0 … tp - 1
  bool operator==(const HandshakeReply&) const = default;
};

// Limits of what is accepted from outside (L43).
inline constexpr std::size_t kHandshakeBytesMax = 4u << 20;
inline constexpr std::uint32_t kTpMax = 64;
inline constexpr std::size_t kRegionsMax = 4096;        // of one rank
inline constexpr std::uint32_t kEntriesMax = 1u << 24;  // as kv_lease_slots

std::string to_json(const HandshakeRequest& request);
std::string to_json(const HandshakeReply& reply);
// Errors: kIncompatible, before anything else is read, when no version of the protocol is common
// (D15); kInvalidArgument naming the field. A reply that parses has ranks 0 … tp - 1 in order,
// regions and entries that end inside the address space, and as many entries on every rank.
// `ours` is what the reader speaks; keys that it does not know are ignored, for a later version may
// have more.
Result<HandshakeRequest> parse_handshake_request(std::string_view json,
                                                 const ProtocolRange& ours = kProtocol);
Result<HandshakeReply> parse_handshake_reply(std::string_view json,
                                             const ProtocolRange& ours = kProtocol);

// The highest version that both speak. Errors: kIncompatible with both ranges (L30; A17).
Result<std::uint32_t> choose_protocol(const ProtocolRange& ours, const ProtocolRange& theirs);

// P's check of a request before it answers: protocol, whom it names, identity (unless not
// enforced), tp. Errors: kNotFound for another engine id (D04), else kIncompatible, with both
// values in the message.
Result<void> check_handshake_request(const HandshakeRequest& request, const HandshakeReply& ours,
                                     bool enforce_handshake_compat);

// D's check of a reply: protocol, who answers, identity (unless not enforced), tp, and that all
// ranks have the same regions (L30, L37). Errors: as check_handshake_request.
Result<void> check_handshake_reply(const HandshakeReply& reply, const HandshakeRequest& asked,
                                   bool enforce_handshake_compat);

}  // namespace kvlease
