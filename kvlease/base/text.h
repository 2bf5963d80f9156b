// Questions about text from outside.
#pragma once

#include <algorithm>
#include <string_view>

namespace kvlease {

// True when every byte is printable ASCII, the space included; so also for no bytes.
inline bool is_printable_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

}  // namespace kvlease
