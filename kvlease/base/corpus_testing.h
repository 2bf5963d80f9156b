// Replays the inputs that a fuzzer's committed corpus holds, in tests.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

namespace kvlease {

// Calls `check` with each file of `folder`, which is below the source's root and not empty.
template <typename Check>
void replay_corpus(std::string_view folder, Check check) {
  int inputs = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(std::filesystem::path(KVL_SOURCE_DIR) / folder)) {
    SCOPED_TRACE(file.path().string());
    std::ifstream in(file.path(), std::ios::binary);
    const std::string input((std::istreambuf_iterator<char>(in)), {});
    ASSERT_TRUE(in.good() || in.eof());
    check(std::string_view(input));
    ++inputs;
  }
  EXPECT_GT(inputs, 0) << folder;
}

}  // namespace kvlease
