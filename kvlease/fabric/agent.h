// One agent of a Network: its registrations, peers, prepared lists, reads and inbox.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "kvlease/fabric/network.h"

namespace kvlease::fabric {

class Network::Agent final : public Transport {
 public:
  Agent(Network& network, Node& node, const AgentName& name);
  ~Agent() override;

  const AgentName& name() const override { return name_; }
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
  std::size_t notification_bytes_max() const override;
  Instant next_poll(bool reads_outstanding, Instant now) override;

  // From the network.
  void deliver(Notification notification);
  void finish(TransferHandle transfer, TransferState state);
  void die();

 private:
  struct Peer {
    Node* node;
    std::vector<MemoryRegion> regions;
  };
  struct DescList {
    std::optional<AgentName> peer;  // none: this agent's own memory
    std::vector<MemoryRegion> descriptors;
  };
  struct Read {
    TransferState state = TransferState::kInProgress;
    bool seen = false;  // poll() has returned the final state
  };

  Result<DescListHandle> add_list(DescList list, std::span<const MemoryRegion> registered);
  const DescList& list(DescListHandle handle) const;
  Result<void> check_reachable(const AgentName& peer, const Node& node) const;

  Network& network_;
  Node& node_;
  const AgentName name_;
  std::vector<MemoryRegion> regions_;
  std::map<AgentName, Peer> peers_;
  std::map<DescListHandle, DescList> lists_;
  std::uint64_t next_list_ = 1;
  std::map<TransferHandle, Read> reads_;
  std::size_t unseen_reads_ = 0;  // final, but not yet polled as such
  std::vector<Notification> inbox_;
};

}  // namespace kvlease::fabric
