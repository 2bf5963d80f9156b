// Replays the fuzzers' committed corpora as ordinary tests.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "kvlease/wire/fuzz_testing.h"

namespace kvlease {
namespace {

template <typename Check>
void replay(std::string_view target, Check check) {
  const std::filesystem::path folder =
      std::filesystem::path(KVL_SOURCE_DIR) / "kvlease/wire/corpus" / target;
  int inputs = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    SCOPED_TRACE(file.path().string());
    std::ifstream in(file.path(), std::ios::binary);
    const std::string input((std::istreambuf_iterator<char>(in)), {});
    ASSERT_TRUE(in.good() || in.eof());
    check(input);
    ++inputs;
  }
  EXPECT_GT(inputs, 0) << folder;
}

TEST(Corpus, Notifications) {  // L44
  replay("notification_fuzz",
         [](std::string_view input) { check_notification(as_byte_span(input)); });
}

TEST(Corpus, KvTransferParams) { replay("kv_transfer_params_fuzz", check_kv_transfer_params); }

TEST(Corpus, Handshakes) { replay("handshake_fuzz", check_handshake); }

}  // namespace
}  // namespace kvlease
