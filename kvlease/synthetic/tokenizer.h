// Text and tokens of the synthetic model: a token is a byte, and one token more ends a text. What
// the model generates are letters, digits and spaces, so that every text can be read and compared.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvlease/base/ids.h"

namespace kvlease {

inline constexpr TokenId kEndOfText = 256;
inline constexpr std::uint32_t kVocabularySize = 257;
// What the model chooses from: 64 bytes.
inline constexpr std::string_view kOutputBytes =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 -";
static_assert(kOutputBytes.size() == 64);

std::vector<TokenId> tokenize(std::string_view text);

// The end of the text, and numbers that are no token, have no text.
std::string detokenize(std::span<const TokenId> tokens);

}  // namespace kvlease
