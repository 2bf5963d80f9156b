// Implements secret.h with libsodium.
#include "kvlease/wire/secret.h"

#include <sodium.h>

namespace kvlease {

bool secret_matches(std::string_view shown, std::string_view expected) {
  return shown.size() == expected.size() &&
         sodium_memcmp(shown.data(), expected.data(), expected.size()) == 0;
}

}  // namespace kvlease
