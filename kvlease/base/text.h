// Questions about text from outside.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <system_error>

namespace kvlease {

// True when every byte is printable ASCII, the space included; so also for no bytes.
inline bool is_printable_ascii(std::string_view text) {
  // Sixteen bytes at a time, in one of the vector registers that every x86-64 and ARM64 has.
  using Lane [[gnu::vector_size(16)]] = unsigned char;
  Lane others{};
  for (; text.size() >= sizeof others; text.remove_prefix(sizeof others)) {
    Lane bytes;
    std::memcpy(&bytes, text.data(), sizeof bytes);
    others |= Lane(bytes - ' ' > '~' - ' ');
  }
  std::array<std::uint64_t, 2> found;
  std::memcpy(&found, &others, sizeof found);
  return (found[0] | found[1]) == 0 &&
         std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

// The number that `text` spells in decimal, independent of the locale.
// Errors: nullopt unless all of `text` is one number that fits; a leading '+' or space is none.
template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (status != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace kvlease
