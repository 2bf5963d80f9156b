// What tests over real NIXL share: the library or a failure that says how to install it, agents
// over memory of their own, and waiting with a limit.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvlease/nixl/library.h"
#include "kvlease/transport/transport.h"

namespace kvlease::nixl {

// The library that all tests of a process share. Null without it; the current test has then failed,
// or is skipped when KVLEASE_SKIP_NIXL=1 asks for that.
const Library* library_for_test();

// Calls `condition` about every 100 µs (busy polling starves NIXL's progress thread) until it
// holds; false when it does not within `limit`.
bool wait_until(std::chrono::milliseconds limit, const std::function<bool()>& condition);

// An agent with one registered buffer. Every agent of a process needs another name.
struct TestAgent {
  std::vector<std::byte> memory;  // outlives the agent
  std::unique_ptr<Transport> transport;

  // Descriptors of consecutive pieces of `piece_bytes` over the whole buffer.
  std::vector<MemoryRegion> pieces(std::size_t piece_bytes) const;
};
TestAgent make_test_agent(const Library& library, std::string name, std::size_t memory_bytes,
                          std::uint64_t post_bytes_max);

// Bytes that differ from place to place and from seed to seed.
void fill_pattern(std::span<std::byte> bytes, std::uint64_t seed);

}  // namespace kvlease::nixl
