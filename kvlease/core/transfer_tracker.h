// One rank's validated reads (D): which phase each is in, when it runs out of time, and when its
// destination is quiet (L24, L26, L48). Pure: the worker half posts and polls, and tells what it
// saw.
//
//   reading blocks ── done ──► reading entry ── word matches ──► validated   (completion is sent)
//        │ error / timeout         │ word differs / error / timeout
//        ▼                         ▼
//     draining (failed, the destination may still be written) ── all final ──► quiet
//
// A read with no time left is reported as failed at once; its destination stays quarantined until
// the transport says that every transfer of it has really ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kvlease/base/ids.h"
#include "kvlease/base/time.h"
#include "kvlease/core/transition_table.h"

namespace kvlease {

enum class TransferPhase : std::uint8_t {
  kReadingBlocks,
  kReadingEntry,
  kValidated,  // final
  kDraining,   // failed, not quiet
  kQuiet,      // failed and final
};
enum class TransferEvent : std::uint8_t {
  kBlocksDone,
  kBlocksUnvalidated,  // done, from a peer without lease entries (L28)
  kEntryMatches,
  kEntryDiffers,
  kError,     // of the transport, or a post that was refused
  kTimeout,   // kv_load_timeout (L48)
  kAllFinal,  // the transport has ended everything that was posted for it
};
std::string_view transfer_phase_name(TransferPhase phase);
std::string_view transfer_event_name(TransferEvent event);
std::span<const Transition<TransferPhase, TransferEvent>> transfer_transitions();

// Why a load failed; the request takes the failure path (L27).
enum class LoadFailure : std::uint8_t {
  kHandshakeFailed,
  kInvalidReference,  // L52, L28
  kStaleReference,    // L31
  kLeaseLost,         // found by the probe before the read, or by the entry after it
  kTransferFailed,
  kTimedOut,
};
std::string_view load_failure_name(LoadFailure failure);

class TransferTracker {
 public:
  struct Options {
    Duration load_timeout = std::chrono::seconds{60};  // kv_load_timeout (L48)
  };
  explicit TransferTracker(const Options& options);

  // A read of `request` is ordered. It may wait for its first post, for load_timeout at most.
  // Requires: no read of it is known.
  void begin(const RequestId& request, Instant now);

  // Its first post is about to be made: from now on it has load_timeout (L48). Requires: the read
  // is known and has not left kReadingBlocks.
  void on_first_post(const RequestId& request, Instant now);

  // Applies what the worker half saw and returns the phase it leads to. An event that is illegal in
  // the present phase changes nothing and returns nullopt: so of several errors of one read only
  // the first leads to kDraining, and no final phase is ever left. Requires: the read is known.
  std::optional<TransferPhase> on_event(const RequestId& request, TransferEvent event);

  // Reads that are neither final nor draining and whose time is over, in order of the requests; the
  // caller applies kTimeout to each, until then they are listed again.
  std::vector<RequestId> due(Instant now) const;

  // Takes out a read that is validated or quiet. Requires: known and final.
  void forget(const RequestId& request);

  // Requires: known.
  TransferPhase phase(const RequestId& request) const;
  bool is_known(const RequestId& request) const { return transfers_.contains(request); }
  std::size_t size() const { return transfers_.size(); }
  // Reads whose destination is quarantined (L26).
  std::size_t draining() const;
  // When the next read runs out of time; kNever when none can. O(reads).
  Instant next_deadline() const;

 private:
  struct Transfer {
    TransferPhase phase = TransferPhase::kReadingBlocks;
    Instant deadline{};
  };
  std::map<RequestId, Transfer> transfers_;
  Options options_;
};

}  // namespace kvlease
