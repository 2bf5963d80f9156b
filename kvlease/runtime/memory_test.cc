// Mapped memory: aligned, zeroed, and an error instead of a crash when there is not enough.
#include "kvlease/runtime/memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace kvlease {
namespace {

TEST(PageMemory, IsAlignedZeroedAndStaysWhereItIs) {
  auto memory = PageMemory::map(100'000);
  ASSERT_TRUE(memory);
  ASSERT_EQ(memory->bytes().size(), 100'000u);
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory->bytes().data()) % page, 0u);
  EXPECT_TRUE(std::ranges::all_of(memory->bytes(), [](std::byte b) { return b == std::byte{0}; }));

  std::byte* const start = memory->bytes().data();
  PageMemory moved = std::move(*memory);
  EXPECT_EQ(moved.bytes().data(), start);
  moved.bytes().back() = std::byte{7};
  *memory = std::move(moved);
  EXPECT_EQ(memory->bytes().back(), std::byte{7});
}

TEST(PageMemory, TooMuchIsAnError) {
  const auto memory = PageMemory::map(std::size_t{1} << 60);
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(memory.error().message.find("1152921504606846976"), std::string::npos);
}

}  // namespace
}  // namespace kvlease
