// A seeded pseudo-random generator (xoshiro256**, Blackman and Vigna 2018; seeded by splitmix64)
// whose sequence is the same on every machine, unlike the distributions of <random>.
#pragma once

#include <bit>
#include <cstdint>

#include "kvlease/base/check.h"

namespace kvlease {

// One step of splitmix64; also a good mixer of 64 bits.
constexpr std::uint64_t mix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

class Prng {
 public:
  explicit constexpr Prng(std::uint64_t seed) {
    for (std::uint64_t& word : state_) word = seed = mix64(seed);
  }

  constexpr std::uint64_t next() {
    const std::uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    const std::uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  // A number in [0, bound). Requires: bound > 0.
  constexpr std::uint64_t below(std::uint64_t bound) {
    KVL_CHECK(bound > 0, "an empty range has no number");
    const std::uint64_t threshold = (0 - bound) % bound;
    for (;;) {
      const std::uint64_t value = next();
      if (value >= threshold) return value % bound;
    }
  }

  // True in `numerator` of `denominator` cases.
  constexpr bool chance(std::uint64_t numerator, std::uint64_t denominator) {
    return below(denominator) < numerator;
  }

 private:
  std::uint64_t state_[4]{};
};

}  // namespace kvlease
