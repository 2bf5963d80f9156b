// Fuzzes the HTTP server with what a client could send over a connection (L35).
#include "kvlease/runtime/fuzz_testing.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer calls it by this name.
extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  kvlease::check_http_server(kvlease::as_text(std::as_bytes(std::span(data, size))));
  return 0;
}
