// The table of one rank's reads and the deadlines around it (L24, L26, L48).
#include "kvlease/core/transfer_tracker.h"

#include "kvlease/base/check.h"

namespace kvlease {
namespace {

using enum TransferPhase;
using enum TransferEvent;

// L24: only matching entries validate. L26: what failed is quarantined until all of it is final.
constexpr Transition<TransferPhase, TransferEvent> kTransitions[] = {
    {kReadingBlocks, kBlocksDone, kReadingEntry},
    {kReadingBlocks, kBlocksUnvalidated, kValidated},  // L28
    {kReadingBlocks, kError, kDraining},
    {kReadingBlocks, kTimeout, kDraining},  // L48
    {kReadingEntry, kEntryMatches, kValidated},
    {kReadingEntry, kEntryDiffers, kDraining},
    {kReadingEntry, kError, kDraining},
    {kReadingEntry, kTimeout, kDraining},  // L48
    {kDraining, kAllFinal, kQuiet},
};

bool is_reading(TransferPhase phase) { return phase == kReadingBlocks || phase == kReadingEntry; }
bool is_final(TransferPhase phase) { return phase == kValidated || phase == kQuiet; }

}  // namespace

std::string_view transfer_phase_name(TransferPhase phase) {
  switch (phase) {
    case kReadingBlocks:
      return "reading_blocks";
    case kReadingEntry:
      return "reading_entry";
    case kValidated:
      return "validated";
    case kDraining:
      return "draining";
    case kQuiet:
      return "quiet";
  }
  KVL_UNREACHABLE("every transfer phase has a name");
}

std::string_view transfer_event_name(TransferEvent event) {
  switch (event) {
    case kBlocksDone:
      return "blocks_done";
    case kBlocksUnvalidated:
      return "blocks_unvalidated";
    case kEntryMatches:
      return "entry_matches";
    case kEntryDiffers:
      return "entry_differs";
    case kError:
      return "error";
    case kTimeout:
      return "timeout";
    case kAllFinal:
      return "all_final";
  }
  KVL_UNREACHABLE("every transfer event has a name");
}

std::span<const Transition<TransferPhase, TransferEvent>> transfer_transitions() {
  return kTransitions;
}

std::string_view load_failure_name(LoadFailure failure) {
  switch (failure) {
    case LoadFailure::kHandshakeFailed:
      return "handshake_failed";
    case LoadFailure::kInvalidReference:
      return "invalid_reference";
    case LoadFailure::kStaleReference:
      return "stale_reference";
    case LoadFailure::kLeaseLost:
      return "lease_lost";
    case LoadFailure::kTransferFailed:
      return "transfer_failed";
    case LoadFailure::kTimedOut:
      return "timed_out";
  }
  KVL_UNREACHABLE("every load failure has a name");
}

TransferTracker::TransferTracker(const Options& options) : options_(options) {
  KVL_CHECK(options.load_timeout > Duration::zero(), "kv_load_timeout is positive");
}

void TransferTracker::begin(const RequestId& request, Instant now) {
  const bool is_new =
      transfers_
          .try_emplace(request, Transfer{.deadline = saturating_add(now, options_.load_timeout)})
          .second;
  KVL_CHECK(is_new, "a request has one read at a time");
}

void TransferTracker::on_first_post(const RequestId& request, Instant now) {
  const auto it = transfers_.find(request);
  KVL_CHECK(it != transfers_.end() && it->second.phase == TransferPhase::kReadingBlocks,
            "what is posted first are the blocks of a known read");
  it->second.deadline = saturating_add(now, options_.load_timeout);  // L48
}

std::optional<TransferPhase> TransferTracker::on_event(const RequestId& request,
                                                       TransferEvent event) {
  const auto it = transfers_.find(request);
  KVL_CHECK(it != transfers_.end(), "events are about known reads");
  const std::optional<TransferPhase> next =
      next_state(transfer_transitions(), it->second.phase, event);
  if (next) it->second.phase = *next;
  return next;
}

std::vector<RequestId> TransferTracker::due(Instant now) const {
  std::vector<RequestId> requests;
  for (const auto& [request, transfer] : transfers_) {
    if (is_reading(transfer.phase) && now >= transfer.deadline) requests.push_back(request);
  }
  return requests;
}

void TransferTracker::forget(const RequestId& request) {
  const auto it = transfers_.find(request);
  KVL_CHECK(it != transfers_.end(), "only a known read can be forgotten");
  KVL_CHECK(is_final(it->second.phase), "a read is kept until it is validated or quiet (L26)");
  transfers_.erase(it);
}

TransferPhase TransferTracker::phase(const RequestId& request) const {
  const auto it = transfers_.find(request);
  KVL_CHECK(it != transfers_.end(), "only a known read has a phase");
  return it->second.phase;
}

std::size_t TransferTracker::draining() const {
  std::size_t count = 0;
  for (const auto& [request, transfer] : transfers_) count += transfer.phase == kDraining;
  return count;
}

Instant TransferTracker::next_deadline() const {
  Instant deadline = kNever;
  for (const auto& [request, transfer] : transfers_) {
    if (is_reading(transfer.phase)) deadline = earlier(deadline, transfer.deadline);
  }
  return deadline;
}

}  // namespace kvlease
