// Fuzzes the HTTP client with what a server could answer (L35).
#include "kvlease/runtime/fuzz_testing.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer calls it by this name.
extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  kvlease::check_http_client(kvlease::as_text(std::as_bytes(std::span(data, size))));
  return 0;
}
