// A range of memory and where it lives, as both the transport and the handshake name it.
#pragma once

#include <cstdint>

namespace kvlease {

enum class MemoryKind : std::uint8_t { kDram, kVram };

// `address` is meaningful in the process that registered it; a peer uses it only to name places
// inside that registration. `device` is 0 for kDram, the device's ordinal for kVram.
struct MemoryRegion {
  std::uint64_t address = 0;
  std::uint64_t length_bytes = 0;
  MemoryKind kind = MemoryKind::kDram;
  std::uint32_t device = 0;
  bool operator==(const MemoryRegion&) const = default;
};

}  // namespace kvlease
