// Tests of bytes.h: the layout, and that no input makes the reader leave it.
#include "kvlease/base/bytes.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <optional>

#include "kvlease/base/hex.h"

namespace kvlease {
namespace {

TEST(Bytes, LayoutIsLittleEndianWithLengthsBefore) {
  ByteWriter writer;
  writer.put(std::uint8_t{1});
  writer.put(std::uint32_t{0x01020304});
  writer.put(std::int64_t{-2});
  writer.put_string("ab");
  writer.put_raw(as_byte_span("c"));
  EXPECT_EQ(to_hex(writer.bytes()), "0104030201feffffffffffffff02000000616263");
}

TEST(Bytes, WhatIsWrittenIsReadBack) {
  EXPECT_TRUE(rc::check([](std::uint8_t a, std::int32_t b, std::uint64_t c, const std::string& d,
                           const std::string& e) {
    ByteWriter writer;
    writer.put(a);
    writer.put(b);
    writer.put_string(d);
    writer.put(c);
    writer.put_bytes(as_byte_span(e));
    const Bytes bytes = writer.take();
    ByteReader reader(bytes);
    RC_ASSERT(reader.get<std::uint8_t>() == a);
    RC_ASSERT(reader.get<std::int32_t>() == b);
    RC_ASSERT(reader.get_string() == d);
    RC_ASSERT(reader.get<std::uint64_t>() == c);
    RC_ASSERT(as_text(reader.get_bytes()) == e);
    RC_ASSERT(reader.finished());
  }));
}

TEST(Bytes, OneFailedReadFailsAllLaterOnes) {
  ByteWriter writer;
  writer.put(std::uint16_t{7});
  writer.put(std::uint8_t{1});
  const Bytes bytes = writer.take();
  ByteReader reader(bytes);
  EXPECT_EQ(reader.get<std::uint16_t>(), 7u);
  EXPECT_EQ(reader.get<std::uint32_t>(), 0u);
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(reader.get<std::uint8_t>(), 0u);  // although one byte is left
  EXPECT_FALSE(reader.finished());
}

TEST(Bytes, LengthsBeyondTheEndFail) {
  ByteWriter writer;
  writer.put(std::uint32_t{3});
  writer.put_raw(as_byte_span("ab"));
  ByteReader reader(writer.bytes());
  EXPECT_TRUE(reader.get_bytes().empty());
  EXPECT_FALSE(reader.ok());
}

TEST(Bytes, LeftOverBytesAreNotFinished) {
  ByteWriter writer;
  writer.put(std::uint16_t{7});
  ByteReader reader(writer.bytes());
  reader.get<std::uint8_t>();
  EXPECT_TRUE(reader.ok());
  EXPECT_FALSE(reader.finished());
}

TEST(Bytes, CountsThatCannotFitAreRefused) {
  const auto count_of = [](std::uint32_t count, std::size_t element_bytes_min) {
    ByteWriter writer;
    writer.put(count);
    writer.put(std::uint64_t{0});
    ByteReader reader(writer.bytes());
    const std::size_t read = reader.get_count(element_bytes_min);
    return reader.ok() ? std::optional(read) : std::nullopt;
  };
  EXPECT_EQ(count_of(2, 4), 2u);
  EXPECT_EQ(count_of(3, 4), std::nullopt);
  EXPECT_EQ(count_of(UINT32_MAX, 8), std::nullopt);
  EXPECT_EQ(count_of(0, 8), 0u);
}

}  // namespace
}  // namespace kvlease
