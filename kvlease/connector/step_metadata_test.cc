// The step's values survive their encoding, and no bytes from elsewhere make the decoder fail
// otherwise than by saying so (L50).
#include "kvlease/connector/step_metadata.h"

#include <gtest/gtest.h>

#include "kvlease/base/prng.h"

namespace kvlease {
namespace {

constexpr std::uint64_t kSeed = 20260930;

// Draws values of any of the step's structs.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : prng_(seed) {}

  std::size_t count() { return prng_.below(4); }
  std::uint64_t number() { return prng_.next(); }
  std::uint32_t small() { return static_cast<std::uint32_t>(prng_.below(1000)); }
  std::string text() { return std::string(prng_.below(20), static_cast<char>(prng_.below(256))); }
  Duration length() { return Duration(static_cast<Duration::rep>(prng_.next() >> 1)); }
  Bytes bytes() { return Bytes(prng_.below(30), static_cast<std::byte>(prng_.below(256))); }

  template <typename Make>
  auto list(Make make) {
    std::vector<decltype(make())> values;
    for (std::size_t i = count(); i > 0; --i) values.push_back(make());
    return values;
  }

  LeaseId lease() { return LeaseId(text()); }
  RequestId request() { return RequestId(text()); }
  PeerId peer() { return PeerId(small()); }
  SlotId slot() { return SlotId(small()); }
  std::vector<BlockId> blocks() {
    return list([this] { return BlockId(small()); });
  }

  RankMetadata rank() {
    return {.rank = Rank(small()),
            .agent_name = AgentName(text()),
            .agent_metadata = bytes(),
            .num_blocks = small(),
            .regions = list([this] {
              return KvRegion{.base_address = number(),
                              .block_len_bytes = number(),
                              .kind = MemoryKind::kVram,
                              .device = small()};
            }),
            .entries_address = number(),
            .entries_count = small()};
  }

  ConnectorMetadata metadata() {
    return {.peers_to_remove = list([this] { return peer(); }),
            .peers_to_add = list([this] {
              return PeerToAdd{peer(), EngineId(text()), static_cast<std::uint32_t>(number()),
                               list([this] { return rank(); })};
            }),
            .reqs_to_recv = list([this] {
              return RecvRequest{request(), peer(), lease(), slot(), number(), blocks(), blocks()};
            }),
            .completions_to_send = list([this] { return CompletionToSend{peer(), lease()}; }),
            .heartbeat_by_engine = list([this] {
              return HeartbeatInfo{peer(), list([this] { return lease(); }),
                                   list([this] { return ProbedLease{lease(), slot(), number()}; }),
                                   length(), length()};
            }),
            .reqs_in_batch = list([this] { return lease(); }),
            .reqs_not_processed = list([this] { return lease(); }),
            .reqs_to_send = list([this] {
              return LeaseGrant{lease(), slot(), number(), length(), length(), length(), true};
            }),
            .leases_to_end = list([this] { return LeaseEndOrder{lease(), LeaseEnd::kDrained}; }),
            .leases_to_renew = list([this] { return lease(); })};
  }

  WorkerOutput output() {
    WorkerOutput output{
        .finished_sending = list([this] {
          return LeaseEnded{
              lease(), LeaseEnd::kRecalled, true, small(), small(), length(), length(), length()};
        }),
        .lease_waits = list([this] { return LeaseWait{length(), true}; }),
        .finished_recving = list([this] { return request(); }),
        .failed_recving = list([this] { return FailedRecv{request(), LoadFailure::kTimedOut}; }),
        .quiet_recving = list([this] { return request(); }),
        .lost_leases = list([this] { return LostLease{peer(), lease()}; }),
        .suspect_peers = list([this] { return SuspectPeer{peer(), text()}; }),
        .renewed_metadata = list([this] { return rank(); }),
        .counters = {},
        .events = list([this] {
          return Event{EventKind::kQuiet, request(), lease(),  text(),   text(),  number(),
                       length(),          length(),  length(), length(), number()};
        })};
    output.counters.add(Counter::kReadsRejected, number());
    return output;
  }

 private:
  Prng prng_;
};

TEST(StepMetadata, SurvivesItsEncoding) {
  Draw draw(kSeed);
  for (int round = 0; round < 1000; ++round) {
    const ConnectorMetadata metadata = draw.metadata();
    const WorkerOutput output = draw.output();
    ASSERT_EQ(decode_connector_metadata(encode(metadata)), metadata) << "seed " << kSeed;
    ASSERT_EQ(decode_worker_output(encode(output)), output) << "seed " << kSeed;
  }
}

TEST(StepMetadata, RefusesWhatIsCutShortOrTooLong) {
  Draw draw(kSeed);
  Bytes bytes = encode(draw.metadata());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(decode_connector_metadata(std::span(bytes).first(length))) << length;
  }
  bytes.push_back(std::byte{0});
  const auto decoded = decode_connector_metadata(bytes);
  ASSERT_FALSE(decoded);
  EXPECT_EQ(decoded.error().code, ErrorCode::kInvalidArgument);
}

TEST(StepMetadata, AnyBytesAreDecodedOrRefused) {
  Prng prng(kSeed);
  for (int round = 0; round < 10'000; ++round) {
    Bytes bytes(prng.below(200));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(prng.below(256));
    if (const auto decoded = decode_worker_output(bytes)) {
      EXPECT_EQ(encode(*decoded), bytes) << "seed " << kSeed;
    }
  }
}

TEST(StepMetadata, IsEmptyExactlyWithoutOrders) {
  EXPECT_TRUE(ConnectorMetadata{}.empty());
  EXPECT_TRUE(WorkerOutput{}.empty());
  ConnectorMetadata metadata;
  metadata.reqs_in_batch.push_back(LeaseId("a"));
  EXPECT_FALSE(metadata.empty());
}

}  // namespace
}  // namespace kvlease
