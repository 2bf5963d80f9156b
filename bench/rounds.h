// How a benchmark program is asked: bench.py writes one line `OPERATION SIZE TIMES` at a time and
// reads how long it took. So both sides of a ratio take turns in one run, one of them may be
// CPython, and callgrind counts the very operations that are timed.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <string>

namespace kvlease {

// Does something `times` times, on a world of `size` that it makes when first asked.
using Operation = std::function<void(std::size_t size, std::size_t times)>;

// Answers lines of stdin with nanoseconds per time until it ends; the program's exit code. A first
// round of a size is for warming up.
inline int answer_rounds(const std::map<std::string, Operation>& operations) {
  std::string name;
  std::size_t size = 0;
  std::size_t times = 0;
  while (std::cin >> name >> size >> times) {
    const auto operation = operations.find(name);
    if (operation == operations.end() || times == 0) {
      std::fprintf(stderr, "no such round: %s %zu %zu\n", name.c_str(), size, times);
      return EXIT_FAILURE;
    }
    const auto begun = std::chrono::steady_clock::now();
    operation->second(size, times);
    const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - begun;
    std::printf("%.3f\n", taken.count() / static_cast<double>(times));
    std::fflush(stdout);
  }
  return EXIT_SUCCESS;
}

}  // namespace kvlease
