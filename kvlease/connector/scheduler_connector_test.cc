// The scheduler half on its own, for what whole engines (tests/pairs) are never made to do: peers
// whose geometry is not ours, events that nobody takes.
#include "kvlease/connector/scheduler_connector.h"

#include <gtest/gtest.h>

namespace kvlease {
namespace {

using std::chrono::seconds;

CompatibilityIdentity identity() {
  return {.model = "m",
          .dtype = "bytes2",
          .num_layers = 1,
          .num_kv_heads = 1,
          .head_dim = 4,
          .block_size = 4,
          .transfer_mode = "pull",
          .kv_cache_layout = "l"};
}

RankMetadata rank_with(std::vector<KvRegion> regions) {
  return {.agent_name = AgentName("p/0/00000000000000aa.0"),
          .agent_metadata = Bytes(1, std::byte{1}),
          .num_blocks = 8,
          .regions = std::move(regions),
          .entries_address = 1 << 20,
          .entries_count = 16};
}

class SchedulerConnectorTest : public testing::Test {
 protected:
  SchedulerConnectorTest()
      : connector_({.facts = {.engine_id = EngineId("d"),
                              .incarnation = Incarnation(1),
                              .word_high = 7,
                              .identity = identity(),
                              .advertise_host = "127.0.0.1",
                              .advertise_port = 1},
                    .config = {},
                    .num_blocks = 8,
                    .allow_peers = {"127.0.0.1"},
                    .seed = 1}) {
    connector_.set_xfer_handshake_metadata(
        {rank_with({{.base_address = 4096, .block_len_bytes = 64}})});
  }

  // A request whose reference names this engine, without a seal.
  void add_request(const std::string& engine) { add_request(engine, "r"); }
  void add_request(const std::string& engine, const std::string& request) {
    const RequestId id(request);
    const std::vector<TokenId> prompt{1, 2, 3, 4};
    const std::vector<std::string> cache_keys;
    const std::optional<KvTransferParams> params =
        KvTransferParams{.do_remote_prefill = true,
                         .remote_block_ids = {{{BlockId(0)}}},
                         .remote_engine_id = EngineId(engine),
                         .remote_request_id = LeaseId("l"),
                         .remote_host = "127.0.0.1",
                         .remote_port = 2};
    connector_.on_new_request({.id = id,
                               .client_id = "r",
                               .prompt_token_ids = prompt,
                               .cache_keys = cache_keys,
                               .kv_transfer_params = params},
                              at(0));
  }

  // A request that names engine p, whose handshake answers with these regions.
  void ask(std::vector<KvRegion> regions) { ask_rank(rank_with(std::move(regions))); }
  void ask_rank(const RankMetadata& rank) {
    add_request("p");
    const auto handshakes = connector_.take_handshakes(at(0));
    ASSERT_EQ(handshakes.size(), 1u);
    answer(handshakes[0].address, rank, at(0));
  }
  void answer(const PeerAddress& address, const RankMetadata& rank, Instant now) {
    connector_.on_handshake(address,
                            HandshakeReply{.engine_id = EngineId("p"),
                                           .incarnation = Incarnation(9),
                                           .identity = identity(),
                                           .times = connector_.config().times,
                                           .ranks = {rank}},
                            now);
  }

  // What the remote can add to the request's prompt.
  std::optional<std::uint32_t> ask_again() {
    const RequestId id("r");
    const std::vector<TokenId> prompt{1, 2, 3, 4};
    const std::vector<std::string> cache_keys;
    const std::optional<KvTransferParams> params;
    return connector_
        .get_num_new_matched_tokens({.id = id,
                                     .client_id = "r",
                                     .prompt_token_ids = prompt,
                                     .cache_keys = cache_keys,
                                     .kv_transfer_params = params},
                                    0, at(0))
        .count;
  }

  std::string refusal() {
    for (const Event& event : connector_.take_events()) {
      if (event.kind == EventKind::kHandshakeFailed) return event.detail;
    }
    return "none";
  }

  static Instant at(int second) { return kTimeZero + seconds(second); }

  SchedulerConnector connector_;
};

// L30: whose blocks are longer than ours would be read past their ends.
TEST_F(SchedulerConnectorTest, APeerWithBlocksOfAnotherLengthIsRefused) {
  ask({{.base_address = 4096, .block_len_bytes = 128}});
  EXPECT_EQ(connector_.counters().value(Counter::kHandshakesFailed), 1u);
  EXPECT_EQ(refusal(),
            "a block of the peer's region 0 has 128 bytes, here it has 64, for 8 and 8 heads times "
            "tokens of K and V");
  EXPECT_TRUE(connector_.build_connector_meta(at(0)).peers_to_add.empty());
}

TEST_F(SchedulerConnectorTest, APeerWithMoreRegionsIsRefused) {
  ask({{.base_address = 4096, .block_len_bytes = 64},
       {.base_address = 8192, .block_len_bytes = 64}});
  EXPECT_EQ(refusal(), "the peer has 2 regions on a rank, this engine 1");
}

// L28: a reference without `kvlease` from a peer that announced entries is invalid, and nothing of
// it is sent (L52).
TEST_F(SchedulerConnectorTest, APeerThatFitsIsAddedAndAReferenceWithoutSealIsRefused) {
  ask({{.base_address = 8192, .block_len_bytes = 64}});
  EXPECT_EQ(refusal(), "none");
  const ConnectorMetadata metadata = connector_.build_connector_meta(at(0));
  EXPECT_EQ(metadata.peers_to_add.size(), 1u);
  EXPECT_TRUE(metadata.heartbeat_by_engine.empty());
  EXPECT_TRUE(metadata.completions_to_send.empty());
  EXPECT_EQ(connector_.counters().value(Counter::kInvalidReferences), 1u);
  const ConnectorUpdate update =
      connector_.update_connector_output(std::vector<WorkerOutput>(1), at(0));
  ASSERT_EQ(update.failed_recving.size(), 1u);
  EXPECT_EQ(update.failed_recving[0].failure, LoadFailure::kInvalidReference);
}

// L28: where no lease can be validated, D cannot tell that P has let go, and reads nothing.
TEST_F(SchedulerConnectorTest, A12_AProducerWithoutLeaseEntriesIsNotRead) {
  RankMetadata foreign = rank_with({{.base_address = 8192, .block_len_bytes = 64}});
  foreign.entries_address = 0;
  foreign.entries_count = 0;
  ask_rank(foreign);
  EXPECT_EQ(connector_.counters().value(Counter::kInvalidReferences), 1u);
  const ConnectorUpdate update =
      connector_.update_connector_output(std::vector<WorkerOutput>(1), at(0));
  ASSERT_EQ(update.failed_recving.size(), 1u);
  EXPECT_TRUE(connector_.build_connector_meta(at(0)).reqs_to_recv.empty());
}

// L35, L48: a request whose peer did not answer in time is answered once; asked again it is a miss,
// and the late answer loads nothing.
TEST_F(SchedulerConnectorTest, F16_AskingAgainAfterATimeoutIsAMiss) {
  add_request("p");
  const auto handshakes = connector_.take_handshakes(at(0));
  ASSERT_EQ(handshakes.size(), 1u);
  connector_.build_connector_meta(at(10));
  const ConnectorUpdate failed =
      connector_.update_connector_output(std::vector<WorkerOutput>(1), at(10));
  ASSERT_EQ(failed.failed_recving.size(), 1u);
  EXPECT_EQ(failed.failed_recving[0].failure, LoadFailure::kHandshakeFailed);

  EXPECT_EQ(ask_again(), 0u);
  answer(handshakes[0].address, rank_with({{.base_address = 8192, .block_len_bytes = 64}}), at(12));
  EXPECT_EQ(connector_.counters().value(Counter::kLateReports), 1u);
  EXPECT_EQ(ask_again(), 0u);
  EXPECT_TRUE(connector_.build_connector_meta(at(12)).reqs_to_recv.empty());
  EXPECT_EQ(connector_.update_connector_output(std::vector<WorkerOutput>(1), at(12)),
            ConnectorUpdate{});
}

// L43: above the bound of remote engines a request takes the failure policy at once.
TEST_F(SchedulerConnectorTest, TooManyRemoteEnginesAreRefused) {
  for (int i = 0; i < 4096; ++i) {
    add_request("p" + std::to_string(i), "r" + std::to_string(i));
  }
  EXPECT_EQ(connector_.take_handshakes(at(0)).size(), 64u);
  EXPECT_EQ(connector_.handshakes_in_flight(), 64u);
  EXPECT_EQ(connector_.known_peers(), 4096u);
  EXPECT_TRUE(connector_.update_connector_output(std::vector<WorkerOutput>(1), at(0))
                  .failed_recving.empty());
  add_request("another", "one too many");
  const ConnectorUpdate update =
      connector_.update_connector_output(std::vector<WorkerOutput>(1), at(0));
  ASSERT_EQ(update.failed_recving.size(), 1u);
  EXPECT_EQ(update.failed_recving[0].request, RequestId("one too many"));
}

// L28: a client that sends P's own reference back to P gets its text; no handshake is made.
TEST_F(SchedulerConnectorTest, AReferenceToThisVeryEngineIsRefusedWithoutAHandshake) {
  add_request("d");
  EXPECT_TRUE(connector_.take_handshakes(at(0)).empty());
  EXPECT_EQ(connector_.counters().value(Counter::kInvalidReferences), 1u);
}

// L35: reports about requests and leases that are gone are counted and change nothing.
TEST_F(SchedulerConnectorTest, C02_LateReportsAreCountedAndIgnored) {
  WorkerOutput output;
  output.finished_sending = {{.id = LeaseId("gone")}, {.id = LeaseId("gone")}};
  output.finished_recving = {RequestId("gone"), RequestId("gone")};
  const ConnectorUpdate update = connector_.update_connector_output(std::vector{output}, at(0));
  EXPECT_EQ(update, ConnectorUpdate{});
  EXPECT_EQ(connector_.counters().value(Counter::kLateReports), 4u);
}

// L43: events that nobody takes do not pile up.
TEST_F(SchedulerConnectorTest, EventsThatNobodyTakesAreDroppedAtABound) {
  WorkerOutput output;
  output.events.resize(40'000);
  for (int step = 0; step < 2; ++step) {
    connector_.update_connector_output(std::vector{output}, at(step));
  }
  EXPECT_EQ(connector_.take_events().size(), 65'536u);
  EXPECT_EQ(connector_.counters().value(Counter::kEventsDropped), 80'000u - 65'536u);
}

}  // namespace
}  // namespace kvlease
