// Random numbers of the operating system, for what must not be guessed or repeated: incarnations,
// slot words, seal keys. Everything that a simulation repeats uses base/prng.h instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvlease {

void fill_random(std::span<std::byte> out);
std::uint64_t random_u64();

}  // namespace kvlease
