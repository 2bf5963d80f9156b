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
  tracker_.begin(order.request, now);
  reads_.emplace(order.request, Read{.order = order, .parts = {}, .begun_at = now});
}

void WorkerConnector::start_waiting_reads(Instant now) {
  for (auto& [request, read] : reads_) {
    if (!read.parts.empty() || tracker_.phase(request) != TransferPhase::kReadingBlocks) continue;
    const auto ranks = ranks_of(read.order.peer);
    const bool loading = std::ranges::any_of(
        peers_waiting_, [&](const PeerToAdd& order) { return order.peer == read.order.peer; });
    const bool gone = ranks.empty() || std::ranges::any_of(ranks, [](const auto& entry) {
                        return entry.second.removing;
                      });
    const auto parts = static_cast<std::size_t>(std::ranges::count_if(
        ranks, [](const auto& entry) { return entry.second.plan.has_value(); }));
    if (gone && !loading) {
      fail_read(read, TransferEvent::kError, LoadFailure::kTransferFailed);
    } else if (!gone && free_cells_.size() >= parts) {
      for (const auto& [key, peer] : ranks) {
        if (peer.plan) read.parts.push_back({.remote = key.second, .cell = take_cell()});
      }
      post_blocks(read, now);
    }
  }
}

void WorkerConnector::post_blocks(Read& read, Instant now) {
  tracker_.on_first_post(read.order.request, now);
  read.begun_at = now;
  for (ReadPart& part : read.parts) {
    if (!post_part(read, part)) return;  // what was posted before it drains
  }
  output_.counters.add(Counter::kReadsPosted);
  emit({.kind = EventKind::kReadPosted,
        .request = read.order.request,
        .lease = read.order.lease,
        .peer = ranks_of(read.order.peer).front().second.engine.str(),
        .count = read.order.local_block_ids.size()});
}

// The blocks' bytes from one rank, run by run (L37).
bool WorkerConnector::post_part(Read& read, ReadPart& part) {
  const RecvRequest& order = read.order;
  Peer& peer = peers_.at({order.peer, part.remote});
  const BlockPlan& plan = *peer.plan;
  const auto runs = static_cast<std::uint32_t>(plan.remote.offsets.size());
  const std::uint32_t local_runs = runs * plan.sub_blocks;
  const auto regions = static_cast<std::uint32_t>(caches_.regions.size());
  KVL_CHECK(order.remote_block_ids.size() <= order.local_block_ids.size() * plan.sub_blocks,
            "every remote block has its place in a local one");
  std::vector<std::uint32_t> local;
  std::vector<std::uint32_t> remote;
  local.reserve(regions * order.remote_block_ids.size() * runs);
  remote.reserve(local.capacity());
  for (std::uint32_t region = 0; region < regions; ++region) {
    for (std::uint32_t i = 0; i < order.remote_block_ids.size(); ++i) {
      const std::uint32_t here =
          region * caches_.num_blocks + order.local_block_ids[i / plan.sub_blocks].value();
      const std::uint32_t there = region * peer.num_blocks + order.remote_block_ids[i].value();
      for (std::uint32_t run = 0; run < runs; ++run) {
        local.push_back(here * local_runs + i % plan.sub_blocks * runs + run);
        remote.push_back(there * runs + run);
      }
    }
  }
  const auto posted =
      transport_->post_read(peer.local_list, *peer.blocks_list, {.local = local, .remote = remote});
  if (!posted) {
    suspect(order.peer, posted.error().message);
    fail_read(read, TransferEvent::kError, LoadFailure::kTransferFailed);
    return false;
  }
  part.transfer = *posted;
  ++peer.transfers;
  read.descriptors += local.size();
  for (const KvRegion& region : caches_.regions) {
    read.bytes += region.block_len_bytes * runs * plan.local.length /
                  units_per_block(options_.shape) * order.remote_block_ids.size();
  }
  return true;
}

// From every rank that bytes were read from (L24).
void WorkerConnector::post_entries(Read& read) {
  const std::uint32_t slot = read.order.slot.value();
  for (ReadPart& part : read.parts) {
    const auto it = peers_.find({read.order.peer, part.remote});
    if (it == peers_.end()) {  // dropped when its part was in and another one's was not
      return fail_read(read, TransferEvent::kError, LoadFailure::kTransferFailed);
    }
    Peer& peer = it->second;
    const auto posted =
        transport_->post_read(landing_list_, *peer.entries_list,
                              {.local = std::span(&part.cell, 1), .remote = std::span(&slot, 1)});
    if (!posted) {
      suspect(read.order.peer, posted.error().message);
      return fail_read(read, TransferEvent::kError, LoadFailure::kTransferFailed);
    }
    part.transfer = *posted;
    ++peer.transfers;
  }
}

void WorkerConnector::poll_parts(Read& read) {
  const RequestId& request = read.order.request;
  for (ReadPart& part : read.parts) {
    if (!part.transfer) continue;
    const TransferState state = transport_->poll(*part.transfer);
    if (state == TransferState::kInProgress) continue;
    if (tracker_.phase(request) == TransferPhase::kReadingBlocks) {
      read.posting += transport_->post_time(*part.transfer);
    }
    transport_->release(*part.transfer);
    part.transfer.reset();
    Peer& peer = peers_.at({read.order.peer, part.remote});  // kept while it has transfers
    --peer.transfers;
    if (state != TransferState::kError || tracker_.phase(request) == TransferPhase::kDraining) {
      continue;
    }
    suspect(read.order.peer, "a read from " + peer.agent.str() + " failed");  // L21
    fail_read(read, TransferEvent::kError, LoadFailure::kTransferFailed);
  }
}

// Moves one read on; true when it is over and can be taken out.
bool WorkerConnector::advance_read(Read& read, Instant now) {
  const RequestId& request = read.order.request;
  poll_parts(read);
  const bool posted = !read.parts.empty();
  if (posted && !read.in_flight() && tracker_.phase(request) == TransferPhase::kReadingBlocks) {
    on_blocks_done(read, now);
    poll_parts(read);
  }
  if (!read.in_flight() && tracker_.phase(request) == TransferPhase::kReadingEntry) {
    on_entries_done(read, now);
  }
  if (!read.in_flight() && tracker_.phase(request) == TransferPhase::kDraining) {
    tracker_.on_event(request, TransferEvent::kAllFinal);  // L26
    output_.quiet_recving.push_back(request);
    emit({.kind = EventKind::kQuiet,
          .request = request,
          .count = read.order.local_block_ids.size()});
  }
  const TransferPhase phase = tracker_.phase(request);
  if (phase != TransferPhase::kValidated && phase != TransferPhase::kQuiet) return false;
  for (const ReadPart& part : read.parts) put_back_cell(part.cell);
  tracker_.forget(request);
  return true;
}

void WorkerConnector::on_blocks_done(Read& read, Instant now) {
  const auto ranks = ranks_of(read.order.peer);
  const bool foreign =
      std::ranges::any_of(ranks, [](const auto& entry) { return entry.second.entries_count == 0; });
  if (foreign || !options_.validate_reads) {  // L28
    tracker_.on_event(read.order.request, TransferEvent::kBlocksUnvalidated);
    output_.counters.add(Counter::kUnvalidatedReads);
    validated(read, now);
    return;
  }
  tracker_.on_event(read.order.request, TransferEvent::kBlocksDone);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // L24: entries are read after every byte
  post_entries(read);
}

void WorkerConnector::on_entries_done(Read& read, Instant now) {
  const bool live = std::ranges::all_of(
      read.parts, [&](const ReadPart& part) { return landed(part.cell).word == read.order.word; });
  if (!live) {  // L24: the lease had ended, on one rank at least: drop the bytes
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
  output_.finished_recving.push_back(read.order.request);
  emit({.kind = EventKind::kReadValidated,
        .request = read.order.request,
        .lease = read.order.lease,
        .count = read.bytes,
        .length = now - read.begun_at,
        .posting = read.posting,
        .descriptors = read.descriptors});
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
