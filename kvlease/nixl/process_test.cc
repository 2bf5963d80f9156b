// The adapter against a peer in another process: whole, killed, stopped. CTest runs it by CMA and
// by TCP.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "kvlease/nixl/agent.h"
#include "kvlease/nixl/nixl_testing.h"
#include "kvlease/nixl/peer_testing.h"

namespace kvlease::nixl {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t kPieceBytes = 64 * 1024;
constexpr std::uint32_t kPieces = PeerProcess::kMemoryBytes / kPieceBytes;

class TwoProcesses : public testing::Test {
 protected:
  void SetUp() override {
    const Library* library = library_for_test();
    if (library == nullptr) return;
    reader_ = make_test_agent(*library, "reader/0/1.0", PeerProcess::kMemoryBytes, 1u << 20);
    expected_.resize(PeerProcess::kMemoryBytes);
    fill_pattern(expected_, 1);
    to_ = transport().prepare_local(reader_.pieces(kPieceBytes)).value();
    meet();
  }

  Transport& transport() { return *reader_.transport; }

  // Starts a peer, loads it and hears from it, so that both directions are connected.
  void meet() {
    peer_ = std::make_unique<PeerProcess>();
    load();
    peer_->introduce(transport().local_metadata().value());
    ASSERT_TRUE(transport().send_notif(name_, as_byte_span("hello")));
    ASSERT_TRUE(wait_until(seconds(20), [&] {
      return transport().take_notifs() == std::vector{Notification{name_, to_bytes("hello")}};
    }));
  }

  void load() {
    const Result<AgentName> name = transport().add_peer(peer_->hello().metadata);
    ASSERT_TRUE(name) << name.error().message;
    name_ = *name;
    std::vector<MemoryRegion> pieces;
    for (std::uint32_t i = 0; i < kPieces; ++i) {
      pieces.push_back({.address = peer_->hello().region.address + i * kPieceBytes,
                        .length_bytes = kPieceBytes});
    }
    from_ = transport().prepare_remote(name_, pieces).value();
  }

  static Bytes to_bytes(std::string_view text) {
    const auto bytes = as_byte_span(text);
    return {bytes.begin(), bytes.end()};
  }

  Result<TransferHandle> read_all() {
    std::vector<std::uint32_t> indices(kPieces);
    std::iota(indices.begin(), indices.end(), 0);
    return transport().post_read(to_, from_, {.local = indices, .remote = indices});
  }

  // A CMA read takes the bytes without the peer's help, so that a stopped peer may not delay it.
  static bool over_tcp() {
    const char* transports = std::getenv("UCX_TLS");
    return transports != nullptr && std::string_view(transports) == "tcp";
  }

  TransferState wait_for(TransferHandle read, milliseconds limit) {
    TransferState state = TransferState::kInProgress;
    wait_until(limit, [&] {
      state = transport().poll(read);
      return state != TransferState::kInProgress;
    });
    return state;
  }

  void expect_a_good_read() {
    std::ranges::fill(reader_.memory, std::byte{0});
    const Result<TransferHandle> read = read_all();
    ASSERT_TRUE(read) << read.error().message;
    ASSERT_EQ(wait_for(*read, seconds(20)), TransferState::kDone);
    EXPECT_TRUE(reader_.memory == expected_);
    transport().release(*read);
  }

  TestAgent reader_;
  Bytes expected_;
  std::unique_ptr<PeerProcess> peer_;
  AgentName name_;
  DescListHandle to_;
  DescListHandle from_;
};

TEST_F(TwoProcesses, ReadTheWholeMemory) { expect_a_good_read(); }

// L21, L26
TEST_F(TwoProcesses, APeerKilledDuringReadsIsSuspectAndItsReadsBecomeFinal) {
  std::vector<TransferHandle> reads;
  while (reads.size() < 4) reads.push_back(read_all().value());
  EXPECT_EQ(transport().poll(reads.front()), TransferState::kInProgress);
  peer_->kill_and_wait();
  EXPECT_TRUE(wait_until(seconds(20), [&] {
    const Result<TransferHandle> read = read_all();
    if (read) reads.push_back(*read);
    return !read && read.error().code == ErrorCode::kSuspectPeer;
  }));
  for (const TransferHandle read : reads) {
    EXPECT_EQ(wait_for(read, seconds(20)), TransferState::kError);
    transport().release(read);
  }
  EXPECT_TRUE(wait_until(seconds(20), [&] {
    const Result<void> sent = transport().send_notif(name_, as_byte_span("hello"));
    return !sent && sent.error().code == ErrorCode::kSuspectPeer;
  }));

  // The same agent goes on with the peer's successor.
  transport().remove_peer(name_);
  transport().release_list(from_);
  meet();
  expect_a_good_read();
}

// L26: there is no time-out below us, and what was late still lands.
TEST_F(TwoProcesses, AReadFromAStoppedPeerEndsWhenThePeerGoesOn) {
  peer_->signal(SIGSTOP);
  ASSERT_TRUE(transport().send_notif(name_, as_byte_span("are you there")));
  const TransferHandle read = read_all().value();
  const TransferState while_stopped = wait_for(read, milliseconds(500));
  if (over_tcp()) {
    EXPECT_EQ(while_stopped, TransferState::kInProgress);
  }
  transport().remove_peer(name_);
  if (over_tcp()) {
    EXPECT_EQ(transport().poll(read), TransferState::kInProgress);
  }
  peer_->signal(SIGCONT);
  EXPECT_EQ(wait_for(read, seconds(20)), TransferState::kDone);
  EXPECT_TRUE(reader_.memory == expected_);
  transport().release(read);
}

// L26
TEST_F(TwoProcesses, AReadFromAStoppedPeerEndsWhenThePeerIsKilled) {
  peer_->signal(SIGSTOP);
  ASSERT_TRUE(transport().send_notif(name_, as_byte_span("are you there")));
  const TransferHandle read = read_all().value();
  const TransferState while_stopped = wait_for(read, milliseconds(200));
  if (over_tcp()) {
    EXPECT_EQ(while_stopped, TransferState::kInProgress);
  }
  peer_->kill_and_wait();
  const TransferState last = wait_for(read, seconds(20));
  EXPECT_NE(last, TransferState::kInProgress);
  if (over_tcp()) {
    EXPECT_EQ(last, TransferState::kError);
  }
  if (last == TransferState::kDone) {
    EXPECT_TRUE(reader_.memory == expected_);
  }
  transport().release(read);
}

// L31: the one case in which a name is loaded twice.
TEST_F(TwoProcesses, ALivingPeerIsLoadedAgain) {
  expect_a_good_read();
  transport().remove_peer(name_);
  transport().release_list(from_);
  load();
  expect_a_good_read();
}

}  // namespace
}  // namespace kvlease::nixl
