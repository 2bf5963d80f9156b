// Reads and, when told to, writes the committed snapshots.
#include "kvlease/core/snapshot_testing.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

namespace kvlease {

void expect_snapshot(std::string_view file, const std::string& text) {
  const std::string path =
      std::string(KVL_SOURCE_DIR) + "/kvlease/core/snapshots/" + std::string(file);
  const char* update = std::getenv("KVL_UPDATE_SNAPSHOTS");
  if (update != nullptr && std::string_view(update) == "1") {
    std::ofstream out(path, std::ios::binary);
    out << text;
    ASSERT_TRUE(out.flush()) << "cannot write " << path;
    return;
  }
  std::ifstream in(path, std::ios::binary);
  ASSERT_TRUE(in) << "cannot read " << path << "; KVL_UPDATE_SNAPSHOTS=1 writes it";
  const std::string committed{std::istreambuf_iterator<char>(in), {}};
  EXPECT_TRUE(committed == text) << path << " is not what the table says now:\n"
                                 << text << "run the test with KVL_UPDATE_SNAPSHOTS=1 to update it";
}

}  // namespace kvlease
