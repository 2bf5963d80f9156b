// Fuzzes parse_kv_transfer_config with texts as an operator could write them (L13).
#include "kvlease/wire/fuzz_testing.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer calls it by this name.
extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  kvlease::check_kv_transfer_config(kvlease::as_text(std::as_bytes(std::span(data, size))));
  return 0;
}
