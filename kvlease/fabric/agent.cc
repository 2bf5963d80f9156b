// The Transport contract on top of the network's events.
#include "kvlease/fabric/agent.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kvlease/base/check.h"
#include "kvlease/transport/paired_bytes.h"

namespace kvlease::fabric {
namespace {

constexpr std::string_view kMetadataMagic = "kvlease-fabric/1";
constexpr std::size_t kRegionBytes = 8 + 8 + 1 + 4;

struct Metadata {
  AgentName name;
  std::vector<MemoryRegion> regions;
};

Bytes encode(const Metadata& metadata) {
  ByteWriter out;
  out.put_string(kMetadataMagic);
  out.put_string(metadata.name.str());
  out.put(static_cast<std::uint32_t>(metadata.regions.size()));
  for (const MemoryRegion& region : metadata.regions) {
    out.put(region.address);
    out.put(region.length_bytes);
    out.put(std::to_underlying(region.kind));
    out.put(region.device);
  }
  return out.take();
}

std::optional<Metadata> decode(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  if (as_text(in.get_bytes()) != kMetadataMagic) return std::nullopt;
  Metadata metadata{.name = AgentName(in.get_string()), .regions = {}};
  const std::size_t count = in.get_count(kRegionBytes);
  for (std::size_t i = 0; i < count; ++i) {
    const auto address = in.get<std::uint64_t>();
    const auto length_bytes = in.get<std::uint64_t>();
    const auto kind = in.get<std::uint8_t>();
    const auto device = in.get<std::uint32_t>();
    if (kind > std::to_underlying(MemoryKind::kVram)) return std::nullopt;
    metadata.regions.push_back({address, length_bytes, static_cast<MemoryKind>(kind), device});
  }
  if (!in.finished()) return std::nullopt;
  return metadata;
}

bool contains(const MemoryRegion& outer, const MemoryRegion& inner) {
  if (outer.kind != inner.kind || outer.device != inner.device) return false;
  if (inner.address < outer.address) return false;
  const std::uint64_t offset = inner.address - outer.address;
  return offset <= outer.length_bytes && inner.length_bytes <= outer.length_bytes - offset;
}

std::string describe(const MemoryRegion& region) {
  return std::to_string(region.length_bytes) + " bytes at " + std::to_string(region.address);
}

}  // namespace

Network::Agent::Agent(Network& network, Node& node, const AgentName& name)
    : network_(network), node_(node), name_(name) {}

Network::Agent::~Agent() {
  network_.end_node(node_);
  node_.agent = nullptr;
}

Result<void> Network::Agent::register_memory(const MemoryRegion& region) {
  if (region.length_bytes == 0 || region.address + region.length_bytes < region.address) {
    return error(ErrorCode::kInvalidArgument,
                 "cannot register " + describe(region) + "; register a range that exists");
  }
  regions_.push_back(region);
  return {};
}

Result<Bytes> Network::Agent::local_metadata() {
  return encode({.name = name_, .regions = regions_});
}

Result<AgentName> Network::Agent::add_peer(std::span<const std::byte> metadata) {
  std::optional<Metadata> peer = decode(metadata);
  if (!peer) {
    return error(ErrorCode::kIncompatible, std::to_string(metadata.size()) +
                                               " bytes of metadata are not a fabric agent's; "
                                               "use the same transport on both sides");
  }
  const AgentName& name = peer->name;
  const auto it = network_.nodes_.find(name);
  if (it == network_.nodes_.end()) {
    return error(ErrorCode::kIncompatible, "agent " + name.str() + " is not in this network");
  }
  if (name == name_) {
    return error(ErrorCode::kIncompatible, "agent " + name.str() + " cannot be its own peer");
  }
  const bool is_new =
      peers_.try_emplace(name, Peer{.node = &it->second, .regions = std::move(peer->regions)})
          .second;
  if (!is_new) {
    return error(ErrorCode::kIncompatible,
                 "peer " + name.str() + " is loaded already; remove it first");
  }
  return name;
}

void Network::Agent::remove_peer(const AgentName& peer) { peers_.erase(peer); }

Result<DescListHandle> Network::Agent::prepare_local(std::span<const MemoryRegion> descriptors) {
  return add_list({.peer = std::nullopt, .descriptors = {descriptors.begin(), descriptors.end()}},
                  regions_);
}

Result<DescListHandle> Network::Agent::prepare_remote(const AgentName& peer,
                                                      std::span<const MemoryRegion> descriptors) {
  const auto it = peers_.find(peer);
  if (it == peers_.end()) {
    return error(ErrorCode::kNotFound, "peer " + peer.str() + " is not loaded; add it first");
  }
  return add_list({.peer = peer, .descriptors = {descriptors.begin(), descriptors.end()}},
                  it->second.regions);
}

Result<DescListHandle> Network::Agent::add_list(DescList list,
                                                std::span<const MemoryRegion> registered) {
  if (list.descriptors.empty()) {
    return error(ErrorCode::kInvalidArgument, "a list needs at least one descriptor");
  }
  for (const MemoryRegion& wanted : list.descriptors) {
    if (std::ranges::none_of(
            registered, [&](const MemoryRegion& region) { return contains(region, wanted); })) {
      return error(ErrorCode::kInvalidArgument,
                   describe(wanted) + " lie outside every registration of " +
                       list.peer.value_or(name_).str() + "; register them first");
    }
  }
  const DescListHandle handle(next_list_++);
  lists_.emplace(handle, std::move(list));
  return handle;
}

const Network::Agent::DescList& Network::Agent::list(DescListHandle handle) const {
  const auto it = lists_.find(handle);
  KVL_CHECK(it != lists_.end(), "a prepared list is used by its agent and before its release");
  return it->second;
}

void Network::Agent::release_list(DescListHandle list) {
  KVL_CHECK(lists_.erase(list) == 1, "a prepared list is released once, by its agent");
}

Result<void> Network::Agent::check_reachable(const AgentName& peer, const Node& node) const {
  if (node_.dead) {
    return error(ErrorCode::kSuspectPeer, "agent " + name_.str() + " was killed");
  }
  if (network_.death_noticed(node)) {
    return error(ErrorCode::kSuspectPeer, "peer " + peer.str() + " is gone; connect to it anew");
  }
  return {};
}

Result<TransferHandle> Network::Agent::post_read(DescListHandle local, DescListHandle remote,
                                                 ReadIndices indices) {
  const DescList& into = list(local);
  const DescList& out_of = list(remote);
  KVL_CHECK(!into.peer && out_of.peer, "a read goes from a remote list into a local one");
  const auto peer = peers_.find(*out_of.peer);
  KVL_CHECK(peer != peers_.end(), "a prepared list is not used after its peer was removed");

  if (auto bytes = paired_bytes(into.descriptors, out_of.descriptors, indices); !bytes) {
    return std::unexpected(bytes.error());
  }
  Node& source = *peer->second.node;
  if (auto reachable = check_reachable(*out_of.peer, source); !reachable) {
    return std::unexpected(reachable.error());
  }
  std::vector<Copy> copies;
  copies.reserve(indices.local.size());
  for (std::size_t i = 0; i < indices.local.size(); ++i) {
    const MemoryRegion& to = into.descriptors[indices.local[i]];
    const MemoryRegion& from = out_of.descriptors[indices.remote[i]];
    copies.push_back({.source = from.address, .destination = to.address, .bytes = to.length_bytes});
  }
  const TransferHandle transfer = network_.start_read(source, node_, copies);
  reads_.emplace(transfer, Read{});
  return transfer;
}

TransferState Network::Agent::poll(TransferHandle transfer) {
  const auto it = reads_.find(transfer);
  KVL_CHECK(it != reads_.end(), "a read is polled by its agent and before its release");
  Read& read = it->second;
  if (read.state != TransferState::kInProgress && !read.seen) {
    read.seen = true;
    --unseen_reads_;
  }
  return read.state;
}

Duration Network::Agent::post_time(TransferHandle transfer) const {
  KVL_CHECK(reads_.contains(transfer), "a read of this agent that was not released");
  return Duration::zero();
}

void Network::Agent::release(TransferHandle transfer) {
  const auto it = reads_.find(transfer);
  KVL_CHECK(it != reads_.end(), "a read is released once, by its agent");
  KVL_CHECK(it->second.seen, "a read is released only after poll() gave its final state (L26)");
  reads_.erase(it);
}

Result<void> Network::Agent::send_notif(const AgentName& peer, std::span<const std::byte> payload) {
  const auto it = peers_.find(peer);
  if (it == peers_.end()) {
    return error(ErrorCode::kNotFound, "peer " + peer.str() + " is not loaded; add it first");
  }
  if (payload.size() > notification_bytes_max()) {
    return error(ErrorCode::kInvalidArgument,
                 "a notification of " + std::to_string(payload.size()) + " bytes is over the " +
                     std::to_string(notification_bytes_max()) + " allowed; split it");
  }
  Node& receiver = *it->second.node;
  if (auto reachable = check_reachable(peer, receiver); !reachable) return reachable;
  network_.schedule(
      saturating_add(network_.now_, network_.config_.notif_latency),
      Event{.from = &node_,
            .to = &receiver,
            .what = Notification{.sender = name_, .payload = {payload.begin(), payload.end()}}});
  return {};
}

std::vector<Notification> Network::Agent::take_notifs() { return std::exchange(inbox_, {}); }

std::size_t Network::Agent::notification_bytes_max() const {
  return network_.config_.notification_bytes_max;
}

Instant Network::Agent::next_poll(bool reads_outstanding, Instant now) {
  if (!inbox_.empty() || (reads_outstanding && unseen_reads_ > 0)) return now;
  return node_.arrivals.empty() ? kNever : std::max(now, node_.arrivals.begin()->at);
}

void Network::Agent::deliver(Notification notification) {
  inbox_.push_back(std::move(notification));
}

void Network::Agent::finish(TransferHandle transfer, TransferState state) {
  const auto it = reads_.find(transfer);
  KVL_CHECK(it != reads_.end(), "a read is kept until it is final (L26)");
  it->second.state = state;
  ++unseen_reads_;
}

void Network::Agent::die() {
  inbox_.clear();
  for (const auto& [transfer, read] : reads_) {
    if (read.state == TransferState::kInProgress) finish(transfer, TransferState::kError);
  }
}

}  // namespace kvlease::fabric
