// Fuzzes what a router takes out of the answers of instances (L10, L39).
#include "kvlease/route/fuzz_testing.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer calls it by this name.
extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  kvlease::check_answer(kvlease::as_text(std::as_bytes(std::span(data, size))));
  return 0;
}
