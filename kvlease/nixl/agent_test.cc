// The adapter over real NIXL, two agents in one process: what is particular to it. What every
// Transport promises is tested in contract_test.cc.
#include "kvlease/nixl/agent.h"

#include <gtest/gtest.h>

#include <numeric>
#include <utility>

#include "kvlease/nixl/nixl_testing.h"

namespace kvlease::nixl {
namespace {

using std::chrono::seconds;

constexpr std::size_t kMiB = 1u << 20;

// A reader that has loaded a source, with prepared lists of pieces over both buffers.
struct Pair {
  TestAgent source;
  TestAgent reader;
  DescListHandle from;
  DescListHandle to;

  Pair(const Library& library, std::size_t memory_bytes, std::size_t piece_bytes,
       std::uint64_t post_bytes_max, const std::string& test)
      : source(make_test_agent(library, "source/0/" + test + ".0", memory_bytes, post_bytes_max)),
        reader(make_test_agent(library, "reader/0/" + test + ".0", memory_bytes, post_bytes_max)) {
    fill_pattern(source.memory, 1);
    EXPECT_EQ(reader.transport->add_peer(source.transport->local_metadata().value()).value(),
              source.transport->name());
    to = reader.transport->prepare_local(reader.pieces(piece_bytes)).value();
    from = reader.transport->prepare_remote(source.transport->name(), source.pieces(piece_bytes))
               .value();
  }

  Result<TransferHandle> read_all(std::size_t pieces) {
    std::vector<std::uint32_t> indices(pieces);
    std::iota(indices.begin(), indices.end(), 0);
    return reader.transport->post_read(to, from, {.local = indices, .remote = indices});
  }

  TransferState wait_for(TransferHandle read) {
    TransferState state = TransferState::kInProgress;
    wait_until(seconds(20), [&] {
      state = reader.transport->poll(read);
      return state != TransferState::kInProgress;
    });
    return state;
  }
};

TEST(NixlAgent, ReadsInBoundedPosts) {
  const Library* library = library_for_test();
  if (library == nullptr) return;
  Pair pair(*library, 4 * kMiB, 64 * 1024, 256 * 1024, "bounded");
  const TransferHandle read = pair.read_all(64).value();
  const Duration first_post = pair.reader.transport->post_time(read);
  EXPECT_GT(first_post, Duration::zero());
  // 16 posts of 256 KiB, at most one a call: it cannot be done before the 15th poll.
  for (int polls = 0; polls < 14; ++polls) {
    ASSERT_EQ(pair.reader.transport->poll(read), TransferState::kInProgress);
  }
  EXPECT_EQ(pair.wait_for(read), TransferState::kDone);
  EXPECT_GT(pair.reader.transport->post_time(read), first_post);  // of all 16
  EXPECT_EQ(pair.reader.memory, pair.source.memory);
  pair.reader.transport->release(read);
}

TEST(NixlAgent, NotificationsArriveInOrder) {
  const Library* library = library_for_test();
  if (library == nullptr) return;
  Pair pair(*library, kMiB, kMiB, kMiB, "notif");
  std::vector<Notification> expected;
  for (std::uint8_t i = 0; i < 100; ++i) {
    expected.push_back({pair.reader.transport->name(), Bytes(i, std::byte{i})});
    ASSERT_TRUE(
        pair.reader.transport->send_notif(pair.source.transport->name(), expected.back().payload));
  }
  std::vector<Notification> arrived;
  EXPECT_TRUE(wait_until(seconds(20), [&] {
    for (Notification& notif : pair.source.transport->take_notifs()) {
      arrived.push_back(std::move(notif));
    }
    return arrived.size() >= expected.size();
  }));
  EXPECT_EQ(arrived, expected);
}

}  // namespace
}  // namespace kvlease::nixl
