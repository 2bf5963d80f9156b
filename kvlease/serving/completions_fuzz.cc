// Fuzzes the bodies of completions and chats as a client could send them (L35).
#include "kvlease/serving/fuzz_testing.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer calls it by this name.
extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  kvlease::check_completion_request(kvlease::as_text(std::as_bytes(std::span(data, size))));
  return 0;
}
