// The date, for what people and foreign programs read; everything else lives on the loop's clock.
#pragma once

#include <cstdint>

namespace kvlease {

// Seconds of the Unix epoch. May jump.
std::int64_t unix_seconds();
std::uint64_t unix_nanoseconds();

}  // namespace kvlease
