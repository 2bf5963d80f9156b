// Tests of secret.h.
#include "kvlease/wire/secret.h"

#include <gtest/gtest.h>

#include <string>

namespace kvlease {
namespace {

TEST(Secret, MatchesOnlyItself) {  // L51
  EXPECT_TRUE(secret_matches("key", "key"));
  EXPECT_TRUE(secret_matches("", ""));
  for (const char* other : {"", "k", "ke", "kez", "aey", "key ", "keykey", "KEY"}) {
    EXPECT_FALSE(secret_matches(other, "key")) << other;
  }
}

TEST(Secret, ZeroBytesCount) {
  EXPECT_FALSE(secret_matches(std::string("k\0a", 3), std::string("k\0b", 3)));
  EXPECT_FALSE(secret_matches("k", std::string("k\0", 2)));
}

}  // namespace
}  // namespace kvlease
