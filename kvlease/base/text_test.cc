// Tests of text.h.
#include "kvlease/base/text.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace kvlease
