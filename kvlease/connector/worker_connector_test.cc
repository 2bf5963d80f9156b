// One rank's half of the connector over a scripted transport, for what the fabric cannot be made to
// do; the rest is tested with whole engines in tests/pairs.
#include "kvlease/connector/worker_connector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>

#include "kvlease/base/prng.h"

namespace kvlease {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Refuses peers' metadata as often as it is told to; otherwise takes everything and moves nothing.
class ScriptedTransport final : public Transport {
 public:
  ScriptedTransport(std::string name, std::uint32_t refusals)
      : name_(std::move(name)), refusals_(refusals) {}

  const AgentName& name() const override { return name_; }
  Result<void> register_memory(const MemoryRegion&) override {
    if (no_memory) return error(ErrorCode::kUnavailable, "cannot pin memory");
    ++registrations;
    return {};
  }
  Result<Bytes> local_metadata() override { return Bytes(1, std::byte{1}); }
  Result<AgentName> add_peer(std::span<const std::byte> metadata) override {
    if (refusals_ > 0) {
      --refusals_;
      return error(ErrorCode::kIncompatible, "refused");
    }
    const AgentName peer(std::string{as_text(metadata)});
    EXPECT_EQ(std::ranges::find(peers, peer), peers.end()) << "a loaded peer is loaded again (L31)";
    peers.push_back(peer);
    return peer;
  }
  void remove_peer(const AgentName& peer) override { std::erase(peers, peer); }
  Result<DescListHandle> prepare_local(std::span<const MemoryRegion>) override {
    return DescListHandle(1);
  }
  Result<DescListHandle> prepare_remote(const AgentName&, std::span<const MemoryRegion>) override {
    return DescListHandle(2);
  }
  void release_list(DescListHandle) override {}
  Result<TransferHandle> post_read(DescListHandle, DescListHandle, ReadIndices) override {
    return TransferHandle(++posted);
  }
  TransferState poll(TransferHandle) override { return state; }
  Duration post_time(TransferHandle) const override { return milliseconds(3); }
  void release(TransferHandle) override { ++released; }
  Result<void> send_notif(const AgentName& peer, std::span<const std::byte>) override {
    EXPECT_NE(std::ranges::find(peers, peer), peers.end()) << "a send to a peer that is not loaded";
    if (deaf) return error(ErrorCode::kSuspectPeer, "nobody there");
    ++sent;
    return {};
  }
  std::vector<Notification> take_notifs() override { return std::exchange(inbox, {}); }
  std::size_t notification_bytes_max() const override { return 8192; }
  Instant next_poll(bool, Instant now) override { return now + milliseconds(1); }

  void refuse_next(std::uint32_t refusals) { refusals_ = refusals; }

  std::vector<AgentName> peers;
  std::vector<Notification> inbox;
  TransferState state = TransferState::kInProgress;
  std::uint64_t posted = 0;
  std::uint64_t released = 0;
  std::uint64_t registrations = 0;
  std::uint64_t sent = 0;
  bool deaf = false;
  bool no_memory = false;

 private:
  AgentName name_;
  std::uint32_t refusals_;
};

constexpr PeerId kPeer{1};

class WorkerConnectorTest : public testing::Test {
 protected:
  // A worker over `transport` with its memory registered.
  WorkerConnector& make_worker(Transport& transport) {
    worker_.emplace(
        WorkerConnectorOptions{
            .shape = {.block_size = 16}, .config = {.load_timeout = seconds(60)}, .word_high = 7},
        transport,
        KvCaches{.regions = {{.base_address = 4096, .block_len_bytes = 64}},
                 .num_blocks = 8,
                 .entries = entries_,
                 .landing = landing_});
    EXPECT_TRUE(worker_->register_kv_caches());
    return *worker_;
  }
  static PeerToAdd peer(PeerId id) {
    const std::string name = "p/0/00000000000000aa.0";
    return {
        .peer = id,
        .engine = EngineId("p"),
        .block_size = 16,
        .ranks = {{.agent_name = AgentName(name),
                   .agent_metadata = Bytes(as_byte_span(name).begin(), as_byte_span(name).end()),
                   .num_blocks = 8,
                   .regions = {{.base_address = 1 << 20, .block_len_bytes = 64}},
                   .entries_address = 1 << 22,
                   .entries_count = 16}}};
  }
  static RecvRequest read(const std::string& request) {
    return {.request = RequestId(request),
            .peer = kPeer,
            .lease = LeaseId("lease-" + request),
            .slot = SlotId(3),
            .word = 1,
            .local_block_ids = {BlockId(0)},
            .remote_block_ids = {BlockId(5)}};
  }
  static Instant at(int second) { return kTimeZero + seconds(second); }

  std::array<LeaseEntry, 16> entries_;
  std::array<LeaseEntry, 2> landing_;
  std::optional<WorkerConnector> worker_;
};

// L21: the third refusal of a peer's metadata makes our own agent anew, under the next number.
TEST_F(WorkerConnectorTest, AnAgentWhosePeerIsRefusedThriceIsMadeAnew) {
  ScriptedTransport old_agent("d/0/01.0", 3);
  ScriptedTransport new_agent("d/0/01.1", 0);
  WorkerConnector& worker = make_worker(old_agent);
  std::vector<std::uint32_t> numbers;
  worker.set_renew_agent([&](std::uint32_t number) -> Result<Transport*> {
    numbers.push_back(number);
    return &new_agent;
  });
  for (std::uint32_t attempt = 1; attempt <= 3; ++attempt) {
    EXPECT_TRUE(numbers.empty());
    worker.start_load_kv({.peers_to_add = {peer(PeerId(attempt))}}, at(1));
    const WorkerOutput output = worker.get_finished(at(1));
    ASSERT_EQ(output.suspect_peers.size(), 1u);
    EXPECT_EQ(output.suspect_peers[0].peer, PeerId(attempt));
    EXPECT_EQ(output.renewed_metadata.size(), attempt == 3 ? 1u : 0u);
    if (attempt == 3) {
      EXPECT_EQ(output.renewed_metadata[0].agent_name, AgentName("d/0/01.1"));
    }
  }
  EXPECT_EQ(numbers, std::vector<std::uint32_t>{1});
  EXPECT_EQ(new_agent.registrations, old_agent.registrations);
  worker.start_load_kv({.peers_to_add = {peer(PeerId(4))}}, at(2));
  EXPECT_TRUE(worker.get_finished(at(2)).suspect_peers.empty());
  EXPECT_EQ(new_agent.peers.size(), 1u);
}

// L21: not while a transfer of the old agent may still write.
TEST_F(WorkerConnectorTest, AnAgentIsNotMadeAnewWhileItsTransfersRun) {
  ScriptedTransport agent("d/0/01.0", 0);
  WorkerConnector& worker = make_worker(agent);
  int renewals = 0;
  worker.set_renew_agent([&](std::uint32_t) -> Result<Transport*> {
    ++renewals;
    return &agent;
  });
  worker.start_load_kv({.peers_to_add = {peer(kPeer)}, .reqs_to_recv = {read("r")}}, at(0));
  agent.refuse_next(3);
  PeerToAdd other = peer(PeerId(2));
  other.ranks[0].agent_name = AgentName("q/0/00000000000000cc.0");
  for (int attempt = 0; attempt < 3; ++attempt) {
    worker.start_load_kv({.peers_to_add = {other}}, at(1));
    worker.poll(at(1));
  }
  EXPECT_EQ(renewals, 0);
  agent.state = TransferState::kError;  // the read is final
  worker.poll(at(2));
  EXPECT_EQ(renewals, 1);
}

// L21: a renewal that fails, in whole or half-way, is tried again with back-off; what is ordered in
// between waits for it.
TEST_F(WorkerConnectorTest, ARenewalThatFailsIsTriedAgain) {
  ScriptedTransport old_agent("d/0/01.0", 3);
  ScriptedTransport poor_agent("d/0/01.1", 0);
  poor_agent.no_memory = true;
  ScriptedTransport new_agent("d/0/01.2", 0);
  WorkerConnector& worker = make_worker(old_agent);
  std::vector<std::uint32_t> numbers;
  worker.set_renew_agent([&](std::uint32_t number) -> Result<Transport*> {
    numbers.push_back(number);
    if (numbers.size() == 1) return error(ErrorCode::kUnavailable, "no agent");
    return numbers.size() == 2 ? &poor_agent : &new_agent;
  });
  for (std::uint32_t attempt = 1; attempt <= 3; ++attempt) {
    worker.start_load_kv({.peers_to_add = {peer(PeerId(attempt))}}, at(1));
    EXPECT_TRUE(worker.get_finished(at(1)).renewed_metadata.empty());
  }
  EXPECT_EQ(numbers, (std::vector<std::uint32_t>{1}));
  EXPECT_EQ(worker.next_deadline(at(1)), at(2));
  EXPECT_TRUE(worker.get_finished(at(2)).renewed_metadata.empty());
  EXPECT_EQ(numbers, (std::vector<std::uint32_t>{1, 1}));

  worker.start_load_kv({.peers_to_add = {peer(PeerId(4))}, .reqs_to_recv = {[] {
                                                             RecvRequest order = read("r");
                                                             order.peer = PeerId(4);
                                                             return order;
                                                           }()}},
                       at(3));
  WorkerOutput output = worker.get_finished(at(3));
  EXPECT_TRUE(output.failed_recving.empty());
  EXPECT_TRUE(poor_agent.peers.empty());
  EXPECT_EQ(poor_agent.posted, 0u);
  output = worker.get_finished(at(4));
  EXPECT_EQ(numbers, (std::vector<std::uint32_t>{1, 1, 2}));
  ASSERT_EQ(output.renewed_metadata.size(), 1u);
  EXPECT_EQ(output.renewed_metadata[0].agent_name, AgentName("d/0/01.2"));
  EXPECT_EQ(new_agent.registrations, old_agent.registrations);
  EXPECT_EQ(new_agent.posted, 1u);
}

// D11, D13: one thread orders adding, removing, reading and sending, in any order; each peer is
// loaded once or not at all (the transport of these tests fails on the rest), and nothing is sent
// to one that is not there.
TEST_F(WorkerConnectorTest, D11_RemovingWhileAddingLeavesAPeerPresentOrAbsent) {
  ScriptedTransport agent("d/0/01.0", 0);
  WorkerConnector& worker = make_worker(agent);
  Prng prng(11);
  std::uint32_t newest = 1;
  int reads = 0;
  bool is_there = false;
  for (int round = 0; round < 10'000; ++round) {
    agent.state = prng.chance(1, 2) ? TransferState::kInProgress : TransferState::kError;
    ConnectorMetadata orders;
    if (is_there && prng.chance(1, 2)) {
      orders.peers_to_remove.push_back(PeerId(newest));
      is_there = false;
    }
    if (!is_there && prng.chance(1, 2)) {
      orders.peers_to_add.push_back(peer(PeerId(++newest)));
      is_there = true;
    }
    if (is_there && worker.reads_in_flight() == 0 && prng.chance(1, 2)) {
      orders.reqs_to_recv.push_back(read(std::to_string(reads++)));
      orders.reqs_to_recv.back().peer = PeerId(newest);
    }
    orders.completions_to_send = {{PeerId(newest), LeaseId("l")}};
    worker.start_load_kv(orders, at(round));
    worker.poll(at(round));
    ASSERT_LE(agent.peers.size(), 1u) << "round " << round;
  }
  EXPECT_GT(reads, 1'000);
  EXPECT_GT(agent.sent, 1'000u);
  agent.state = TransferState::kError;
  worker.start_load_kv({.peers_to_remove = {PeerId(newest)}}, at(20'000));
  worker.poll(at(20'000));
  EXPECT_TRUE(agent.peers.empty());
}

// L48: kv_load_timeout counts from the first post; the wait for a landing cell has as much.
TEST_F(WorkerConnectorTest, AReadsTimeCountsFromItsFirstPost) {
  ScriptedTransport agent("d/0/01.0", 0);
  WorkerConnector& worker = make_worker(agent);
  worker.start_load_kv({.peers_to_add = {peer(kPeer)}, .reqs_to_recv = {read("a"), read("b")}},
                       at(0));
  worker.start_load_kv({.reqs_to_recv = {read("c")}}, at(20));
  EXPECT_EQ(worker.get_finished(at(60)).failed_recving.size(), 2u);
  agent.state = TransferState::kDone;  // "a" and "b" are quiet and give their cells back
  worker.poll(at(70));
  agent.state = TransferState::kInProgress;
  worker.poll(at(70));
  EXPECT_EQ(agent.posted, 3u);
  EXPECT_TRUE(worker.get_finished(at(129)).failed_recving.empty());
  EXPECT_EQ(worker.get_finished(at(130)).failed_recving.size(), 1u);
}

// L24: what a validated read says of itself: its bytes, its descriptors, and the transport's time
// to start it, the read of the lease entry left out.
TEST_F(WorkerConnectorTest, AValidatedReadSaysWhatItTook) {
  ScriptedTransport agent("d/0/01.0", 0);
  WorkerConnector& worker = make_worker(agent);
  RecvRequest order = read("a");
  order.word = 0;  // what the landing cell holds, as this transport moves nothing
  order.local_block_ids = {BlockId(0), BlockId(1)};
  order.remote_block_ids = {BlockId(5), BlockId(6)};
  worker.start_load_kv({.peers_to_add = {peer(kPeer)}, .reqs_to_recv = {order}}, at(0));
  agent.state = TransferState::kDone;
  const std::vector<Event> events = worker.get_finished(at(2)).events;
  const auto validated = std::ranges::find(events, EventKind::kReadValidated, &Event::kind);
  ASSERT_NE(validated, events.end());
  EXPECT_EQ(validated->count, 128u);
  EXPECT_EQ(validated->descriptors, 2u);
  EXPECT_EQ(validated->length, seconds(2));
  EXPECT_EQ(validated->posting, milliseconds(3));
}

// L17: a heartbeat that left late says by how much.
TEST_F(WorkerConnectorTest, AHeartbeatSaysHowLateItWas) {
  ScriptedTransport agent("d/0/01.0", 0);
  WorkerConnector& worker = make_worker(agent);
  worker.start_load_kv({.peers_to_add = {peer(kPeer)}}, at(0));
  worker.start_load_kv({.heartbeat_by_engine = {{.peer = kPeer,
                                                 .leases = {LeaseId("l")},
                                                 .probes = {},
                                                 .interval = seconds(5),
                                                 .late = milliseconds(40)}}},
                       at(1));
  const std::vector<Event> events = worker.get_finished(at(1)).events;
  const auto sent = std::ranges::find(events, EventKind::kHeartbeatSent, &Event::kind);
  ASSERT_NE(sent, events.end());
  EXPECT_EQ(sent->length, milliseconds(40));
}

// L26: the landing cell of a read that failed stays taken until the transport is quiet; a read that
// finds no cell waits, and its time runs (L48).
TEST_F(WorkerConnectorTest, LandingCellsAreQuarantinedLikeBlocks) {
  ScriptedTransport agent("d/0/01.0", 0);
  WorkerConnector& worker = make_worker(agent);
  worker.start_load_kv(
      {.peers_to_add = {peer(kPeer)}, .reqs_to_recv = {read("a"), read("b"), read("c")}}, at(0));
  EXPECT_EQ(worker.free_landing_cells(), 0u);
  EXPECT_EQ(agent.posted, 2u);  // "c" has no cell

  WorkerOutput output = worker.get_finished(at(60));
  EXPECT_EQ(output.failed_recving.size(), 3u);
  output.quiet_recving.clear();
  const WorkerOutput later = worker.get_finished(at(61));
  EXPECT_EQ(worker.free_landing_cells(), 0u);  // "a" and "b" may still be written
  EXPECT_EQ(worker.reads_in_flight(), 2u);

  agent.state = TransferState::kDone;
  const WorkerOutput quiet = worker.get_finished(at(62));
  EXPECT_EQ(quiet.quiet_recving, (std::vector{RequestId("a"), RequestId("b")}));
  EXPECT_TRUE(quiet.finished_recving.empty());
  EXPECT_EQ(worker.free_landing_cells(), 2u);
  EXPECT_EQ(agent.released, 2u);
}

// L21: three sends in a row that fail make a peer suspect, once.
TEST_F(WorkerConnectorTest, ThreeFailedSendsMakeAPeerSuspect) {
  ScriptedTransport agent("d/0/01.0", 0);
  WorkerConnector& worker = make_worker(agent);
  worker.start_load_kv({.peers_to_add = {peer(kPeer)}}, at(0));
  agent.deaf = true;
  const ConnectorMetadata beat{
      .heartbeat_by_engine = {
          {.peer = kPeer, .leases = {LeaseId("l")}, .probes = {}, .interval = seconds(5)}}};
  std::vector<std::size_t> suspicions;
  for (int second = 1; second <= 4; ++second) {
    worker.start_load_kv(beat, at(second));
    suspicions.push_back(worker.get_finished(at(second)).suspect_peers.size());
  }
  EXPECT_EQ(suspicions, (std::vector<std::size_t>{0, 0, 1, 0}));
}

// L44, C10: what is not of the wire's forms is counted, and the turn goes on.
TEST_F(WorkerConnectorTest, C10_ForeignNotificationsAreCounted) {
  ScriptedTransport agent("p/0/01.0", 0);
  WorkerConnector& worker = make_worker(agent);
  worker.start_load_kv({.reqs_to_send = {{.id = LeaseId("a:b"),
                                          .slot = SlotId(1),
                                          .word = std::uint64_t{7} << 32,
                                          .remaining = seconds(30),
                                          .extension = seconds(20)}}},
                       at(0));
  for (const std::string_view text :
       {std::string_view("\xBB\xFF\x00", 3), std::string_view(""), std::string_view("R1"),
        std::string_view("R1:x"), std::string_view("R1:-1"), std::string_view("HB:"),
        std::string_view("HB:,,"), std::string_view("a:b:2")}) {
    const auto bytes = as_byte_span(text);
    agent.inbox.push_back({AgentName("d/0/00000000000000bb.0"), Bytes(bytes.begin(), bytes.end())});
  }
  const WorkerOutput output = worker.get_finished(at(1));
  EXPECT_EQ(output.counters.value(Counter::kNotifMalformed), 5u);
  EXPECT_EQ(output.counters.value(Counter::kNotifEmptyId), 4u);
  EXPECT_EQ(output.counters.value(Counter::kCompletionsReceived), 1u);
  EXPECT_TRUE(output.finished_sending.empty());
  EXPECT_EQ(worker.leases().live(), 1u);
}

// L11: a rank with nothing outstanding looks into its inbox once a second, one with a lease as
// often as the transport says.
TEST_F(WorkerConnectorTest, IdleRanksDrainTheirInboxOnceASecond) {
  ScriptedTransport agent("p/0/01.0", 0);
  WorkerConnector& worker = make_worker(agent);
  EXPECT_EQ(worker.next_deadline(at(0)), at(1));
  worker.start_load_kv({.reqs_to_send = {{.id = LeaseId("l"),
                                          .slot = SlotId(1),
                                          .word = std::uint64_t{7} << 32,
                                          .remaining = seconds(30),
                                          .extension = seconds(20)}}},
                       at(0));
  EXPECT_EQ(worker.next_deadline(at(0)), at(0) + milliseconds(1));
}

}  // namespace
}  // namespace kvlease
