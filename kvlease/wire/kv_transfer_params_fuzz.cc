// Fuzzes parse_kv_transfer_params with texts as a client could send them (L52).
#include "kvlease/wire/fuzz_testing.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer calls it by this name.
extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  kvlease::check_kv_transfer_params(kvlease::as_text(std::as_bytes(std::span(data, size))));
  return 0;
}
