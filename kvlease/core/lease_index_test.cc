// The index against a map, over random insertions and removals, with hashes that collide on
// purpose.
#include "kvlease/core/lease_index.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "kvlease/base/prng.h"

namespace kvlease {
namespace {

using RecordNumber = LeaseIndex::RecordNumber;

std::optional<RecordNumber> find(const LeaseIndex& index, std::uint64_t hash, RecordNumber wanted) {
  return index.find(hash, [wanted](RecordNumber number) { return number == wanted; });
}

TEST(LeaseIndexTest, FindsWhatWasPutInAndNothingElse) {
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    for (const std::uint32_t different_hashes : {1u, 8u, 100'000u}) {
      Prng prng(seed);
      LeaseIndex index;
      std::map<RecordNumber, std::uint64_t> model;
      for (int step = 0; step < 4'000; ++step) {
        const auto record = static_cast<RecordNumber>(prng.below(200));
        const std::uint64_t hash = mix64(record % different_hashes);
        const auto known = model.find(record);
        ASSERT_EQ(find(index, hash, record).has_value(), known != model.end())
            << "seed " << seed << ", step " << step;
        if (known == model.end()) {
          index.insert(hash, record);
          model.emplace(record, hash);
        } else {
          index.erase(hash, record);
          model.erase(known);
        }
      }
      for (const auto& [record, hash] : model) EXPECT_EQ(find(index, hash, record), record);
    }
  }
}

// Every byte of an id and its length count, whichever way its length is read.
TEST(LeaseIndexTest, HashesDifferWhereIdsDo) {
  for (const std::size_t length : {1u, 7u, 15u, 16u, 17u, 31u, 32u, 54u, 137u}) {
    const std::string id(length, 'a');
    EXPECT_NE(LeaseIndex::hash(id), LeaseIndex::hash(id + 'a'));
    for (std::size_t i = 0; i < length; ++i) {
      std::string other = id;
      other[i] = 'b';
      EXPECT_NE(LeaseIndex::hash(id), LeaseIndex::hash(other)) << length << ", " << i;
    }
  }
}

}  // namespace
}  // namespace kvlease
