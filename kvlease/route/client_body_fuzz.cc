// Fuzzes the bodies that a router makes of a client's (L43).
#include "kvlease/route/fuzz_testing.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer calls it by this name.
extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  kvlease::check_client_body(kvlease::as_text(std::as_bytes(std::span(data, size))));
  return 0;
}
