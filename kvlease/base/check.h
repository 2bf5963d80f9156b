// Always-on assertions: a failed check is a bug of ours, never a peer's or a user's doing (those
// get a Result, see result.h).
#pragma once

#include <cstdio>
#include <cstdlib>

namespace kvlease::internal {

[[noreturn]] inline void check_failed(const char* condition, const char* file, int line,
                                      const char* message) {
  std::fprintf(stderr, "kvlease: check failed at %s:%d: %s: %s\n", file, line, condition, message);
  std::abort();
}

}  // namespace kvlease::internal

// Aborts with the place and `message` when `condition` does not hold. `message` is a literal that
// says what must be true.
#define KVL_CHECK(condition, message)                                             \
  do {                                                                            \
    if (!(condition)) [[unlikely]] {                                              \
      ::kvlease::internal::check_failed(#condition, __FILE__, __LINE__, message); \
    }                                                                             \
  } while (false)

// Marks a branch that no value of a (fully covered) switch can reach.
#define KVL_UNREACHABLE(message) \
  ::kvlease::internal::check_failed("unreachable", __FILE__, __LINE__, message)
