// A Transport over one real NIXL agent with the UCX backend: registered memory, one-sided reads,
// notifications. Run over CMA and TCP with host memory; MemoryKind::kVram is passed on as NIXL's
// VRAM segment, but no GPU has ever run it.
//
// Where Transport leaves room, NIXL decides:
// - add_peer() must be given what a trusted peer sent in its handshake (L51): truncated metadata is
//   refused, but UCX has been seen to abort the process on altered addresses.
// - A removed peer with unfinished reads stays loaded in NIXL until they are final (L26). Until
//   then add_peer() answers kUnavailable for its name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kvlease/base/ids.h"
#include "kvlease/base/result.h"
#include "kvlease/nixl/library.h"
#include "kvlease/transport/transport.h"

namespace kvlease::nixl {

struct AgentOptions {
  // Unique per incarnation: NIXL cannot safely load a name twice (L31).
  AgentName name;
  // Bytes that one call of post_read() or poll() hands to NIXL at most (or one descriptor, when
  // that is longer). Over CMA the copy happens inside the call: 8 MiB take milliseconds.
  std::uint64_t post_bytes_max = 8u << 20;
  // One UCX fragment; above it NIXL blocks the caller (L17).
  std::size_t notification_bytes_max = 8192;
};

// Starts an agent and its progress thread, in 40 to 450 ms. Its end closes every endpoint, and
// unfinished reads write no more; after a peer's failure NIXL has been seen to hang in this, so a
// process that exits does well to limit the time it takes.
// Errors: kUnavailable when NIXL refuses; its log on stderr has the reason.
// Threads: the Transport's, and NIXL's own. Create it after fork, never before.
Result<std::unique_ptr<Transport>> make_agent(const Library& library, AgentOptions options);

}  // namespace kvlease::nixl
