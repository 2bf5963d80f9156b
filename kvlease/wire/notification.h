// The notifications of the protocol, byte for byte as vLLM's NIXL connector writes them: heartbeats
// `HB:id,id,…` and completions `<id>:<n>`. Decoding is strict and bounded: what is not of these
// forms is a value with a cause, never an error that leaves the loop (L44). Source: vLLM
// nixl/pull_worker.py; rules L7, L17, L20.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "kvlease/base/bytes.h"
#include "kvlease/base/ids.h"

namespace kvlease {

inline constexpr std::string_view kHeartbeatPrefix = "HB:";
inline constexpr std::uint32_t kReadersMax = 1024;  // L7
inline constexpr std::size_t kWireIdBytesMax = 512;

struct HeartbeatNotif {
  std::vector<std::string_view> ids;  // views into the payload; empty pieces are left out
  std::size_t empty_pieces = 0;       // counted (L17)
};

struct CompletionNotif {
  std::string_view id;
  std::uint32_t readers_expected = 1;  // 1 … kReadersMax
};

enum class MalformedCause : std::uint8_t {
  kEmpty,
  kTooLong,  // over the limit that the receiver states
  kNotText,  // bytes outside printable ASCII
  kNoColon,
  kEmptyId,
  kBadCount,  // not a decimal number in 1 … kReadersMax, without sign and leading zeros
};
std::string_view malformed_cause_name(MalformedCause cause);

struct MalformedNotif {
  MalformedCause cause;
};

using ParsedNotif = std::variant<HeartbeatNotif, CompletionNotif, MalformedNotif>;

// Decodes one payload; the views in the answer live as long as `payload`. Splits a completion at
// the last colon (L7). O(bytes).
ParsedNotif parse_notif(std::span<const std::byte> payload, std::size_t bytes_max);

// Encodes one heartbeat naming `ids` in the given order, split into messages of at most `bytes_max`
// bytes (L17); none for no ids. An id that cannot be heartbeated in this form (see is_wire_id), or
// that alone is over `bytes_max`, is left out. Requires: bytes_max > 200, which every id of our own
// fits.
std::vector<Bytes> encode_heartbeat(std::span<const LeaseId> ids, std::size_t bytes_max);

// Requires: 1 <= readers_expected <= kReadersMax.
Bytes encode_completion(const LeaseId& id, std::uint32_t readers_expected);

// True for an id that both forms can carry: not empty, at most kWireIdBytesMax bytes, printable
// ASCII without ',', not `HB` (whose completion would read as a heartbeat) nor beginning with
// `HB:`. Ids of our own always are (L45); a peer's may not be (scenario C10).
bool is_wire_id(std::string_view id);

}  // namespace kvlease
