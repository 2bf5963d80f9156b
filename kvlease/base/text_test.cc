// Tests of text.h.
#include "kvlease/base/text.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace kvlease {
namespace {

TEST(Text, PrintableAsciiIsFromSpaceToTilde) {
  using namespace std::string_view_literals;
  for (const std::string_view text : {"", " ", "~", "cmpl-9b1d:0,/"}) {
    EXPECT_TRUE(is_printable_ascii(text)) << text;
  }
  for (const std::string_view text :
       {"\x1f"sv, "\x7f"sv, "a\nb"sv, "\0"sv, "\xc3\xa9"sv, "\xff"sv}) {
    EXPECT_FALSE(is_printable_ascii(text)) << text;
  }
}

TEST(Text, OnePrintedWronglyIsFoundWhereverItStands) {
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = byte >= 0x20 && byte <= 0x7e;
    for (std::size_t place = 0; place < 50; ++place) {
      std::string text(50, 'a');
      text[place] = static_cast<char>(byte);
      ASSERT_EQ(is_printable_ascii(text), printable) << byte << " at " << place;
    }
  }
}

TEST(Text, EveryOneOfTheByteIsCounted) {
  for (const std::size_t length : {0u, 1u, 15u, 16u, 17u, 4'080u, 4'096u, 10'000u}) {
    std::string text(length, 'a');
    EXPECT_EQ(scan_text(text, 'a').count, length);
    EXPECT_EQ(scan_text(text, ',').count, 0u);
    for (std::size_t i = 0; i < length; i += 7) text[i] = ',';
    EXPECT_EQ(scan_text(text, ',').count, (length + 6) / 7);
  }
}

TEST(Text, ANumberIsAllOfTheText) {
  EXPECT_EQ(parse_number<std::uint32_t>("4294967295"), 4294967295u);
  EXPECT_EQ(parse_number<std::int64_t>("-7"), -7);
  EXPECT_EQ(parse_number<double>("184220.417"), 184220.417);
  for (const std::string_view text :
       {"", " 1", "1 ", "+1", "-1", "1x", "0x1", "1.0", "4294967296"}) {
    EXPECT_EQ(parse_number<std::uint32_t>(text), std::nullopt) << text;
  }
  EXPECT_EQ(parse_number<double>("1e999"), std::nullopt);
}

}  // namespace
}  // namespace kvlease
