// A producer and a consumer on one network, for the tests of this room.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvlease/fabric/fault.h"
#include "kvlease/fabric/network.h"

namespace kvlease::fabric {

constexpr Instant at_us(std::int64_t us) { return kTimeZero + std::chrono::microseconds(us); }

inline constexpr std::size_t kBlockBytes = 1000;
inline constexpr std::size_t kBlocks = 8;

// One agent with memory of kBlocks blocks.
struct Instance {
  Bytes memory = Bytes(kBlocks * kBlockBytes);
  std::unique_ptr<Transport> transport;

  explicit Instance(std::unique_ptr<Transport> agent) : transport(std::move(agent)) {
    EXPECT_TRUE(
        transport->register_memory({.address = reinterpret_cast<std::uintptr_t>(memory.data()),
                                    .length_bytes = memory.size()}));
  }
  std::vector<MemoryRegion> blocks() const {
    std::vector<MemoryRegion> regions;
    for (std::size_t i = 0; i < kBlocks; ++i) {
      regions.push_back(
          {.address = reinterpret_cast<std::uintptr_t>(memory.data()) + i * kBlockBytes,
           .length_bytes = kBlockBytes});
    }
    return regions;
  }
  void fill(int value) { std::ranges::fill(memory, static_cast<std::byte>(value)); }
  std::size_t count(int value) const {
    return static_cast<std::size_t>(std::ranges::count(memory, static_cast<std::byte>(value)));
  }
};

// A producer and a consumer that reads all its blocks at once; the faults, if any, are the
// consumer's.
struct Pair {
  explicit Pair(const NetworkConfig& config)
      : Pair(config, [](std::unique_ptr<Transport> agent) { return agent; }) {}
  Pair(const NetworkConfig& config, const FaultPlan& plan)
      : Pair(config,
             [&](std::unique_ptr<Transport> agent) { return fault(std::move(agent), plan); }) {}
  Pair(const NetworkConfig& config,
       const std::function<std::unique_ptr<Transport>(std::unique_ptr<Transport>)>& decorate)
      : network(config), consumer(decorate(network.make_agent(AgentName("d/0/1.0")))) {
    EXPECT_TRUE(consumer.transport->add_peer(*producer.transport->local_metadata()));
    local = *consumer.transport->prepare_local(consumer.blocks());
    remote = *consumer.transport->prepare_remote(producer.transport->name(), producer.blocks());
    std::iota(all.begin(), all.end(), 0u);
    producer.fill(1);
  }

  // One turn of the consumer's host: what is due moves; returns when to turn next.
  Instant turn(Instant now) {
    network.advance_to(now);
    return consumer.transport->next_poll(true, now);
  }

  TransferHandle post() { return *try_post(); }
  Result<TransferHandle> try_post() {
    return consumer.transport->post_read(local, remote, {.local = all, .remote = all});
  }
  TransferState poll(TransferHandle read) { return consumer.transport->poll(read); }
  Result<void> notify(std::string_view text) {
    return consumer.transport->send_notif(producer.transport->name(), as_byte_span(text));
  }
  std::string received() {
    std::string text;
    for (const Notification& notif : producer.transport->take_notifs()) {
      text += as_text(notif.payload);
    }
    return text;
  }

  Network network;
  Instance producer{network.make_agent(AgentName("p/0/1.0"))};
  Instance consumer;
  DescListHandle local;
  DescListHandle remote;
  std::array<std::uint32_t, kBlocks> all{};
};

}  // namespace kvlease::fabric
