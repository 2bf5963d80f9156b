// Questions about text from outside.
#pragma once

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace kvlease {

// True when every byte is printable ASCII, the space included; so also for no bytes.
inline bool is_printable_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
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
