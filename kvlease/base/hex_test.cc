// Tests of hex.h.
#include "kvlease/base/hex.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace kvlease {
namespace {

TEST(Hex, NumbersHaveSixteenLowercaseDigits) {
  EXPECT_EQ(to_hex(std::uint64_t{0}), "0000000000000000");
  EXPECT_EQ(to_hex(std::uint64_t{0x0123456789abcdef}), "0123456789abcdef");
  EXPECT_EQ(to_hex(UINT64_MAX), "ffffffffffffffff");
}

TEST(Hex, OtherSpellingsOfNumbersAreRefused) {
  EXPECT_EQ(hex_to_u64("0123456789abcdef"), 0x0123456789abcdefu);
  for (const std::string_view text :
       {"", "0", "0123456789abcde", "0123456789abcdef0", "0123456789ABCDEF", "0x23456789abcdef",
        "0123456789abcdeg", " 123456789abcdef", "-123456789abcdef"}) {
    EXPECT_EQ(hex_to_u64(text), std::nullopt) << text;
  }
}

TEST(Hex, OtherSpellingsOfBytesAreRefused) {
  EXPECT_EQ(hex_to_bytes(""), Bytes{});
  EXPECT_EQ(hex_to_bytes("00ff7a"), (Bytes{std::byte{0}, std::byte{0xff}, std::byte{0x7a}}));
  for (const std::string_view text : {"0", "000", "0F", "g0", "0 ", "0x"}) {
    EXPECT_EQ(hex_to_bytes(text), std::nullopt) << text;
  }
}

TEST(Hex, WhatIsWrittenIsReadBack) {
  EXPECT_TRUE(rc::check(
      "numbers", [](std::uint64_t value) { RC_ASSERT(hex_to_u64(to_hex(value)) == value); }));
  EXPECT_TRUE(rc::check("bytes", [](const std::string& text) {
    const auto bytes = as_byte_span(text);
    RC_ASSERT(hex_to_bytes(to_hex(bytes)) == Bytes(bytes.begin(), bytes.end()));
  }));
}

}  // namespace
}  // namespace kvlease
