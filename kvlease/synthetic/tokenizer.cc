// Implements tokenizer.h: bytes are tokens.
#include "kvlease/synthetic/tokenizer.h"

namespace kvlease {

std::vector<TokenId> tokenize(std::string_view text) {
  std::vector<TokenId> tokens;
  tokens.reserve(text.size());
  for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
  return tokens;
}

std::string detokenize(std::span<const TokenId> tokens) {
  std::string text;
  text.reserve(tokens.size());
  for (const TokenId token : tokens) {
    if (token < kEndOfText) text.push_back(static_cast<char>(token));
  }
  return text;
}

}  // namespace kvlease
