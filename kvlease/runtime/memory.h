// Page-aligned anonymous memory: where KV blocks and lease entries live, so that a transport can
// register whole pages.
#pragma once

#include <cstddef>
#include <span>

#include "kvlease/base/result.h"

namespace kvlease {

// Zeroed, private memory; given back when the object ends. Its address never changes, also by a
// move.
class PageMemory {
 public:
  // Requires: bytes > 0.
  // Errors: kResourceExhausted when the system does not give that much.
  static Result<PageMemory> map(std::size_t bytes);

  PageMemory(PageMemory&& other) noexcept;
  PageMemory& operator=(PageMemory&& other) noexcept;
  ~PageMemory();

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  explicit PageMemory(std::span<std::byte> bytes) : bytes_(bytes) {}
  std::span<std::byte> bytes_;
};

}  // namespace kvlease
