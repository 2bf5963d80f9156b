// The contract of Transport as a test suite that every implementation passes. A program includes
// this file once and instantiates it for its worlds:
//
//   INSTANTIATE_TEST_SUITE_P(Fabric, TransportContract, testing::ValuesIn(cases()), case_name);
//
// It assumes nothing about time: all waiting is ContractWorld::poll_until().
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvlease/base/prng.h"
#include "kvlease/transport/transport.h"

namespace kvlease {

// Where the agents of one test live.
class ContractWorld {
 public:
  virtual ~ContractWorld() = default;

  // A new agent that belongs to the world. Requires: a name not used before in this world.
  virtual Transport& make_agent(const AgentName& name) = 0;

  // Asks `done` again and again and lets the transports work in between, until it says true or the
  // world's limit passes. Returns its last answer.
  virtual bool poll_until(const std::function<bool()>& done) = 0;

  // Whether kill() can end an agent as the death of its process would; the agent is not used after.
  virtual bool can_kill() const = 0;
  virtual void kill(Transport& agent) = 0;
};

struct ContractCase {
  std::string name;  // letters and digits: part of the tests' names
  // Null where this machine has no such world: the tests are skipped.
  std::function<std::unique_ptr<ContractWorld>()> make_world;
};

inline void PrintTo(const ContractCase& contract_case, std::ostream* out) {
  *out << contract_case.name;
}
inline std::string case_name(const testing::TestParamInfo<ContractCase>& info) {
  return info.param.name;
}

class TransportContract : public testing::TestWithParam<ContractCase> {
 protected:
  static constexpr std::uint64_t kBlockBytes = 4096;
  static constexpr std::uint32_t kBlocks = 64;
  static constexpr std::byte kUntouched{0xEE};
  static constexpr std::byte kOverwritten{0xDD};

  // An agent and its registered memory.
  struct Instance {
    Transport* transport = nullptr;
    Bytes memory = Bytes(kBlocks * kBlockBytes, kUntouched);

    std::span<std::byte> block(std::uint32_t index) {
      return std::span(memory).subspan(index * kBlockBytes, kBlockBytes);
    }
    MemoryRegion region(std::uint64_t offset, std::uint64_t bytes) const {
      return {.address = reinterpret_cast<std::uintptr_t>(memory.data()) + offset,
              .length_bytes = bytes};
    }
    std::vector<MemoryRegion> blocks() const {
      std::vector<MemoryRegion> regions;
      for (std::uint64_t i = 0; i < kBlocks; ++i) {
        regions.push_back(region(i * kBlockBytes, kBlockBytes));
      }
      return regions;
    }
  };

  struct Pairs {
    std::vector<std::uint32_t> local;
    std::vector<std::uint32_t> remote;
    ReadIndices indices() const { return {.local = local, .remote = remote}; }
  };
  static Pairs pairs(std::vector<std::uint32_t> local, std::vector<std::uint32_t> remote) {
    return {.local = std::move(local), .remote = std::move(remote)};
  }
  static Pairs first_blocks(std::uint32_t count) {
    std::vector<std::uint32_t> indices(count);
    std::iota(indices.begin(), indices.end(), 0u);
    return pairs(indices, indices);
  }

  void SetUp() override {
    world_ = GetParam().make_world();
    if (!world_) GTEST_SKIP() << GetParam().name << " is not available on this machine";
    producer_.transport = &world_->make_agent(AgentName("producer/0/00000000000000a1.0"));
    consumer_.transport = &world_->make_agent(AgentName("consumer/0/00000000000000b1.0"));
    fill(producer_.memory, 1);
    for (Instance* instance : {&producer_, &consumer_}) register_all(*instance);
  }

  static void fill(std::span<std::byte> bytes, std::uint64_t seed) {
    Prng prng(seed);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(prng.next());
  }

  static void register_all(Instance& instance) {
    const auto registered =
        instance.transport->register_memory(instance.region(0, instance.memory.size()));
    ASSERT_TRUE(registered) << registered.error().message;
  }

  static Bytes metadata(Instance& instance) {
    const Result<Bytes> bytes = instance.transport->local_metadata();
    EXPECT_TRUE(bytes) << bytes.error().message;
    return bytes.value_or(Bytes{});
  }

  // Makes `to` reachable for `from`, in this direction only.
  static void connect(Instance& from, Instance& to) {
    const Result<AgentName> peer = from.transport->add_peer(metadata(to));
    ASSERT_TRUE(peer) << peer.error().message;
    EXPECT_EQ(*peer, to.transport->name());
  }

  static DescListHandle prepared(const Result<DescListHandle>& list) {
    EXPECT_TRUE(list) << list.error().message;
    return list.value_or(DescListHandle{});
  }

  // All blocks of both sides, prepared for reads of `reader` from `source`.
  struct Lists {
    DescListHandle local;
    DescListHandle remote;
  };
  static Lists prepare(Instance& reader, Instance& source) {
    return {.local = prepared(reader.transport->prepare_local(reader.blocks())),
            .remote = prepared(
                reader.transport->prepare_remote(source.transport->name(), source.blocks()))};
  }

  static TransferHandle post(Instance& reader, Lists lists, const Pairs& pairs) {
    const Result<TransferHandle> read =
        reader.transport->post_read(lists.local, lists.remote, pairs.indices());
    EXPECT_TRUE(read) << read.error().message;
    return read.value_or(TransferHandle{});
  }

  TransferState wait_final(Instance& reader, TransferHandle read) {
    TransferState state = TransferState::kInProgress;
    world_->poll_until([&] {
      state = reader.transport->poll(read);
      return state != TransferState::kInProgress;
    });
    return state;
  }

  void read_to_end(Instance& reader, Lists lists, const Pairs& pairs) {
    const TransferHandle read = post(reader, lists, pairs);
    ASSERT_EQ(wait_final(reader, read), TransferState::kDone);
    reader.transport->release(read);
  }

  static void send(Instance& from, Instance& to, std::span<const std::byte> payload) {
    const auto sent = from.transport->send_notif(to.transport->name(), payload);
    ASSERT_TRUE(sent) << sent.error().message;
  }
  static void send(Instance& from, Instance& to, std::string_view payload) {
    send(from, to, as_byte_span(payload));
  }

  // The next `count` notifications, or what came until the world's limit.
  std::vector<Notification> receive(Instance& receiver, std::size_t count) {
    std::vector<Notification> received;
    world_->poll_until([&] {
      for (Notification& notif : receiver.transport->take_notifs()) {
        received.push_back(std::move(notif));
      }
      return received.size() >= count;
    });
    return received;
  }

  // Proves that nothing but what was received is under way: per pair the order holds.
  void expect_nothing_more(Instance& from, Instance& to) {
    send(from, to, "end");
    const std::vector<Notification> rest = receive(to, 1);
    ASSERT_EQ(rest.size(), 1u);
    EXPECT_EQ(as_text(rest[0].payload), "end");
  }

  // The memory outlives the agents, hence the order.
  Instance producer_;
  Instance consumer_;
  Instance other_;
  std::unique_ptr<ContractWorld> world_;
};

TEST_P(TransportContract, ReadCopiesTheRightBytesAndNoOthers) {
  connect(consumer_, producer_);
  const Bytes source = producer_.memory;
  read_to_end(consumer_, prepare(consumer_, producer_), pairs({7}, {3}));
  Bytes expected(consumer_.memory.size(), kUntouched);
  std::ranges::copy(producer_.block(3), expected.begin() + 7 * kBlockBytes);
  EXPECT_TRUE(consumer_.memory == expected);
  EXPECT_TRUE(producer_.memory == source);
}

TEST_P(TransportContract, IndicesChooseReorderAndRepeatBlocks) {
  connect(consumer_, producer_);
  const Pairs read = pairs({0, 63, 5, 6, 20}, {63, 0, 9, 9, 10});
  read_to_end(consumer_, prepare(consumer_, producer_), read);
  Bytes expected(consumer_.memory.size(), kUntouched);
  for (std::size_t i = 0; i < read.local.size(); ++i) {
    std::ranges::copy(producer_.block(read.remote[i]),
                      expected.begin() + static_cast<std::ptrdiff_t>(read.local[i] * kBlockBytes));
  }
  EXPECT_TRUE(consumer_.memory == expected);
}

TEST_P(TransportContract, OneListSpansRegistrationsAndLengths) {
  other_.transport = producer_.transport;  // a second region of the same agent
  fill(other_.memory, 2);
  register_all(other_);
  connect(consumer_, producer_);
  const std::array remote{producer_.region(100, 3), other_.region(5, 4000)};
  const std::array local{consumer_.region(1, 3), consumer_.region(50'000, 4000)};
  const Lists lists{
      .local = prepared(consumer_.transport->prepare_local(local)),
      .remote = prepared(consumer_.transport->prepare_remote(producer_.transport->name(), remote))};
  read_to_end(consumer_, lists, first_blocks(2));
  Bytes expected(consumer_.memory.size(), kUntouched);
  std::ranges::copy(std::span(producer_.memory).subspan(100, 3), expected.begin() + 1);
  std::ranges::copy(std::span(other_.memory).subspan(5, 4000), expected.begin() + 50'000);
  EXPECT_TRUE(consumer_.memory == expected);
}

TEST_P(TransportContract, PairsOfDifferentLengthAreRefused) {
  connect(consumer_, producer_);
  const std::array local{consumer_.region(0, 16), consumer_.region(16, 32)};
  const std::array remote{producer_.region(0, 16), producer_.region(16, 31)};
  const DescListHandle into = prepared(consumer_.transport->prepare_local(local));
  const DescListHandle out_of =
      prepared(consumer_.transport->prepare_remote(producer_.transport->name(), remote));
  const Pairs both = first_blocks(2);
  const auto read = consumer_.transport->post_read(into, out_of, both.indices());
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, ErrorCode::kInvalidArgument);

  read_to_end(consumer_, {.local = into, .remote = out_of}, first_blocks(1));
  EXPECT_TRUE(std::ranges::equal(consumer_.block(0).first(16), producer_.block(0).first(16)));
  EXPECT_EQ(consumer_.memory[16], kUntouched);
}

TEST_P(TransportContract, DescriptorsOutsideRegistrationsAreRefused) {
  connect(consumer_, producer_);
  const std::uint64_t size = kBlocks * kBlockBytes;
  const auto outside = [&](const Instance& instance) {
    MemoryRegion wrapping = instance.region(8, 0);
    wrapping.length_bytes = UINT64_MAX;
    return std::array{instance.region(size - 8, 9), instance.region(size, 1),
                      instance.region(static_cast<std::uint64_t>(-1), 2), wrapping};
  };
  for (const MemoryRegion& bad : outside(consumer_)) {
    const std::array descriptors{consumer_.region(0, 8), bad};
    const auto list = consumer_.transport->prepare_local(descriptors);
    ASSERT_FALSE(list) << bad.length_bytes;
    EXPECT_EQ(list.error().code, ErrorCode::kInvalidArgument);
  }
  for (const MemoryRegion& bad : outside(producer_)) {
    const std::array descriptors{producer_.region(0, 8), bad};
    const auto list = consumer_.transport->prepare_remote(producer_.transport->name(), descriptors);
    ASSERT_FALSE(list) << bad.length_bytes;
    EXPECT_EQ(list.error().code, ErrorCode::kInvalidArgument);
  }
  const auto empty = consumer_.transport->prepare_local({});
  ASSERT_FALSE(empty);
  EXPECT_EQ(empty.error().code, ErrorCode::kInvalidArgument);
}

TEST_P(TransportContract, MetadataCoversOnlyWhatWasRegisteredBefore) {
  connect(consumer_, producer_);
  other_.transport = producer_.transport;
  register_all(other_);
  const auto list =
      consumer_.transport->prepare_remote(producer_.transport->name(), other_.blocks());
  ASSERT_FALSE(list);
  EXPECT_EQ(list.error().code, ErrorCode::kInvalidArgument);
}

TEST_P(TransportContract, OwnMetadataIsRefused) {
  const auto peer = consumer_.transport->add_peer(metadata(consumer_));
  ASSERT_FALSE(peer);
  EXPECT_EQ(peer.error().code, ErrorCode::kIncompatible);
}

TEST_P(TransportContract, GarbageMetadataIsRefused) {
  Bytes noise(300);
  fill(noise, 3);
  Bytes half = metadata(producer_);
  half.resize(half.size() / 2);
  for (const Bytes& bytes : {Bytes{}, Bytes{std::byte{0}}, noise, half}) {
    const auto peer = consumer_.transport->add_peer(bytes);
    ASSERT_FALSE(peer) << bytes.size() << " bytes";
    EXPECT_EQ(peer.error().code, ErrorCode::kIncompatible) << bytes.size() << " bytes";
  }
}

TEST_P(TransportContract, LoadedPeerIsRefusedAndStaysUsable) {
  connect(consumer_, producer_);
  const auto again = consumer_.transport->add_peer(metadata(producer_));
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, ErrorCode::kIncompatible);
  read_to_end(consumer_, prepare(consumer_, producer_), first_blocks(kBlocks));
  EXPECT_TRUE(consumer_.memory == producer_.memory);
}

TEST_P(TransportContract, UnknownPeerIsNotFound) {
  const AgentName& stranger = producer_.transport->name();
  const auto list = consumer_.transport->prepare_remote(stranger, producer_.blocks());
  ASSERT_FALSE(list);
  EXPECT_EQ(list.error().code, ErrorCode::kNotFound);
  const auto sent = consumer_.transport->send_notif(stranger, as_byte_span("hello"));
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().code, ErrorCode::kNotFound);
  consumer_.transport->remove_peer(stranger);  // ignored
}

TEST_P(TransportContract, RemovedPeerIsNotFound) {
  connect(consumer_, producer_);
  const Lists lists = prepare(consumer_, producer_);
  consumer_.transport->remove_peer(producer_.transport->name());
  consumer_.transport->release_list(lists.remote);
  const auto list =
      consumer_.transport->prepare_remote(producer_.transport->name(), producer_.blocks());
  ASSERT_FALSE(list);
  EXPECT_EQ(list.error().code, ErrorCode::kNotFound);
  const auto sent =
      consumer_.transport->send_notif(producer_.transport->name(), as_byte_span("hello"));
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().code, ErrorCode::kNotFound);
}

TEST_P(TransportContract, FinalStateStaysAndHandlesAreNotReused) {
  connect(consumer_, producer_);
  const Lists lists = prepare(consumer_, producer_);
  const TransferHandle first = post(consumer_, lists, first_blocks(2));
  ASSERT_EQ(wait_final(consumer_, first), TransferState::kDone);
  const Duration post_time = consumer_.transport->post_time(first);
  EXPECT_GE(post_time, Duration::zero());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(consumer_.transport->poll(first), TransferState::kDone);
  EXPECT_EQ(consumer_.transport->post_time(first), post_time);
  consumer_.transport->release(first);
  const TransferHandle second = post(consumer_, lists, first_blocks(2));
  EXPECT_NE(first, second);
  EXPECT_EQ(wait_final(consumer_, second), TransferState::kDone);
}

TEST_P(TransportContract, ReadGoesOnWhenItsListsAreReleased) {
  connect(consumer_, producer_);
  const Lists lists = prepare(consumer_, producer_);
  const TransferHandle read = post(consumer_, lists, first_blocks(kBlocks));
  consumer_.transport->release_list(lists.local);
  consumer_.transport->release_list(lists.remote);
  EXPECT_EQ(wait_final(consumer_, read), TransferState::kDone);
  EXPECT_TRUE(consumer_.memory == producer_.memory);
}

TEST_P(TransportContract, ManyReadsInFlight) {
  connect(consumer_, producer_);
  const Lists lists = prepare(consumer_, producer_);
  std::vector<TransferHandle> reads;
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    reads.push_back(post(consumer_, lists, pairs({i}, {kBlocks - 1 - i})));
  }
  for (const TransferHandle read : reads) {
    ASSERT_EQ(wait_final(consumer_, read), TransferState::kDone);
    consumer_.transport->release(read);
  }
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    EXPECT_TRUE(std::ranges::equal(consumer_.block(i), producer_.block(kBlocks - 1 - i))) << i;
  }
}

TEST_P(TransportContract, ReadsCrossInBothDirections) {
  connect(consumer_, producer_);
  connect(producer_, consumer_);
  fill(consumer_.block(1), 4);
  const Bytes from_consumer(consumer_.block(1).begin(), consumer_.block(1).end());
  const TransferHandle forth = post(consumer_, prepare(consumer_, producer_), pairs({0}, {0}));
  const TransferHandle back = post(producer_, prepare(producer_, consumer_), pairs({1}, {1}));
  EXPECT_EQ(wait_final(consumer_, forth), TransferState::kDone);
  EXPECT_EQ(wait_final(producer_, back), TransferState::kDone);
  EXPECT_TRUE(std::ranges::equal(consumer_.block(0), producer_.block(0)));
  EXPECT_TRUE(std::ranges::equal(producer_.block(1), from_consumer));
}

TEST_P(TransportContract, NotificationsArriveInOrderPerSender) {
  other_.transport = &world_->make_agent(AgentName("other/0/00000000000000c1.0"));
  connect(consumer_, producer_);
  connect(other_, producer_);
  for (int i = 0; i < 100; ++i) {
    send(consumer_, producer_, "consumer " + std::to_string(i));
    send(other_, producer_, "other " + std::to_string(i));
  }
  int next_of_consumer = 0;
  int next_of_other = 0;
  for (const Notification& notif : receive(producer_, 200)) {
    if (notif.sender == consumer_.transport->name()) {
      EXPECT_EQ(as_text(notif.payload), "consumer " + std::to_string(next_of_consumer++));
    } else {
      EXPECT_EQ(notif.sender, other_.transport->name());
      EXPECT_EQ(as_text(notif.payload), "other " + std::to_string(next_of_other++));
    }
  }
  EXPECT_EQ(next_of_consumer, 100);
  EXPECT_EQ(next_of_other, 100);
  EXPECT_TRUE(producer_.transport->take_notifs().empty());
}

// L44: notifications are bytes, not text.
TEST_P(TransportContract, EmptyBinaryAndLongestNotificationsSurvive) {
  connect(consumer_, producer_);
  Bytes longest(consumer_.transport->notification_bytes_max());
  fill(longest, 5);
  const std::array payloads{Bytes{}, Bytes{std::byte{0xBB}, std::byte{0xFF}, std::byte{0}}, longest,
                            Bytes{std::byte{0}}};
  for (const Bytes& payload : payloads) send(consumer_, producer_, payload);
  const std::vector<Notification> received = receive(producer_, payloads.size());
  ASSERT_EQ(received.size(), payloads.size());
  for (std::size_t i = 0; i < payloads.size(); ++i) EXPECT_EQ(received[i].payload, payloads[i]);
}

TEST_P(TransportContract, OverlongNotificationIsRefused) {
  connect(consumer_, producer_);
  const Bytes overlong(consumer_.transport->notification_bytes_max() + 1);
  const auto sent = consumer_.transport->send_notif(producer_.transport->name(), overlong);
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().code, ErrorCode::kInvalidArgument);
  expect_nothing_more(consumer_, producer_);
}

// A prefill instance never loads its decode instances: they only notify it.
TEST_P(TransportContract, ReceiverNeedNotKnowTheSender) {
  connect(consumer_, producer_);
  send(consumer_, producer_, "HB:a");
  const std::vector<Notification> received = receive(producer_, 1);
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].sender, consumer_.transport->name());
  EXPECT_EQ(as_text(received[0].payload), "HB:a");
}

// C07: a read that is done has all its bytes, so its source may be overwritten at once.
TEST_P(TransportContract, C07_CompletionLeavesAfterTheLastSegment) {
  connect(consumer_, producer_);
  const Lists lists = prepare(consumer_, producer_);
  const Pairs segments = pairs({10, 20, 30, 40, 50}, {0, 1, 2, 3, 4});
  const auto expect_segments = [&](const Bytes& expected) {
    for (std::size_t i = 0; i < segments.local.size(); ++i) {
      ASSERT_TRUE(std::ranges::equal(consumer_.block(segments.local[i]),
                                     std::span(expected).subspan(i * kBlockBytes, kBlockBytes)));
    }
  };
  const auto source = std::span(producer_.memory).first(5 * kBlockBytes);
  Bytes expected(source.size());
  for (std::uint64_t round = 0; round < 1000; ++round) {
    fill(expected, round);
    std::ranges::copy(expected, source.begin());
    ASSERT_NO_FATAL_FAILURE(read_to_end(consumer_, lists, segments)) << "round " << round;
    ASSERT_NO_FATAL_FAILURE(expect_segments(expected)) << "round " << round;
    send(consumer_, producer_, "done");
    ASSERT_EQ(receive(producer_, 1).size(), 1u) << "round " << round;
    std::ranges::fill(source, kOverwritten);
    ASSERT_NO_FATAL_FAILURE(expect_segments(expected)) << "round " << round;
  }
}

// C08: one completion per transfer, whether it ends inside the post, at the first poll or later.
TEST_P(TransportContract, C08_EveryTransferCompletesExactlyOnce) {
  connect(consumer_, producer_);
  const Lists lists = prepare(consumer_, producer_);
  std::vector<TransferHandle> under_way;
  for (std::uint32_t i = 0; i < 100; ++i) {
    under_way.push_back(post(consumer_, lists, pairs({i % kBlocks}, {i % kBlocks})));
  }
  std::vector<std::string> received;
  world_->poll_until([&] {
    std::erase_if(under_way, [&](TransferHandle read) {
      const TransferState state = consumer_.transport->poll(read);
      EXPECT_NE(state, TransferState::kError);
      if (state != TransferState::kDone) return false;
      send(consumer_, producer_, std::to_string(read.value()) + ":1");
      consumer_.transport->release(read);
      return true;
    });
    for (const Notification& notif : producer_.transport->take_notifs()) {
      received.emplace_back(as_text(notif.payload));
    }
    return received.size() >= 100;
  });
  EXPECT_TRUE(under_way.empty());
  ASSERT_EQ(received.size(), 100u);
  std::ranges::sort(received);
  EXPECT_TRUE(std::ranges::adjacent_find(received) == received.end());
  expect_nothing_more(consumer_, producer_);
}

// L22, L24: a lease entry that is read after it was written is never the older one.
TEST_P(TransportContract, EntryReadShowsTheValueAtTheTimeOfReading) {
  connect(consumer_, producer_);
  const std::array local{consumer_.region(0, 16)};
  const std::array remote{producer_.region(32, 16)};
  const Lists lists{
      .local = prepared(consumer_.transport->prepare_local(local)),
      .remote = prepared(consumer_.transport->prepare_remote(producer_.transport->name(), remote))};
  for (std::uint64_t use = 1; use <= 20; ++use) {
    const std::array<std::uint64_t, 2> written{0x1234567800000000u + use, use * 3};
    std::memcpy(producer_.memory.data() + 32, written.data(), sizeof written);
    read_to_end(consumer_, lists, first_blocks(1));
    std::array<std::uint64_t, 2> read{};
    std::memcpy(read.data(), consumer_.memory.data(), sizeof read);
    EXPECT_EQ(read, written);
  }
}

TEST_P(TransportContract, ReadFromAKilledPeerIsNeverDoneWithWrongBytes) {
  if (!world_->can_kill()) GTEST_SKIP() << "agents of this world cannot be killed";
  connect(consumer_, producer_);
  const Lists lists = prepare(consumer_, producer_);
  std::vector<TransferHandle> reads;
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    reads.push_back(post(consumer_, lists, pairs({i}, {i})));
  }
  world_->kill(*producer_.transport);
  std::vector<TransferState> states(reads.size());
  world_->poll_until([&] {
    std::ranges::transform(reads, states.begin(),
                           [&](TransferHandle read) { return consumer_.transport->poll(read); });
    return std::ranges::find(states, TransferState::kInProgress) == states.end();
  });
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    if (states[i] != TransferState::kDone) continue;
    EXPECT_TRUE(std::ranges::equal(consumer_.block(i), producer_.block(i))) << "block " << i;
  }
}

}  // namespace kvlease
