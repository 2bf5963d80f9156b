// See nixl_testing.h.
#include "kvlease/nixl/nixl_testing.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <thread>
#include <utility>

#include "kvlease/base/prng.h"
#include "kvlease/nixl/agent.h"

namespace kvlease::nixl {

const Library* library_for_test() {
  static const Result<Library> library = [] {
    setenv("UCX_KEEPALIVE_INTERVAL", "1s", 0);  // before UCX first reads it
    return load_library({});
  }();
  if (library) return &*library;
  const char* skip = std::getenv("KVLEASE_SKIP_NIXL");
  if (skip != nullptr && std::string(skip) == "1") {
    [] { GTEST_SKIP() << library.error().message; }();
  } else {
    [] { FAIL() << library.error().message << "\nKVLEASE_SKIP_NIXL=1 skips these tests"; }();
  }
  return nullptr;
}

bool wait_until(std::chrono::milliseconds limit, const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

std::vector<MemoryRegion> TestAgent::pieces(std::size_t piece_bytes) const {
  std::vector<MemoryRegion> found;
  for (std::size_t at = 0; at + piece_bytes <= memory.size(); at += piece_bytes) {
    found.push_back({.address = reinterpret_cast<std::uintptr_t>(memory.data() + at),
                     .length_bytes = piece_bytes});
  }
  return found;
}

TestAgent make_test_agent(const Library& library, std::string name, std::size_t memory_bytes,
                          std::uint64_t post_bytes_max) {
  TestAgent agent{.memory = std::vector<std::byte>(memory_bytes), .transport = nullptr};
  auto made =
      make_agent(library, {.name = AgentName(std::move(name)), .post_bytes_max = post_bytes_max});
  if (!made) {
    ADD_FAILURE() << made.error().message;
    std::abort();
  }
  agent.transport = std::move(*made);
  const auto registered = agent.transport->register_memory(agent.pieces(memory_bytes).front());
  EXPECT_TRUE(registered) << registered.error().message;
  return agent;
}

void fill_pattern(std::span<std::byte> bytes, std::uint64_t seed) {
  Prng prng(seed);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(prng.next());
}

}  // namespace kvlease::nixl
