// mmap(2).
#include "kvlease/runtime/memory.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include <string>
#include <utility>

#include "kvlease/base/check.h"

namespace kvlease {

Result<PageMemory> PageMemory::map(std::size_t bytes) {
  KVL_CHECK(bytes > 0, "there is no empty mapping");
  void* const start =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) {
    return error(ErrorCode::kResourceExhausted, "cannot map " + std::to_string(bytes) +
                                                    " bytes of memory (" + strerror(errno) +
                                                    "): use fewer or smaller blocks");
  }
  return PageMemory(std::span(static_cast<std::byte*>(start), bytes));
}

PageMemory::PageMemory(PageMemory&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

PageMemory& PageMemory::operator=(PageMemory&& other) noexcept {
  PageMemory moved = std::move(other);
  std::swap(bytes_, moved.bytes_);
  return *this;
}

PageMemory::~PageMemory() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

}  // namespace kvlease
