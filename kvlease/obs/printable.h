// Text from peers as people may look at it: what is shown in a terminal or on a page must not steer
// either (L44).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvlease {

// `text` with '?' for every byte that is not printable ASCII, cut to `bytes_max` (then ends "...").
// Requires: bytes_max >= 3.
inline std::string printable(std::string_view text, std::size_t bytes_max) {
  std::string shown(text.substr(0, bytes_max));
  for (char& c : shown) {
    if (c < ' ' || c > '~') c = '?';
  }
  if (text.size() > bytes_max) shown.replace(bytes_max - 3, 3, "...");
  return shown;
}

}  // namespace kvlease
