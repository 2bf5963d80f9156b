// The transport below the connector, in the shape of NIXL: registered memory, agent metadata, reads
// by prepared lists and indices that complete only in poll(), notifications that are drained. One
// Transport is one agent of one rank.
//
// Implementations: kvlease/fabric (deterministic, in process), fault(…) around any of them, and
// kvlease/nixl. All pass the suite in contract_testing.h. Source: NIXL's agent API.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvlease/base/bytes.h"
#include "kvlease/base/ids.h"
#include "kvlease/base/memory_region.h"
#include "kvlease/base/result.h"
#include "kvlease/base/time.h"

namespace kvlease {

// Handles are opaque numbers of one Transport, never reused by it.
using DescListHandle = IntId<struct DescListHandleTag, std::uint64_t>;
using TransferHandle = IntId<struct TransferHandleTag, std::uint64_t>;

enum class TransferState : std::uint8_t {
  kInProgress,  // bytes may still be written
  kDone,        // all bytes are in place; final
  kError,       // failed; final: no byte is written after this was returned (L26)
};

// Which pairs of descriptors one read copies: remote[i] into local[i].
struct ReadIndices {
  std::span<const std::uint32_t> local;
  std::span<const std::uint32_t> remote;
};

struct Notification {
  AgentName sender;
  Bytes payload;
  bool operator==(const Notification&) const = default;
};

// Threads: one thread, the loop's. No call blocks on a peer.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual const AgentName& name() const = 0;

  // Makes `region` readable by peers and usable as a destination. The memory stays registered until
  // the Transport ends, and must outlive it.
  virtual Result<void> register_memory(const MemoryRegion& region) = 0;

  // What a peer needs to reach this agent and all memory registered so far. Opaque.
  virtual Result<Bytes> local_metadata() = 0;

  // Loads a peer from its local_metadata(). Returns the name that the peer gave itself.
  // Errors: kIncompatible when the bytes are not understood or name this agent or a loaded peer.
  virtual Result<AgentName> add_peer(std::span<const std::byte> metadata) = 0;

  // Forgets a peer. Prepared lists of it must not be used afterwards; unfinished reads from it keep
  // their state and may still write (L26). Unknown names are ignored.
  virtual void remove_peer(const AgentName& peer) = 0;

  // Prepares descriptors of this agent's registered memory (destinations).
  // Errors: kInvalidArgument when there is no descriptor or one lies outside every registration.
  virtual Result<DescListHandle> prepare_local(std::span<const MemoryRegion> descriptors) = 0;

  // Prepares descriptors of `peer`'s memory (sources).
  // Errors: kNotFound for a peer that is not loaded; kInvalidArgument as for prepare_local().
  virtual Result<DescListHandle> prepare_remote(const AgentName& peer,
                                                std::span<const MemoryRegion> descriptors) = 0;

  // Releases a prepared list; unfinished reads made from it go on. Requires: a handle of this
  // agent.
  virtual void release_list(DescListHandle list) = 0;

  // Starts one read. It completes only as seen by poll(), never inside this call.
  // Requires: equally many indices on both sides, at least one, each inside its list.
  // Errors: kSuspectPeer when the transport refuses (L21); nothing was started then.
  // kInvalidArgument when two paired descriptors differ in length.
  virtual Result<TransferHandle> post_read(DescListHandle local, DescListHandle remote,
                                           ReadIndices indices) = 0;

  // The state of a read; drives its progress. After a final state it stays the same.
  // Requires: a handle of this agent that was not released.
  virtual TransferState poll(TransferHandle transfer) = 0;

  // How long post_read() took to start a read, on the transport's own clock; 0 in virtual time.
  // What it starts later by itself counts, too. Requires: a handle of this agent that was not
  // released.
  virtual Duration post_time(TransferHandle transfer) const = 0;

  // Gives a read back. Requires: poll() returned a final state for it (there is no cancel: a read
  // that is not final may still write, so it is kept and polled; L26).
  virtual void release(TransferHandle transfer) = 0;

  // Sends bytes to a peer: ordered per pair while both live, lost when one dies, never
  // acknowledged. Errors: kSuspectPeer when the transport refuses; kNotFound for a peer that is not
  // loaded; kInvalidArgument above notification_bytes_max().
  virtual Result<void> send_notif(const AgentName& peer, std::span<const std::byte> payload) = 0;

  // Takes everything that has arrived, in order of arrival per sender.
  virtual std::vector<Notification> take_notifs() = 0;

  virtual std::size_t notification_bytes_max() const = 0;

  // When to call poll() and take_notifs() next: the exact next arrival (fabric) or a back-off
  // (NIXL). `reads_outstanding` says whether the caller waits for more than notifications. kNever:
  // nothing will come by itself.
  virtual Instant next_poll(bool reads_outstanding, Instant now) = 0;
};

}  // namespace kvlease
