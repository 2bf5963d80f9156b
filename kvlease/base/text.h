// Questions about text from outside.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string_view>
#include <system_error>

namespace kvlease {

struct TextScan {
  bool printable_ascii = true;  // every byte, the space included; so also for no bytes
  std::size_t count = 0;        // of the byte that was asked for
};

// Looks at each byte of `text` once, and counts those that equal `byte`. Requires: `byte` is ASCII.
inline TextScan scan_text(std::string_view text, char byte) {
  // Sixteen bytes at a time, in one of the vector registers that every x86-64 and ARM64 has.
  using Lanes [[gnu::vector_size(16)]] = unsigned char;
  constexpr std::size_t rounds_max = 255;  // that a lane can count
  TextScan scan;
  Lanes others{};
  while (text.size() >= sizeof(Lanes)) {
    const std::size_t rounds = std::min(rounds_max, text.size() / sizeof(Lanes));
    const char* const end = text.data() + rounds * sizeof(Lanes);
    Lanes counts{};
    for (const char* from = text.data(); from != end; from += sizeof(Lanes)) {
      Lanes bytes;
      std::memcpy(&bytes, from, sizeof bytes);
      others |= Lanes(bytes - ' ' > '~' - ' ');
      counts -= Lanes(bytes == static_cast<unsigned char>(byte));  // true is -1
    }
    for (std::size_t i = 0; i < sizeof counts; ++i) scan.count += counts[i];
    text.remove_prefix(rounds * sizeof(Lanes));
  }
  for (std::size_t i = 0; i < sizeof others; ++i) scan.printable_ascii &= others[i] == 0;
  for (const char c : text) {
    scan.printable_ascii &= c >= ' ' && c <= '~';
    scan.count += c == byte;
  }
  return scan;
}

// True when every byte is printable ASCII, the space included; so also for no bytes.
inline bool is_printable_ascii(std::string_view text) {
  return scan_text(text, ' ').printable_ascii;
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
