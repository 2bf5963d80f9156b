// Comparing a secret that a caller showed with the one that is expected (L51).
#pragma once

#include <string_view>

namespace kvlease {

// How long it takes tells nothing about where the two differ, only whether their lengths do.
bool secret_matches(std::string_view shown, std::string_view expected);

}  // namespace kvlease
