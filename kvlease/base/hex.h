// Lowercase hexadecimal text, how 64-bit values, seals and digests travel in JSON (proxies pass
// JSON numbers through doubles; design: kv_transfer_params.kvlease).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kvlease/base/bytes.h"

namespace kvlease {

// 16 digits.
std::string to_hex(std::uint64_t value);
// Two digits a byte.
std::string to_hex(std::span<const std::byte> bytes);

// Errors: nullopt unless `text` is exactly 16 lowercase digits.
std::optional<std::uint64_t> hex_to_u64(std::string_view text);
// Errors: nullopt unless `text` is pairs of lowercase digits.
std::optional<Bytes> hex_to_bytes(std::string_view text);

}  // namespace kvlease
