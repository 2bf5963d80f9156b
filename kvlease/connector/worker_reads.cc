// The validated reads of one rank (D): blocks, fence, lease entry, verdict; a failed read's
// destination and landing cell stay taken until the transport is quiet (L24, L26, L48).
#include <algorithm>
#include <atomic>
#include <utility>

#include "kvlease/base/check.h"
#include "kvlease/connector/worker_connector.h"

namespace kvlease {

std::uint32_t WorkerConnector::take_cell() {
  KVL_CHECK(!free_cells_.empty(), "the caller has looked for a free landing cell");
  const std::uint32_t cell = free_cells_.back();
  free_cells_.pop_back();
  std::atomic_ref(caches_.landing[cell].word).store(0, std::memory_order_relaxed);
  std::atomic_ref(caches_.landing[cell].renewals).store(0, std::memory_order_relaxed);
  return cell;
}

LeaseEntry WorkerConnector::landed(std::uint32_t cell) const {
  LeaseEntry& memory = caches_.landing[cell];
  return {.word = std::atomic_ref(memory.word).load(std::memory_order_acquire),
          .renewals = std::atomic_ref(memory.renewals).load(std::memory_order_acquire)};
}

void WorkerConnector::begin_read(const RecvRequest& order, Instant now) {
  KVL_CHECK(order.local_block_ids.size() == order.remote_block_ids.size(),
            "a read pairs its blocks by position");
  tracker_.begin(order.request, now);
  reads_.emplace(order.request, Read{.order = order, .cell = {}, .transfer = {}, .begun_at = now});
}

void WorkerConnector::start_waiting_reads(Instant now) {
  for (auto& [request, read] : reads_) {
    if (read.cell || tracker_.phase(request) != TransferPhase::kReadingBlocks) continue;
    const auto peer = peers_.find(read.order.peer);
    const bool loading = std::ranges::any_of(
        peers_waiting_, [&](const PeerToAdd& order) { return order.peer == read.order.peer; });
    const bool gone = peer == peers_.end() || peer->second.removing;
    if (gone && !loading) {
      fail_read(read, TransferEvent::kError, LoadFailure::kTransferFailed);
    } else if (!gone && !free_cells_.empty()) {
      read.cell = take_cell();
      post_blocks(read, peer->second, now);
    }
  }
}

void WorkerConnector::post_blocks(Read& read, Peer& peer, Instant now) {
  const RecvRequest& order = read.order;
  tracker_.on_first_post(order.request, now);
  std::vector<std::uint32_t> local;
  std::vector<std::uint32_t> remote;
  const std::size_t regions = caches_.regions.size();
  local.reserve(regions * order.local_block_ids.size());
  remote.reserve(regions * order.local_block_ids.size());
  for (std::uint32_t region = 0; region < regions; ++region) {
    for (std::size_t i = 0; i < order.local_block_ids.size(); ++i) {
      local.push_back(region * caches_.num_blocks + order.local_block_ids[i].value());
      remote.push_back(region * peer.num_blocks + order.remote_block_ids[i].value());
    }
  }
  const auto posted = transport_->post_read(local_blocks_list_, peer.blocks_list,
                                            {.local = local, .remote = remote});
  if (!posted) {
    suspect(order.peer, peer, posted.error().message);
    fail_read(read, TransferEvent::kError, LoadFailure::kTransferFailed);
    return;
  }
  read.transfer = *posted;
  read.begun_at = now;
  ++peer.transfers;
  output_.counters.add(Counter::kReadsPosted);
  emit({.kind = EventKind::kReadPosted,
        .request = order.request,
        .lease = order.lease,
        .peer = peer.engine.str(),
        .count = order.local_block_ids.size()});
}

void WorkerConnector::post_entry(Read& read, Peer& peer) {
  const std::uint32_t cell = *read.cell;
  const std::uint32_t slot = read.order.slot.value();
  const auto posted =
      transport_->post_read(landing_list_, peer.entries_list,
                            {.local = std::span(&cell, 1), .remote = std::span(&slot, 1)});
  if (!posted) {
    suspect(read.order.peer, peer, posted.error().message);
    fail_read(read, TransferEvent::kError, LoadFailure::kTransferFailed);
    return;
  }
  read.transfer = *posted;
  ++peer.transfers;
}

// Moves one read on; true when it is over and can be taken out.
bool WorkerConnector::advance_read(Read& read, Instant now) {
  const RequestId& request = read.order.request;
  while (read.transfer) {
    const TransferState state = transport_->poll(*read.transfer);
    if (state == TransferState::kInProgress) return false;
    transport_->release(*read.transfer);
    read.transfer.reset();
    Peer& peer = peers_.at(read.order.peer);  // kept while it has transfers
    --peer.transfers;
    const TransferPhase phase = tracker_.phase(request);
    if (phase == TransferPhase::kDraining) break;
    if (state == TransferState::kError) {
      suspect(read.order.peer, peer, "a read from " + peer.agent.str() + " failed");  // L21
      fail_read(read, TransferEvent::kError, LoadFailure::kTransferFailed);
    } else if (phase == TransferPhase::kReadingBlocks) {
      on_blocks_done(read, peer, now);
    } else {
      on_entry_done(read, now);
    }
  }
  if (!read.transfer && tracker_.phase(request) == TransferPhase::kDraining) {
    tracker_.on_event(request, TransferEvent::kAllFinal);  // L26
    output_.quiet_recving.push_back(request);
    emit({.kind = EventKind::kQuiet,
          .request = request,
          .count = read.order.local_block_ids.size()});
  }
  const TransferPhase phase = tracker_.phase(request);
  if (phase != TransferPhase::kValidated && phase != TransferPhase::kQuiet) return false;
  if (read.cell) put_back_cell(*read.cell);
  tracker_.forget(request);
  return true;
}

void WorkerConnector::on_blocks_done(Read& read, Peer& peer, Instant now) {
  if (peer.entries_count == 0 || !options_.validate_reads) {  // L28
    tracker_.on_event(read.order.request, TransferEvent::kBlocksUnvalidated);
    output_.counters.add(Counter::kUnvalidatedReads);
    validated(read, now);
    return;
  }
  tracker_.on_event(read.order.request, TransferEvent::kBlocksDone);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // L24: the entry is read after every byte
  post_entry(read, peer);
}

void WorkerConnector::on_entry_done(Read& read, Instant now) {
  if (landed(*read.cell).word != read.order.word) {  // L24: the lease had ended: drop the bytes
    output_.counters.add(Counter::kReadsRejected);
    emit({.kind = EventKind::kReadRejected,
          .request = read.order.request,
          .lease = read.order.lease,
          .detail = std::string(load_failure_name(LoadFailure::kLeaseLost))});
    fail_read(read, TransferEvent::kEntryDiffers, LoadFailure::kLeaseLost);
    return;
  }
  tracker_.on_event(read.order.request, TransferEvent::kEntryMatches);
  output_.counters.add(Counter::kReadsValidated);
  validated(read, now);
}

void WorkerConnector::validated(Read& read, Instant now) {
  std::uint64_t block_bytes = 0;
  for (const KvRegion& region : caches_.regions) block_bytes += region.block_len_bytes;
  output_.finished_recving.push_back(read.order.request);
  emit({.kind = EventKind::kReadValidated,
        .request = read.order.request,
        .lease = read.order.lease,
        .count = block_bytes * read.order.local_block_ids.size(),
        .length = now - read.begun_at});
}

// Reports the failure at once; the destination is quiet only after kAllFinal (L26, F10).
void WorkerConnector::fail_read(Read& read, TransferEvent event, LoadFailure failure) {
  tracker_.on_event(read.order.request, event);
  if (failure == LoadFailure::kTransferFailed) output_.counters.add(Counter::kReadsFailed);
  if (failure == LoadFailure::kTimedOut) output_.counters.add(Counter::kReadsTimedOut);
  output_.failed_recving.push_back({read.order.request, failure});
}

void WorkerConnector::fail_due_reads(Instant now) {
  for (const RequestId& request : tracker_.due(now)) {  // L48
    fail_read(reads_.at(request), TransferEvent::kTimeout, LoadFailure::kTimedOut);
  }
}

}  // namespace kvlease
