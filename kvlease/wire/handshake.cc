// Implements handshake.h.
#include "kvlease/wire/handshake.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kvlease/base/text.h"
#include "kvlease/wire/json_fields.h"

namespace kvlease {
namespace {

constexpr std::array<std::string_view, 2> kMemoryKindNames{"dram", "vram"};

constexpr std::uint64_t kEntryBytes = 16;  // L22

constexpr TextRule kEngineIdRule{kEngineIdAllowed, is_engine_id};
constexpr TextRule kNameRule{"a string of at most 1024 bytes",
                             [](std::string_view text) { return text.size() <= 1024; }};
constexpr TextRule kAgentNameRule{
    "a string of 1 to 512 printable ASCII characters", [](std::string_view text) {
      return !text.empty() && text.size() <= 512 && is_printable_ascii(text);
    }};

// What must be equal, as messages show it.
using Identity = CompatibilityIdentity;
struct IdentityItem {
  std::string_view name;
  std::string (*shown)(const Identity&);
};
constexpr std::array kIdentityItems{
    IdentityItem{"model", [](const Identity& i) { return quoted(i.model); }},
    IdentityItem{"dtype", [](const Identity& i) { return quoted(i.dtype); }},
    IdentityItem{"num_layers", [](const Identity& i) { return std::to_string(i.num_layers); }},
    IdentityItem{"num_kv_heads", [](const Identity& i) { return std::to_string(i.num_kv_heads); }},
    IdentityItem{"head_dim", [](const Identity& i) { return std::to_string(i.head_dim); }},
    IdentityItem{"transfer_mode", [](const Identity& i) { return quoted(i.transfer_mode); }},
    IdentityItem{"kv_cache_layout", [](const Identity& i) { return quoted(i.kv_cache_layout); }},
};

// True when `count` pieces of `piece_bytes` from `address` on end inside the address space.
bool fits_in_memory(std::uint64_t address, std::uint64_t count, std::uint64_t piece_bytes) {
  return count == 0 || piece_bytes <= (UINT64_MAX - address) / count;
}

std::uint64_t milliseconds(Duration length) {
  return static_cast<std::uint64_t>(std::chrono::floor<std::chrono::milliseconds>(length).count());
}

std::string to_json(const ProtocolRange& protocol) {
  JsonWriter out;
  out.integer("min", protocol.min);
  out.integer("max", protocol.max);
  return out.take();
}

std::string to_json(const CompatibilityIdentity& identity) {
  JsonWriter out;
  out.string("model", identity.model);
  out.string("dtype", identity.dtype);
  out.integer("num_layers", identity.num_layers);
  out.integer("num_kv_heads", identity.num_kv_heads);
  out.integer("head_dim", identity.head_dim);
  out.integer("block_size", identity.block_size);
  out.string("transfer_mode", identity.transfer_mode);
  out.string("kv_cache_layout", identity.kv_cache_layout);
  return out.take();
}

std::string to_json(const KvRegion& region) {
  JsonWriter out;
  out.hex("base_address", region.base_address);
  out.integer("block_len_bytes", region.block_len_bytes);
  out.string("memory", kMemoryKindNames[std::to_underlying(region.kind)]);
  out.integer("device", region.device);
  return out.take();
}

std::string to_json(const RankMetadata& rank) {
  JsonWriter out;
  out.integer("rank", rank.rank.value());
  out.string("agent_name", rank.agent_name);
  out.hex("agent_metadata", rank.agent_metadata);
  out.integer("num_blocks", rank.num_blocks);
  out.json("regions", json_array_of(rank.regions, [](const KvRegion& r) { return to_json(r); }));
  out.hex("entries_address", rank.entries_address);
  out.integer("entries_count", rank.entries_count);
  return out.take();
}

// Reads the range and says whether there is any use in reading on.
bool read_protocol(JsonObject& fields, const ProtocolRange& ours, ProtocolRange& protocol,
                   std::optional<Error>& problem) {
  if (auto range = fields.object("protocol", true)) {
    range->integer("min", {.min = 1}, protocol.min);
    range->integer("max", {.min = protocol.min}, protocol.max);
  }
  if (problem) return false;
  if (auto chosen = choose_protocol(ours, protocol); !chosen) {
    problem = std::move(chosen).error();
  }
  return !problem;
}

void read_identity(JsonObject& fields, CompatibilityIdentity& identity) {
  auto from = fields.object("identity", true);
  if (!from) return;
  from->string("model", kNameRule, identity.model);
  from->string("dtype", kNameRule, identity.dtype);
  from->integer("num_layers", {.min = 1}, identity.num_layers);
  from->integer("num_kv_heads", {.min = 1}, identity.num_kv_heads);
  from->integer("head_dim", {.min = 1}, identity.head_dim);
  from->integer("block_size", {.min = 1}, identity.block_size);
  from->string("transfer_mode", kNameRule, identity.transfer_mode);
  from->string("kv_cache_layout", kNameRule, identity.kv_cache_layout);
}

void read_times(JsonObject& fields, LeaseTimes& times) {
  const auto read = [&](std::string_view name, Duration& out) {
    std::uint64_t length = 0;
    fields.integer(name, {.min = 1, .max = kMillisecondsMax}, length);
    out = std::chrono::milliseconds(length);
  };
  read("lease_duration_ms", times.duration);
  read("heartbeat_interval_ms", times.heartbeat_interval);
  read("lease_extension_ms", times.extension);
}

KvRegion read_region(JsonObject fields, std::uint32_t num_blocks) {
  KvRegion region;
  fields.hex("base_address", region.base_address);
  fields.integer("block_len_bytes", {.min = 1}, region.block_len_bytes);
  fields.choice("memory", kMemoryKindNames, region.kind);
  fields.integer("device", {}, region.device);
  if (!fits_in_memory(region.base_address, num_blocks, region.block_len_bytes)) {
    fields.refuse("block_len_bytes", std::to_string(region.block_len_bytes),
                  "blocks that end inside the address space");
  }
  return region;
}

RankMetadata read_rank(JsonObject& fields, std::uint32_t number) {
  RankMetadata rank;
  fields.integer("rank", {.min = number, .max = number}, rank.rank);
  fields.string("agent_name", kAgentNameRule, rank.agent_name);
  fields.hex("agent_metadata", rank.agent_metadata);
  fields.integer("num_blocks", {.min = 1}, rank.num_blocks);
  for (JsonObject& region : fields.objects("regions", kRegionsMax)) {
    rank.regions.push_back(read_region(std::move(region), rank.num_blocks));
  }
  fields.hex("entries_address", rank.entries_address);
  fields.integer("entries_count", {.max = kEntriesMax}, rank.entries_count);
  if (rank.entries_address % kEntryBytes != 0 ||
      !fits_in_memory(rank.entries_address, rank.entries_count, kEntryBytes)) {
    fields.refuse("entries_address", to_hex(rank.entries_address),
                  "a multiple of 16 with room for the entries");
  }
  return rank;
}

void read_ranks(JsonObject& fields, std::vector<RankMetadata>& ranks) {
  for (JsonObject& from : fields.objects("ranks", kTpMax)) {
    ranks.push_back(read_rank(from, static_cast<std::uint32_t>(ranks.size())));
    // A peer has entries or is foreign, as a whole, and a slot is the same on every rank (L22,
    // L28).
    if (ranks.back().entries_count != ranks.front().entries_count) {
      from.refuse("entries_count", std::to_string(ranks.back().entries_count),
                  "the count of rank 0, " + std::to_string(ranks.front().entries_count));
    }
  }
}

std::unexpected<Error> incompatible(std::string message) {
  return error(ErrorCode::kIncompatible, std::move(message));
}

// Errors: as check_handshake_request.
Result<void> check_identity(const CompatibilityIdentity& ours, const CompatibilityIdentity& theirs,
                            bool enforce) {
  const std::optional<std::string> difference = incompatibility(ours, theirs);
  if (!enforce || !difference) return {};
  return incompatible(*difference +
                      "; enforce_handshake_compat = false lets them pair all the same");
}

// L37: whole ranks are paired with whole ranks, and have whole heads.
Result<void> check_tp(std::size_t ours, std::size_t theirs, std::uint32_t num_kv_heads) {
  if (std::max(ours, theirs) % std::min(ours, theirs) != 0) {
    return incompatible("tp_size " + std::to_string(ours) + " here and " + std::to_string(theirs) +
                        " there do not divide");
  }
  if (num_kv_heads % theirs == 0 || theirs % num_kv_heads == 0) return {};
  return incompatible(std::to_string(num_kv_heads) + " KV heads do not divide among tp_size " +
                      std::to_string(theirs));
}

// L30: a block of the side that reads is made of whole blocks of the side that is read.
Result<void> check_block_size(std::uint32_t reader, std::uint32_t holder) {
  if (reader % holder == 0) return {};
  return incompatible("block_size " + std::to_string(reader) +
                      " of the decode side is no multiple "
                      "of " +
                      std::to_string(holder) + " of the prefill side");
}

// The ranks share one shape: as many regions on each, and blocks of one length in each (L37).
Result<void> check_regions(const std::vector<RankMetadata>& ranks) {
  for (const RankMetadata& rank : ranks) {
    const std::vector<KvRegion>& first = ranks.front().regions;
    const std::string name = "rank " + std::to_string(rank.rank.value());
    if (rank.regions.size() != first.size()) {
      return incompatible(name + " has " + std::to_string(rank.regions.size()) +
                          " regions, rank 0 has " + std::to_string(first.size()));
    }
    for (std::size_t i = 0; i < first.size(); ++i) {
      if (rank.regions[i].block_len_bytes == first[i].block_len_bytes) continue;
      return incompatible("region " + std::to_string(i) + " of " + name + " has blocks of " +
                          std::to_string(rank.regions[i].block_len_bytes) + " bytes, of rank 0 " +
                          std::to_string(first[i].block_len_bytes));
    }
  }
  return {};
}

}  // namespace

std::optional<std::string> incompatibility(const CompatibilityIdentity& ours,
                                           const CompatibilityIdentity& theirs) {
  for (const IdentityItem& item : kIdentityItems) {
    const std::string here = item.shown(ours);
    const std::string there = item.shown(theirs);
    if (here == there) continue;
    std::string words(item.name);
    return words.append(" is ").append(here).append(" here, ").append(there).append(" there");
  }
  return std::nullopt;
}

std::string to_json(const HandshakeRequest& request) {
  JsonWriter out;
  out.json("protocol", to_json(request.protocol));
  out.string("engine_id", request.engine_id);
  out.hex("incarnation", request.incarnation.value());
  out.string("expected_engine_id", request.expected_engine_id);
  out.json("identity", to_json(request.identity));
  out.integer("tp_size", request.tp_size);
  return out.take();
}

std::string to_json(const HandshakeReply& reply) {
  JsonWriter out;
  out.json("protocol", to_json(reply.protocol));
  out.string("engine_id", reply.engine_id);
  out.hex("incarnation", reply.incarnation.value());
  out.hex("seal_key", reply.seal_key);
  out.json("identity", to_json(reply.identity));
  out.integer("lease_duration_ms", milliseconds(reply.times.duration));
  out.integer("heartbeat_interval_ms", milliseconds(reply.times.heartbeat_interval));
  out.integer("lease_extension_ms", milliseconds(reply.times.extension));
  out.number("clock_seconds", reply.clock_seconds);
  out.json("ranks", json_array_of(reply.ranks, [](const RankMetadata& r) { return to_json(r); }));
  return out.take();
}

Result<HandshakeRequest> parse_handshake_request(std::string_view json, const ProtocolRange& ours) {
  std::optional<Error> problem;
  JsonObject fields = open_json(json, kHandshakeBytesMax, "the handshake request", problem);
  HandshakeRequest request;
  if (read_protocol(fields, ours, request.protocol, problem)) {
    fields.string("engine_id", kEngineIdRule, request.engine_id);
    fields.hex("incarnation", request.incarnation);
    fields.string("expected_engine_id", kEngineIdRule, request.expected_engine_id);
    read_identity(fields, request.identity);
    fields.integer("tp_size", {.min = 1, .max = kTpMax}, request.tp_size);
  }
  if (problem) return std::unexpected(*std::move(problem));
  return request;
}

Result<HandshakeReply> parse_handshake_reply(std::string_view json, const ProtocolRange& ours) {
  std::optional<Error> problem;
  JsonObject fields = open_json(json, kHandshakeBytesMax, "the handshake reply", problem);
  HandshakeReply reply;
  if (read_protocol(fields, ours, reply.protocol, problem)) {
    fields.string("engine_id", kEngineIdRule, reply.engine_id);
    fields.hex("incarnation", reply.incarnation);
    fields.hex("seal_key", reply.seal_key);
    read_identity(fields, reply.identity);
    read_times(fields, reply.times);
    fields.number("clock_seconds", reply.clock_seconds);
    read_ranks(fields, reply.ranks);
  }
  if (problem) return std::unexpected(*std::move(problem));
  return reply;
}

Result<std::uint32_t> choose_protocol(const ProtocolRange& ours, const ProtocolRange& theirs) {
  const std::uint32_t highest = std::min(ours.max, theirs.max);
  if (highest >= std::max(ours.min, theirs.min)) return highest;
  const auto shown = [](const ProtocolRange& range) {
    return std::to_string(range.min) + " to " + std::to_string(range.max);
  };
  return incompatible("no common version of the protocol: " + shown(ours) + " here, " +
                      shown(theirs) + " there");
}

Result<void> check_handshake_request(const HandshakeRequest& request, const HandshakeReply& ours,
                                     bool enforce_handshake_compat) {
  if (const auto chosen = choose_protocol(ours.protocol, request.protocol); !chosen) {
    return std::unexpected(chosen.error());
  }
  if (request.expected_engine_id != ours.engine_id) {
    return error(ErrorCode::kNotFound, "engine " + request.expected_engine_id.str() +
                                           " is not here; this is " + ours.engine_id.str());
  }
  if (auto same = check_identity(ours.identity, request.identity, enforce_handshake_compat);
      !same) {
    return same;
  }
  if (auto divide = check_block_size(request.identity.block_size, ours.identity.block_size);
      !divide) {
    return divide;
  }
  return check_tp(ours.ranks.size(), request.tp_size, ours.identity.num_kv_heads);
}

Result<void> check_handshake_reply(const HandshakeReply& reply, const HandshakeRequest& asked,
                                   bool enforce_handshake_compat) {
  if (const auto chosen = choose_protocol(asked.protocol, reply.protocol); !chosen) {
    return std::unexpected(chosen.error());
  }
  if (reply.engine_id != asked.expected_engine_id) {
    return error(ErrorCode::kNotFound, "asked for engine " + asked.expected_engine_id.str() +
                                           ", but " + reply.engine_id.str() + " answered");
  }
  if (auto same = check_identity(asked.identity, reply.identity, enforce_handshake_compat); !same) {
    return same;
  }
  if (auto divide = check_block_size(asked.identity.block_size, reply.identity.block_size);
      !divide) {
    return divide;
  }
  if (auto divide = check_tp(asked.tp_size, reply.ranks.size(), asked.identity.num_kv_heads);
      !divide)
    return divide;
  return check_regions(reply.ranks);
}

}  // namespace kvlease
