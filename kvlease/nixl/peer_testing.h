// A second process with a NIXL agent for tests: this test program again, which lets its memory be
// read and echoes notifications until its input ends. peer_testing.cc therefore has the program's
// main().
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvlease/base/bytes.h"
#include "kvlease/transport/transport.h"

namespace kvlease::nixl {

// What one process tells the other before they can talk over NIXL.
struct PeerHello {
  MemoryRegion region;
  Bytes metadata;
};

class PeerProcess {
 public:
  // Its memory holds fill_pattern(…, 1).
  PeerProcess();
  ~PeerProcess();  // kills it
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  const PeerHello& hello() const { return hello_; }
  // Lets it send notifications to the agent of this metadata; it echoes those only.
  void introduce(std::span<const std::byte> metadata);
  void signal(int number);
  void kill_and_wait();

  static constexpr std::size_t kMemoryBytes = 16u << 20;

 private:
  pid_t pid_ = -1;
  int input_ = -1;   // what it reads
  int output_ = -1;  // what it writes
  PeerHello hello_;
};

}  // namespace kvlease::nixl
