// Implements engine_host.h.
#include "kvlease/serving/engine_host.h"

#include <algorithm>
#include <utility>

#include "kvlease/base/check.h"
#include "kvlease/base/hex.h"
#include "kvlease/core/agent_name.h"
#include "kvlease/nixl/agent.h"
#include "kvlease/runtime/random.h"
#include "kvlease/serving/access.h"

namespace kvlease {
namespace {

// Landing cells of one rank: reads in flight plus the leases of the probes in flight (L26).
constexpr std::size_t kLandingCells = 4096;

// Another seed is another model: its bytes mean something else (L30).
CompatibilityIdentity make_identity(const EngineHostOptions& options) {
  const KvLayout& layout = options.model.layout;
  return {.model = options.model_name + ",seed=" + std::to_string(options.model.seed),
          .dtype = "bytes" + std::to_string(layout.element_bytes),
          .num_layers = layout.num_layers,
          .num_kv_heads = layout.num_kv_heads,
          .head_dim = layout.head_dim,
          .block_size = layout.block_size,
          .transfer_mode = "pull",
          .kv_cache_layout = "layer,block,kv,head,token"};
}

EngineFacts make_facts(const EngineHostOptions& options) {
  EngineFacts facts{.engine_id = options.kv_transfer_config.engine_id.value_or(
                        EngineId("engine-" + to_hex(random_u64()))),
                    .incarnation = Incarnation(random_u64()),
                    .word_high = static_cast<std::uint32_t>(random_u64()) | 1u,  // never 0 (L22)
                    .identity = make_identity(options),
                    .tp_size = options.model.layout.tp,
                    .advertise_host = options.advertise_host,
                    .advertise_port = options.advertise_port};
  fill_random(facts.seal_key);
  return facts;
}

std::span<LeaseEntry> as_entries(const PageMemory& memory, std::size_t count) {
  return {reinterpret_cast<LeaseEntry*>(memory.bytes().data()), count};
}

}  // namespace

EngineHost::EngineHost(EventLoop& loop, EngineHostOptions options, Sinks sinks)
    : loop_(loop), options_(std::move(options)), sinks_(std::move(sinks)) {}

EngineHost::~EngineHost() = default;

Result<std::unique_ptr<EngineHost>> EngineHost::start(EventLoop& loop, EngineHostOptions options,
                                                      Sinks sinks) {
  std::unique_ptr<EngineHost> host(new EngineHost(loop, std::move(options), std::move(sinks)));
  if (const auto built = host->build(); !built) return std::unexpected(built.error());
  return host;
}

Result<void> EngineHost::build() {
  auto library = nixl::load_library({.explicit_path = options_.nixl_path});
  if (!library) return std::unexpected(library.error());
  library_ = std::move(*library);
  if (const auto fits = options_.model.layout.check(); !fits) return fits;
  const EngineFacts facts = make_facts(options_);
  std::vector<std::span<std::byte>> kv_memory;
  std::vector<WorkerConnector*> workers;
  std::vector<RankMetadata> metadata;
  ranks_.reserve(facts.tp_size);  // workers hold references to their rank's transport
  for (std::uint32_t rank = 0; rank < facts.tp_size; ++rank) {
    if (const auto started = start_rank(Rank(rank), facts); !started) return started;
    auto rank_metadata = ranks_.back().worker->get_handshake_metadata();
    if (!rank_metadata) return std::unexpected(rank_metadata.error());
    metadata.push_back(std::move(*rank_metadata));
    kv_memory.push_back(ranks_.back().kv.bytes());
    workers.push_back(ranks_.back().worker.get());
  }
  model_ = std::make_unique<SyntheticModel>(options_.model, kv_memory);
  runner_ = std::make_unique<ThreadedRunner>(ThreadedRunner::Model{
      .compute = [this](const Batch& batch) { return model_->compute(batch); },
      .cost = [this](const Batch& batch) { return model_->forward_time(batch); },
      .wake = [this] { loop_.post([] {}); }});
  connector_ = std::make_unique<SchedulerConnector>(
      SchedulerConnectorOptions{.facts = facts,
                                .config = options_.kv_transfer_config.lease,
                                .num_blocks = options_.model.layout.num_blocks,
                                .allow_peers = options_.allow_peers,
                                .seed = random_u64()});
  connector_->set_xfer_handshake_metadata(std::move(metadata));
  options_.scheduler.hash_seed = random_u64();
  core_ = std::make_unique<EngineCore>(EngineCoreOptions{.scheduler = options_.scheduler},
                                       *connector_, workers, *runner_);
  return {};
}

Result<std::unique_ptr<Transport>> EngineHost::make_transport(Rank rank, const EngineFacts& facts,
                                                              std::uint32_t agent_number) {
  auto agent =
      nixl::make_agent(library_, {.name = make_agent_name({.engine_id = facts.engine_id.str(),
                                                           .rank = rank,
                                                           .incarnation = facts.incarnation,
                                                           .agent_number = agent_number})});
  if (!agent) return std::unexpected(agent.error());
  return fabric::fault(std::move(*agent), options_.faults);
}

Result<void> EngineHost::start_rank(Rank rank, const EngineFacts& facts) {
  const KvLayout& layout = options_.model.layout;
  const LeaseConfig& config = options_.kv_transfer_config.lease;
  auto kv = PageMemory::map(layout.rank_bytes());
  auto entries = PageMemory::map(config.lease_slots * sizeof(LeaseEntry));
  auto landing = PageMemory::map(kLandingCells * sizeof(LeaseEntry));
  for (const auto* memory : {&kv, &entries, &landing}) {
    if (!*memory) return std::unexpected(memory->error());
  }
  auto agent = make_transport(rank, facts, 0);
  if (!agent) return std::unexpected(agent.error());
  RankParts& parts = ranks_.emplace_back(RankParts{.kv = std::move(*kv),
                                                   .entries = std::move(*entries),
                                                   .landing = std::move(*landing),
                                                   .transport = std::move(*agent),
                                                   .worker = nullptr});
  parts.worker = std::make_unique<WorkerConnector>(
      WorkerConnectorOptions{.rank = rank,
                             .shape = engine_shape(facts),
                             .config = config,
                             .word_high = facts.word_high,
                             .validate_reads = options_.validate_reads},
      *parts.transport,
      KvCaches{.regions = layout.regions(parts.kv.bytes()),
               .num_blocks = layout.num_blocks,
               .entries = as_entries(parts.entries, config.lease_slots),
               .landing = as_entries(parts.landing, kLandingCells)});
  parts.worker->set_renew_agent([this, rank, facts](std::uint32_t number) -> Result<Transport*> {
    auto renewed = make_transport(rank, facts, number);
    if (!renewed) return std::unexpected(renewed.error());
    std::unique_ptr<Transport>& transport = ranks_[rank.value()].transport;
    transport = std::move(*renewed);
    return transport.get();
  });
  return parts.worker->register_kv_caches();
}

std::optional<LeaseStatus> EngineHost::lease_status(const LeaseId& lease) const {
  std::optional<LeaseStatus> merged;
  for (const RankParts& rank : ranks_) {
    std::optional<LeaseStatus> status = rank.worker->leases().status(lease);
    if (!status) continue;
    if (!merged) merged = LeaseStatus{.expires_at = kNever, .reader = {}};
    merged->expires_at = earlier(merged->expires_at, status->expires_at);
    if (merged->reader.empty()) merged->reader = std::move(status->reader);
  }
  return merged;
}

Instant EngineHost::turn(Instant now) {
  const Instant next = core_->turn(now);
  // What happened before what came of it: a request's events are told while it is known.
  for (const Event& event : connector_->take_events()) sinks_.on_event(event);
  for (RequestOutput& output : core_->take_outputs()) sinks_.on_output(std::move(output));
  for (auto& handshake : connector_->take_handshakes(now)) start_handshake(std::move(handshake));
  return next;
}

void EngineHost::start_handshake(SchedulerConnector::HandshakeToMake handshake) {
  const PeerAddress address = handshake.address;
  HttpHeaders headers{{"Content-Type", "application/json"}};
  if (!options_.peer_key.empty()) headers.add(std::string(kPeerKeyHeader), options_.peer_key);
  HttpCallOptions call{.host = address.host,
                       .port = address.port,
                       .method = "POST",
                       .target = std::string(kHandshakePath),
                       .headers = std::move(headers),
                       .body = to_json(handshake.request),
                       .connect_timeout = options_.kv_transfer_config.lease.handshake_timeout,
                       .timeout = options_.kv_transfer_config.lease.handshake_timeout,
                       .response_bytes_max = kHandshakeBytesMax};
  const std::uint64_t number = next_handshake_++;
  const auto done = [this, address, number](Result<HttpResponse> response) {
    Result<HandshakeReply> reply = [&]() -> Result<HandshakeReply> {
      if (!response) return std::unexpected(response.error());
      if (response->status != 200) {
        return error(ErrorCode::kIncompatible, "handshake refused with HTTP " +
                                                   std::to_string(response->status) + ": " +
                                                   response->body.substr(0, 500));
      }
      return parse_handshake_reply(response->body);
    }();
    connector_->on_handshake(address, reply, loop_.now());
    const auto it = handshakes_.find(address);
    if (it != handshakes_.end() && it->second.number == number) handshakes_.erase(it);
  };
  handshakes_.insert_or_assign(address,
                               Handshake{number, HttpCall::start(loop_, std::move(call), done)});
}

}  // namespace kvlease
