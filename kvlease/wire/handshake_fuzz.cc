// Fuzzes the handshake's parsers with texts as a peer could send them (L30).
#include "kvlease/wire/fuzz_testing.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer calls it by this name.
extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  kvlease::check_handshake(kvlease::as_text(std::as_bytes(std::span(data, size))));
  return 0;
}
