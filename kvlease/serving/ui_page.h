// The page at /kvlease/ui, one file without anything from elsewhere (ui.html, put in by the build).
#pragma once

#include <string_view>

namespace kvlease {

// HTML; each kUiNonce in it stands for the nonce of one answer's Content-Security-Policy.
std::string_view ui_page();
inline constexpr std::string_view kUiNonce = "THE_NONCE";

}  // namespace kvlease
