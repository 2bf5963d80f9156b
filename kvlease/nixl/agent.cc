// The adapter: who owns which NIXL object, when a read is final, and what a refusal means.
#include "kvlease/nixl/agent.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kvlease/base/check.h"
#include "kvlease/transport/paired_bytes.h"

namespace kvlease::nixl {
namespace {

using capi::Status;

// Measured: below 20 µs between polls the progress thread starves; 1 ms is what L11 allows.
constexpr Duration kPollDelayMin = std::chrono::microseconds(20);
constexpr Duration kPollDelayMax = std::chrono::milliseconds(1);

template <typename T>
using Owned = std::unique_ptr<T, Status (*)(T*)>;

struct ReleaseRequest {
  const capi::Functions* nixl;
  capi::Agent* agent;
  void operator()(capi::XferReq* request) const {
    nixl->release_xfer_req(agent, request);
    nixl->destroy_xfer_req(request);
  }
};
using Request = std::unique_ptr<capi::XferReq, ReleaseRequest>;

struct ReleaseList {
  const capi::Functions* nixl;
  capi::Agent* agent;
  void operator()(capi::DlistHandle* list) const { nixl->release_xfer_dlist_handle(agent, list); }
};
using PreparedList = std::unique_ptr<capi::DlistHandle, ReleaseList>;

std::string refused(const std::string& what, Status status) {
  return "NIXL refused " + what + " (status " + std::to_string(static_cast<int>(status)) +
         "; its log on stderr says why)";
}

capi::MemType mem_type(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kDram:
      return capi::MemType::kDram;
    case MemoryKind::kVram:
      return capi::MemType::kVram;
  }
  KVL_UNREACHABLE("every kind of memory has a type in NIXL");
}

bool is_range(const MemoryRegion& region) {
  return region.length_bytes > 0 && region.address + region.length_bytes > region.address;
}

std::string describe(const MemoryRegion& region) {
  return std::to_string(region.length_bytes) + " bytes at " + std::to_string(region.address);
}

class Agent final : public Transport {
 public:
  Agent(const capi::Functions& functions, AgentOptions options)
      : nixl_(functions), options_(std::move(options)) {}
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  Result<void> start();

  const AgentName& name() const override { return options_.name; }
  Result<void> register_memory(const MemoryRegion& region) override;
  Result<Bytes> local_metadata() override;
  Result<AgentName> add_peer(std::span<const std::byte> metadata) override;
  void remove_peer(const AgentName& peer) override;
  Result<DescListHandle> prepare_local(std::span<const MemoryRegion> descriptors) override;
  Result<DescListHandle> prepare_remote(const AgentName& peer,
                                        std::span<const MemoryRegion> descriptors) override;
  void release_list(DescListHandle list) override;
  Result<TransferHandle> post_read(DescListHandle local, DescListHandle remote,
                                   ReadIndices indices) override;
  TransferState poll(TransferHandle transfer) override;
  Duration post_time(TransferHandle transfer) const override;
  void release(TransferHandle transfer) override;
  Result<void> send_notif(const AgentName& peer, std::span<const std::byte> payload) override;
  std::vector<Notification> take_notifs() override;
  std::size_t notification_bytes_max() const override { return options_.notification_bytes_max; }
  Instant next_poll(bool reads_outstanding, Instant now) override;

 private:
  struct Peer {
    std::size_t unfinished_reads = 0;
    bool removed = false;  // and kept only until its reads are final
  };
  struct List {
    AgentName owner;  // empty: this agent
    PreparedList handle;
    std::vector<MemoryRegion> descriptors;
  };
  struct Read {
    AgentName peer;
    std::vector<Request> posted;  // and not final
    std::deque<Request> waiting;
    bool failed = false;
    Duration post_time{};  // of all its requests
    TransferState state = TransferState::kInProgress;
  };

  using Peers = std::map<AgentName, Peer>;

  bool has_peer(const AgentName& peer) const;
  void forget_if_quiet(Peers::iterator peer);
  Result<DescListHandle> prepare(const AgentName& owner, std::span<const MemoryRegion> descriptors);
  Result<std::deque<Request>> make_requests(const List& local, const List& remote,
                                            ReadIndices indices);
  bool post_next(Read& read);

  const capi::Functions nixl_;
  const AgentOptions options_;

  // Destroyed from below: requests, then lists, then the small objects, and the agent last; that
  // ends its registrations and closes its endpoints.
  Owned<capi::Agent> agent_{nullptr, nixl_.destroy_agent};
  Owned<capi::Backend> backend_{nullptr, nixl_.destroy_backend};
  Owned<capi::OptArgs> use_backend_{nullptr, nixl_.destroy_opt_args};
  Owned<capi::NotifMap> inbox_{nullptr, nixl_.destroy_notif_map};
  Peers peers_;
  std::map<DescListHandle, List> lists_;
  std::map<TransferHandle, Read> reads_;
  std::uint64_t handles_made_ = 0;

  bool something_moved_ = false;  // since the last next_poll()
  Duration poll_delay_ = kPollDelayMin;
  Instant next_poll_ = kTimeZero;
};

// Calls a function of the library whose last parameter receives a new object.
template <typename T, typename Create, typename... Args>
Status create(Owned<T>& owner, Create create_function, Args... args) {
  T* made = nullptr;
  const Status status = create_function(args..., &made);
  if (status == Status::kSuccess) owner.reset(made);
  return status;
}

Result<void> Agent::start() {
  const capi::AgentConfig config{.enable_prog_thread = true,
                                 .enable_listen_thread = false,
                                 .listen_port = 0,
                                 .thread_sync = capi::ThreadSync::kReadWrite,
                                 .num_workers = 1,
                                 .pthr_delay_us = 1000,  // 0 would spin
                                 .lthr_delay_us = 100'000,
                                 .capture_telemetry = false};
  Owned<capi::Params> params{nullptr, nixl_.destroy_params};
  Status status =
      create(agent_, nixl_.create_configured_agent, options_.name.str().c_str(), &config);
  if (status == Status::kSuccess) status = create(params, nixl_.create_params);
  if (status == Status::kSuccess) {
    // With error mode `none` a dead peer is never noticed. One worker keeps notifications in order.
    nixl_.params_add(params.get(), "ucx_error_handling_mode", "peer");
    nixl_.params_add(params.get(), "num_workers", "1");
    status = create(backend_, nixl_.create_backend, agent_.get(), "UCX", params.get());
  }
  if (status == Status::kSuccess) status = create(use_backend_, nixl_.create_opt_args);
  if (status == Status::kSuccess) {
    status = nixl_.opt_args_add_backend(use_backend_.get(), backend_.get());
  }
  if (status == Status::kSuccess) status = create(inbox_, nixl_.create_notif_map);
  if (status == Status::kSuccess) return {};
  return error(ErrorCode::kUnavailable,
               refused("to start agent '" + options_.name.str() + "'", status));
}

Result<void> Agent::register_memory(const MemoryRegion& region) {
  if (!is_range(region)) {
    return error(ErrorCode::kInvalidArgument, describe(region) + " are not a range of memory");
  }
  Owned<capi::RegDlist> list{nullptr, nixl_.destroy_reg_dlist};
  Status status = create(list, nixl_.create_reg_dlist, mem_type(region.kind));
  if (status == Status::kSuccess) {
    status = nixl_.reg_dlist_add_desc(list.get(), region.address, region.length_bytes,
                                      region.device, nullptr, 0);
  }
  if (status == Status::kSuccess) {
    status = nixl_.register_mem(agent_.get(), list.get(), use_backend_.get());
  }
  if (status == Status::kSuccess) return {};
  return error(ErrorCode::kUnavailable, refused("to register " + describe(region), status));
}

Result<Bytes> Agent::local_metadata() {
  void* data = nullptr;
  std::size_t length = 0;
  const Status status = nixl_.get_local_md(agent_.get(), &data, &length);
  const std::unique_ptr<void, void (*)(void*)> owned(data, std::free);
  if (status != Status::kSuccess) {
    return error(ErrorCode::kUnavailable, refused("this agent's metadata", status));
  }
  const auto* bytes = static_cast<const std::byte*>(data);
  return Bytes(bytes, bytes + length);
}

Result<AgentName> Agent::add_peer(std::span<const std::byte> metadata) {
  char* text = nullptr;
  const Status status = nixl_.load_remote_md(agent_.get(), metadata.data(), metadata.size(), &text);
  const std::unique_ptr<char, void (*)(void*)> owned(text, std::free);
  if (status != Status::kSuccess || text == nullptr) {
    return error(
        ErrorCode::kIncompatible,
        refused("agent metadata of " + std::to_string(metadata.size()) + " bytes", status));
  }
  AgentName peer(text);
  const auto [known, added] = peers_.try_emplace(peer);
  if (added) return peer;
  // NIXL took identical metadata as done, or merged additions: nothing has to be undone.
  if (!known->second.removed) {
    return error(ErrorCode::kIncompatible, "peer '" + peer.str() + "' is loaded already");
  }
  return error(ErrorCode::kUnavailable,
               "peer '" + peer.str() + "' was removed while " +
                   std::to_string(known->second.unfinished_reads) +
                   " reads from it are not final: add it again when they are");
}

void Agent::remove_peer(const AgentName& peer) {
  const auto known = peers_.find(peer);
  if (known == peers_.end()) return;
  // NIXL does not detect a list that outlived its peer in every version: take them away.
  for (auto& [handle, list] : lists_) {
    if (list.owner == peer) list.handle.reset();
  }
  known->second.removed = true;
  forget_if_quiet(known);
}

bool Agent::has_peer(const AgentName& peer) const {
  const auto known = peers_.find(peer);
  return known != peers_.end() && !known->second.removed;
}

// Waits for the last read: invalidating closes the endpoint, and then a read's status no longer
// tells whether it may still write (L26).
void Agent::forget_if_quiet(Peers::iterator peer) {
  if (!peer->second.removed || peer->second.unfinished_reads > 0) return;
  nixl_.invalidate_remote_md(agent_.get(), peer->first.str().c_str());
  peers_.erase(peer);
}

Result<DescListHandle> Agent::prepare_local(std::span<const MemoryRegion> descriptors) {
  return prepare(AgentName(), descriptors);
}

Result<DescListHandle> Agent::prepare_remote(const AgentName& peer,
                                             std::span<const MemoryRegion> descriptors) {
  if (!has_peer(peer)) {
    return error(ErrorCode::kNotFound, "peer '" + peer.str() + "' is not loaded");
  }
  return prepare(peer, descriptors);
}

Result<DescListHandle> Agent::prepare(const AgentName& owner,
                                      std::span<const MemoryRegion> descriptors) {
  if (descriptors.empty()) {
    return error(ErrorCode::kInvalidArgument, "a list without descriptors cannot be prepared");
  }
  List list{.owner = owner,
            .handle = PreparedList(nullptr, ReleaseList{&nixl_, agent_.get()}),
            .descriptors = {descriptors.begin(), descriptors.end()}};
  Owned<capi::XferDlist> described{nullptr, nixl_.destroy_xfer_dlist};
  const MemoryKind kind = descriptors.front().kind;
  Status status = create(described, nixl_.create_xfer_dlist, mem_type(kind));
  for (const MemoryRegion& descriptor : descriptors) {
    if (!is_range(descriptor) || descriptor.kind != kind) {
      return error(ErrorCode::kInvalidArgument,
                   describe(descriptor) + ": not a range of memory of its list's kind");
    }
    if (status != Status::kSuccess) break;
    status = nixl_.xfer_dlist_add_desc(described.get(), descriptor.address, descriptor.length_bytes,
                                       descriptor.device);
  }
  if (status == Status::kSuccess) {
    capi::DlistHandle* handle = nullptr;
    status = nixl_.prep_xfer_dlist(agent_.get(), owner.str().c_str(), described.get(), &handle,
                                   use_backend_.get());
    if (status == Status::kSuccess) list.handle.reset(handle);
  }
  if (status != Status::kSuccess) {
    const std::string whose = owner.empty() ? "this agent" : "peer '" + owner.str() + "'";
    return error(ErrorCode::kInvalidArgument,
                 refused(std::to_string(descriptors.size()) + " descriptors from " +
                             describe(descriptors.front()) + " of " + whose +
                             ": one of them lies outside its registrations",
                         status));
  }
  const DescListHandle handle(++handles_made_);
  lists_.emplace(handle, std::move(list));
  return handle;
}

void Agent::release_list(DescListHandle list) {
  KVL_CHECK(lists_.erase(list) == 1, "a released list belongs to this agent");
}

// Splits the pairs into requests of at most post_bytes_max bytes.
Result<std::deque<Request>> Agent::make_requests(const List& local, const List& remote,
                                                 ReadIndices indices) {
  std::deque<Request> requests;
  const std::size_t count = indices.local.size();
  for (std::size_t first = 0, last = 0; first < count; first = last) {
    std::uint64_t bytes = 0;
    do {
      bytes += local.descriptors[indices.local[last++]].length_bytes;
    } while (last < count && bytes + local.descriptors[indices.local[last]].length_bytes <=
                                 options_.post_bytes_max);
    // int and uint32_t may alias; no list is longer than an int can count.
    const auto* from = reinterpret_cast<const int*>(indices.remote.data() + first);
    const auto* to = reinterpret_cast<const int*>(indices.local.data() + first);
    capi::XferReq* request = nullptr;
    const Status status =
        nixl_.make_xfer_req(agent_.get(), capi::XferOp::kRead, local.handle.get(), to, last - first,
                            remote.handle.get(), from, last - first, &request, use_backend_.get());
    if (status != Status::kSuccess) {
      return error(ErrorCode::kSuspectPeer,
                   refused("a read from '" + remote.owner.str() + "'", status));
    }
    requests.emplace_back(request, ReleaseRequest{&nixl_, agent_.get()});
  }
  return requests;
}

Result<TransferHandle> Agent::post_read(DescListHandle local, DescListHandle remote,
                                        ReadIndices indices) {
  const auto to = lists_.find(local);
  const auto from = lists_.find(remote);
  KVL_CHECK(to != lists_.end() && to->second.owner.empty(), "a read lands in a local list");
  KVL_CHECK(from != lists_.end() && !from->second.owner.empty(), "a read comes from a peer's list");
  KVL_CHECK(from->second.handle != nullptr, "a list is not used after its peer was removed");
  const Result<std::uint64_t> bytes =
      paired_bytes(to->second.descriptors, from->second.descriptors, indices);
  if (!bytes) return std::unexpected(bytes.error());

  Result<std::deque<Request>> requests = make_requests(to->second, from->second, indices);
  if (!requests) return std::unexpected(requests.error());
  Read read{.peer = from->second.owner, .posted = {}, .waiting = std::move(*requests)};
  if (!post_next(read)) {
    return error(ErrorCode::kSuspectPeer, "a read from '" + read.peer.str() + "' was refused");
  }
  ++peers_.at(read.peer).unfinished_reads;
  const TransferHandle handle(++handles_made_);
  reads_.emplace(handle, std::move(read));
  return handle;
}

// Hands the next request to NIXL. Over CMA its bytes are often in place on return.
bool Agent::post_next(Read& read) {
  Request request = std::move(read.waiting.front());
  read.waiting.pop_front();
  something_moved_ = true;
  // The null `opt` keeps what the request was made with.
  const auto start = std::chrono::steady_clock::now();
  const Status status = nixl_.post_xfer_req(agent_.get(), request.get(), nullptr);
  read.post_time += std::chrono::steady_clock::now() - start;
  if (status == Status::kInProgress) read.posted.push_back(std::move(request));
  return status == Status::kInProgress || status == Status::kSuccess;
}

TransferState Agent::poll(TransferHandle transfer) {
  const auto found = reads_.find(transfer);
  KVL_CHECK(found != reads_.end(), "a polled read belongs to this agent and was not released");
  Read& read = found->second;
  if (read.state != TransferState::kInProgress) return read.state;

  std::erase_if(read.posted, [&](const Request& request) {
    const Status status = nixl_.get_xfer_status(agent_.get(), request.get());
    if (status == Status::kInProgress) return false;
    something_moved_ = true;
    if (status != Status::kSuccess) read.failed = true;
    return true;
  });
  if (!read.failed && !read.waiting.empty()) read.failed = !post_next(read);
  if (read.failed) read.waiting.clear();
  if (!read.posted.empty() || !read.waiting.empty()) return TransferState::kInProgress;

  read.state = read.failed ? TransferState::kError : TransferState::kDone;
  const auto peer = peers_.find(read.peer);
  --peer->second.unfinished_reads;
  forget_if_quiet(peer);
  return read.state;
}

Duration Agent::post_time(TransferHandle transfer) const {
  const auto found = reads_.find(transfer);
  KVL_CHECK(found != reads_.end(), "a read of this agent that was not released");
  return found->second.post_time;
}

void Agent::release(TransferHandle transfer) {
  const auto found = reads_.find(transfer);
  KVL_CHECK(found != reads_.end(), "a released read belongs to this agent");
  KVL_CHECK(found->second.state != TransferState::kInProgress, "a released read is final (L26)");
  reads_.erase(found);
}

Result<void> Agent::send_notif(const AgentName& peer, std::span<const std::byte> payload) {
  if (!has_peer(peer)) {
    return error(ErrorCode::kNotFound, "peer '" + peer.str() + "' is not loaded");
  }
  if (payload.size() > options_.notification_bytes_max) {
    return error(ErrorCode::kInvalidArgument, "a notification of " +
                                                  std::to_string(payload.size()) +
                                                  " bytes is over the limit of " +
                                                  std::to_string(options_.notification_bytes_max));
  }
  const Status status = nixl_.gen_notif(agent_.get(), peer.str().c_str(), payload.data(),
                                        payload.size(), use_backend_.get());
  if (status == Status::kSuccess) return {};
  return error(ErrorCode::kSuspectPeer, refused("a notification to '" + peer.str() + "'", status));
}

std::vector<Notification> Agent::take_notifs() {
  std::vector<Notification> taken;
  capi::NotifMap* const inbox = inbox_.get();
  std::size_t senders = 0;
  if (nixl_.get_notifs(agent_.get(), inbox, use_backend_.get()) != Status::kSuccess) return taken;
  nixl_.notif_map_size(inbox, &senders);
  for (std::size_t sender = 0; sender < senders; ++sender) {
    const char* name = nullptr;
    std::size_t count = 0;
    nixl_.notif_map_get_agent_at(inbox, sender, &name);
    nixl_.notif_map_get_notifs_size(inbox, name, &count);
    for (std::size_t i = 0; i < count; ++i) {
      const void* data = nullptr;
      std::size_t length = 0;
      nixl_.notif_map_get_notif(inbox, name, i, &data, &length);
      const auto* bytes = static_cast<const std::byte*>(data);
      taken.push_back({.sender = AgentName(name), .payload = Bytes(bytes, bytes + length)});
    }
  }
  nixl_.notif_map_clear(inbox);
  if (!taken.empty()) something_moved_ = true;
  return taken;
}

// Doubles from kPollDelayMin to kPollDelayMax until something moves; asked again before the time it
// named, it names the same.
Instant Agent::next_poll(bool reads_outstanding, Instant now) {
  if (!reads_outstanding) return saturating_add(now, kPollDelayMax);  // L11
  if (something_moved_) {
    poll_delay_ = kPollDelayMin;
  } else if (now < next_poll_) {
    return next_poll_;
  } else {
    poll_delay_ = std::min(poll_delay_ * 2, kPollDelayMax);
  }
  something_moved_ = false;
  next_poll_ = saturating_add(now, poll_delay_);
  return next_poll_;
}

}  // namespace

Result<std::unique_ptr<Transport>> make_agent(const Library& library, AgentOptions options) {
  auto agent = std::make_unique<Agent>(library.functions, std::move(options));
  if (const Result<void> started = agent->start(); !started) {
    return std::unexpected(started.error());
  }
  return agent;
}

}  // namespace kvlease::nixl
