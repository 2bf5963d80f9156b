// getrandom(2).
#include "kvlease/runtime/random.h"

#include <errno.h>
#include <sys/random.h>

#include <array>
#include <bit>

#include "kvlease/base/check.h"

namespace kvlease {

void fill_random(std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t got = getrandom(out.data(), out.size(), 0);
    KVL_CHECK(got > 0 || errno == EINTR, "Linux gives random bytes");
    if (got > 0) out = out.subspan(static_cast<std::size_t>(got));
  }
}

std::uint64_t random_u64() {
  std::array<std::byte, sizeof(std::uint64_t)> bytes;
  fill_random(bytes);
  return std::bit_cast<std::uint64_t>(bytes);
}

}  // namespace kvlease
