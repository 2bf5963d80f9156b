// What a pull costs through the connector, with and without validation, beside the bare reads of
// the transport adapter: two processes over real NIXL, the same descriptors for all.
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/rounds.h"
#include "kvlease/base/check.h"
#include "kvlease/connector/worker_connector.h"
#include "kvlease/core/agent_name.h"
#include "kvlease/nixl/agent.h"
#include "kvlease/runtime/memory.h"

namespace kvlease {
namespace {

// A block is 1 MiB in 16 layers, so each descriptor is one of 64 KiB.
constexpr std::uint32_t kLayers = 16;
constexpr std::uint64_t kBlockLen = 64u << 10;
constexpr std::uint32_t kBlocks = 16;
constexpr std::size_t kEntries = 64;
constexpr std::uint32_t kWordHigh = 7;
constexpr PeerId kPeer{1};
constexpr SlotId kSlot = kFirstLeaseSlot;

Instant now() { return Instant(std::chrono::steady_clock::now().time_since_epoch()); }

// One rank with its agent and its memory.
class RankHost {
 public:
  RankHost(const nixl::Library& library, const std::string& engine, bool validate)
      : kv_(PageMemory::map(kLayers * kBlocks * kBlockLen).value()),
        entries_(kEntries),
        landing_(kEntries),
        agent_(nixl::make_agent(library, {.name = make_agent_name({.engine_id = engine,
                                                                   .rank = Rank(0),
                                                                   .incarnation = Incarnation(1),
                                                                   .agent_number = 0})})
                   .value()),
        worker_({.word_high = kWordHigh, .validate_reads = validate}, *agent_,
                {.regions = regions(),
                 .num_blocks = kBlocks,
                 .entries = entries_,
                 .landing = landing_}) {
    KVL_CHECK(worker_.register_kv_caches().has_value(), "NIXL takes this memory");
  }

  WorkerConnector& worker() { return worker_; }
  Transport& agent() { return *agent_; }
  std::span<std::byte> kv() { return kv_.bytes(); }
  // All blocks of a layer, then those of the next, as the connector describes them.
  std::vector<MemoryRegion> descriptors(std::span<const KvRegion> of) const {
    std::vector<MemoryRegion> all;
    for (const KvRegion& region : of) {
      for (std::uint64_t block = 0; block < kBlocks; ++block) {
        all.push_back(
            {.address = region.base_address + block * kBlockLen, .length_bytes = kBlockLen});
      }
    }
    return all;
  }
  std::vector<KvRegion> regions() const {
    std::vector<KvRegion> regions;
    const auto base = reinterpret_cast<std::uint64_t>(kv_.bytes().data());
    for (std::uint64_t layer = 0; layer < kLayers; ++layer) {
      regions.push_back(
          {.base_address = base + layer * kBlocks * kBlockLen, .block_len_bytes = kBlockLen});
    }
    return regions;
  }

 private:
  PageMemory kv_;
  std::vector<LeaseEntry> entries_;
  std::vector<LeaseEntry> landing_;
  std::unique_ptr<Transport> agent_;
  WorkerConnector worker_;
};

// The other process: says through the pipe how to reach it, then turns its loop until it is killed.
[[noreturn]] void run_prefill(int out) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const nixl::Library library = nixl::load_library({}).value();
  RankHost p(library, "p", true);
  std::ranges::fill(p.kv(), std::byte{0x5a});
  p.worker().start_load_kv({.reqs_to_send = {{.id = LeaseId("lease-0badcafe"),
                                              .slot = kSlot,
                                              .word = std::uint64_t{kWordHigh} << 32,
                                              .remaining = kForever,
                                              .extension = kForever}}},
                           now());
  const Bytes hello = encode(ConnectorMetadata{
      .peers_to_add = {{.peer = kPeer,
                        .engine = EngineId("p"),
                        .block_size = EngineShape{}.block_size,
                        .ranks = {p.worker().get_handshake_metadata().value()}}}});
  KVL_CHECK(write(out, hello.data(), hello.size()) == static_cast<ssize_t>(hello.size()),
            "a pipe holds what the handshake needs");
  close(out);
  for (;;) {
    p.worker().begin_turn(now(), now());
    p.worker().get_finished(now());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

ConnectorMetadata start_prefill() {
  std::array<int, 2> pipe_ends{};
  KVL_CHECK(pipe(pipe_ends.data()) == 0, "a pipe can be made");
  if (fork() == 0) {
    close(pipe_ends[0]);
    run_prefill(pipe_ends[1]);
  }
  close(pipe_ends[1]);
  Bytes hello(1u << 20);
  std::size_t size = 0;
  while (const ssize_t got = read(pipe_ends[0], hello.data() + size, hello.size() - size)) {
    KVL_CHECK(got > 0, "the other process says how to reach it");
    size += static_cast<std::size_t>(got);
  }
  close(pipe_ends[0]);
  return decode_connector_metadata(std::span(hello).first(size)).value();
}

// D, twice over one library: with validation, whose agent does the bare reads as well, and without.
class Decode {
 public:
  explicit Decode(const ConnectorMetadata& hello)
      : library_(nixl::load_library({}).value()),
        validated_(library_, "d", true),
        unvalidated_(library_, "u", false) {
    for (RankHost* host : {&validated_, &unvalidated_}) {
      host->worker().start_load_kv(hello, now());
    }
    const RankMetadata& p = hello.peers_to_add.front().ranks.front();
    local_ = validated_.agent().prepare_local(validated_.descriptors(validated_.regions())).value();
    remote_ =
        validated_.agent().prepare_remote(p.agent_name, validated_.descriptors(p.regions)).value();
  }

  // The bare read.
  void read(std::size_t blocks, std::size_t times) {
    std::vector<std::uint32_t> indices;
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      for (std::uint32_t block = 0; block < blocks; ++block) {
        indices.push_back(layer * kBlocks + block);
      }
    }
    Transport& agent = validated_.agent();
    for (std::size_t i = 0; i < times; ++i) {
      const TransferHandle transfer =
          agent.post_read(local_, remote_, {.local = indices, .remote = indices}).value();
      TransferState state = agent.poll(transfer);
      while (state == TransferState::kInProgress) {
        wait_until(agent.next_poll(true, now()));
        state = agent.poll(transfer);
      }
      KVL_CHECK(state == TransferState::kDone, "the other process lets its memory be read");
      agent.release(transfer);
    }
  }

  void pull(std::size_t blocks, std::size_t times) { pull(validated_.worker(), blocks, times); }
  void pull_unvalidated(std::size_t blocks, std::size_t times) {
    pull(unvalidated_.worker(), blocks, times);
  }

  // A step of a rank with nothing to do, over NIXL.
  void idle_steps(std::size_t times) {
    const ConnectorMetadata nothing;
    for (std::size_t i = 0; i < times; ++i) {
      validated_.worker().start_load_kv(nothing, now());
      KVL_CHECK(validated_.worker().get_finished(now()).empty(), "nothing happens");
    }
  }

 private:
  static void wait_until(Instant instant) {
    if (const Duration left = remaining(instant, now()); left > Duration::zero()) {
      std::this_thread::sleep_for(left);
    }
  }

  void pull(WorkerConnector& worker, std::size_t blocks, std::size_t times) {
    RecvRequest order{.peer = kPeer,
                      .lease = LeaseId("lease-0badcafe"),
                      .slot = kSlot,
                      .word = std::uint64_t{kWordHigh} << 32,
                      .local_block_ids = {},
                      .remote_block_ids = {}};
    for (std::uint32_t block = 0; block < blocks; ++block) {
      order.local_block_ids.emplace_back(block);
      order.remote_block_ids.emplace_back(block);
    }
    for (std::size_t i = 0; i < times; ++i) {
      order.request = RequestId("request-" + std::to_string(i));
      worker.start_load_kv({.reqs_to_recv = {order}}, now());
      WorkerOutput output = worker.get_finished(now());
      while (output.finished_recving.empty()) {
        KVL_CHECK(output.failed_recving.empty(), "the lease is live");
        wait_until(worker.next_deadline(now()));
        output = worker.get_finished(now());
      }
    }
  }

  nixl::Library library_;
  RankHost validated_;
  RankHost unvalidated_;
  DescListHandle local_;
  DescListHandle remote_;
};

}  // namespace
}  // namespace kvlease

int main() {
  using namespace kvlease;
  Decode decode(start_prefill());
  return answer_rounds({
      {"read", [&](auto blocks, auto times) { decode.read(blocks, times); }},
      {"pull", [&](auto blocks, auto times) { decode.pull(blocks, times); }},
      {"pull_unvalidated",
       [&](auto blocks, auto times) { decode.pull_unvalidated(blocks, times); }},
      {"idle_step", [&](auto, auto times) { decode.idle_steps(times); }},
  });
}
