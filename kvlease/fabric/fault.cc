// The fault decorator: triggers that say when to strike, and the delayed posts and notifications.
#include "kvlease/fabric/fault.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "kvlease/base/check.h"
#include "kvlease/base/prng.h"
#include "kvlease/transport/paired_bytes.h"

namespace kvlease::fabric {
namespace {

// Counts the calls of one fault; its own random sequence keeps it independent of the other faults.
class Trigger {
 public:
  Trigger(const Strikes& strikes, std::uint64_t seed) : strikes_(strikes), prng_(seed) {}

  bool strikes() {
    const std::uint64_t call = calls_++;
    const bool surely = call >= strikes_.skip && call - strikes_.skip < strikes_.count;
    const bool by_chance =
        strikes_.numerator > 0 && prng_.chance(strikes_.numerator, strikes_.denominator);
    return surely || by_chance;
  }

 private:
  Strikes strikes_;
  Prng prng_;
  std::uint64_t calls_ = 0;
};

class FaultyTransport final : public Transport {
 public:
  FaultyTransport(std::unique_ptr<Transport> inner, FaultPlan plan)
      : inner_(std::move(inner)), plan_(std::move(plan)) {}

  const AgentName& name() const override { return inner_->name(); }
  Result<void> register_memory(const MemoryRegion& region) override {
    return inner_->register_memory(region);
  }
  Result<Bytes> local_metadata() override { return inner_->local_metadata(); }
  Result<AgentName> add_peer(std::span<const std::byte> metadata) override;
  void remove_peer(const AgentName& peer) override;
  Result<DescListHandle> prepare_local(std::span<const MemoryRegion> descriptors) override;
  Result<DescListHandle> prepare_remote(const AgentName& peer,
                                        std::span<const MemoryRegion> descriptors) override;
  void release_list(DescListHandle list) override;
  Result<TransferHandle> post_read(DescListHandle local, DescListHandle remote,
                                   ReadIndices indices) override;
  TransferState poll(TransferHandle transfer) override;
  Duration post_time(TransferHandle transfer) const override;
  void release(TransferHandle transfer) override;
  Result<void> send_notif(const AgentName& peer, std::span<const std::byte> payload) override;
  std::vector<Notification> take_notifs() override;
  std::size_t notification_bytes_max() const override { return inner_->notification_bytes_max(); }
  Instant next_poll(bool reads_outstanding, Instant now) override;

 private:
  struct DescList {
    std::optional<AgentName> peer;  // none: this agent's own memory
    std::vector<MemoryRegion> descriptors;
    std::size_t delayed_posts = 0;  // that still need it
    bool released = false;          // by the caller
  };
  using Lists = std::map<DescListHandle, DescList>;
  struct Read {
    AgentName peer;
    std::optional<TransferHandle> inner;  // none: delayed, or failed before it was started
    TransferState state = TransferState::kInProgress;
    bool fails = false;
    bool hangs = false;
  };
  struct DelayedPost {
    TransferHandle transfer;
    DescListHandle local;
    DescListHandle remote;
    std::vector<std::uint32_t> local_indices;
    std::vector<std::uint32_t> remote_indices;
    std::optional<Instant> due;  // none until the turn that posted it asks next_poll()
  };
  struct DelayedNotif {
    Bytes payload;
    Duration delay;
    std::optional<Instant> due;  // as above
  };

  Trigger trigger(const Strikes& strikes) { return {strikes, mix64(plan_.seed) + ++triggers_}; }
  bool strikes(Trigger& trigger) { return trigger.strikes() && now_ < plan_.ends_at; }
  bool is_dead(const AgentName& peer) const;
  Result<DescListHandle> note_list(Result<DescListHandle> handle, std::optional<AgentName> peer,
                                   std::span<const MemoryRegion> descriptors);
  Lists::iterator find_list(DescListHandle handle);
  void forget_if_unused(Lists::iterator list);
  Read& find_read(TransferHandle transfer);
  void start(const DelayedPost& post);
  void end_delayed(const DelayedPost& post);
  Result<void> send_or_delay(const AgentName& peer, std::span<const std::byte> payload,
                             Duration delay);
  void start_due_posts(Instant now);
  void send_due_notifs(Instant now);

  std::unique_ptr<Transport> inner_;
  const FaultPlan plan_;
  std::uint64_t triggers_ = 0;
  Trigger refuse_notif_ = trigger(plan_.refuse_notif);
  Trigger drop_notif_ = trigger(plan_.drop_notif);
  Trigger duplicate_notif_ = trigger(plan_.duplicate_notif);
  Trigger delay_notif_ = trigger(plan_.delay_notif);
  Trigger reorder_notif_ = trigger(plan_.reorder_notif);
  Trigger refuse_post_ = trigger(plan_.refuse_post);
  Trigger delay_post_ = trigger(plan_.delay_post);
  Trigger fail_read_ = trigger(plan_.fail_read);
  Trigger hang_read_ = trigger(plan_.hang_read);

  Instant now_ = kTimeZero;  // of the last next_poll()
  std::set<AgentName> peers_;
  Lists lists_;
  std::map<TransferHandle, Read> reads_;
  std::uint64_t next_transfer_ = 1;
  std::deque<DelayedPost> delayed_posts_;                         // in order of becoming due
  std::map<AgentName, std::deque<DelayedNotif>> delayed_notifs_;  // per peer in order; none empty
  bool read_failed_here_ =
      false;  // since the last next_poll(), and the inner transport cannot know
};

Result<AgentName> FaultyTransport::add_peer(std::span<const std::byte> metadata) {
  Result<AgentName> peer = inner_->add_peer(metadata);
  if (peer) peers_.insert(*peer);
  return peer;
}

void FaultyTransport::remove_peer(const AgentName& peer) {
  // What has not been started never will be.
  for (const DelayedPost& post : delayed_posts_) {
    Read& read = find_read(post.transfer);
    if (read.peer != peer) continue;
    read.state = TransferState::kError;
    read_failed_here_ = true;
    end_delayed(post);
  }
  std::erase_if(delayed_posts_, [&](const DelayedPost& post) {
    return find_read(post.transfer).state == TransferState::kError;
  });
  delayed_notifs_.erase(peer);
  peers_.erase(peer);
  inner_->remove_peer(peer);
}

Result<DescListHandle> FaultyTransport::prepare_local(std::span<const MemoryRegion> descriptors) {
  return note_list(inner_->prepare_local(descriptors), std::nullopt, descriptors);
}

Result<DescListHandle> FaultyTransport::prepare_remote(const AgentName& peer,
                                                       std::span<const MemoryRegion> descriptors) {
  return note_list(inner_->prepare_remote(peer, descriptors), peer, descriptors);
}

Result<DescListHandle> FaultyTransport::note_list(Result<DescListHandle> handle,
                                                  std::optional<AgentName> peer,
                                                  std::span<const MemoryRegion> descriptors) {
  if (handle) {
    lists_.emplace(*handle, DescList{.peer = std::move(peer),
                                     .descriptors = {descriptors.begin(), descriptors.end()}});
  }
  return handle;
}

FaultyTransport::Lists::iterator FaultyTransport::find_list(DescListHandle handle) {
  const auto it = lists_.find(handle);
  KVL_CHECK(it != lists_.end() && !it->second.released,
            "a prepared list is used by its agent and before its release");
  return it;
}

void FaultyTransport::release_list(DescListHandle list) {
  const auto it = find_list(list);
  it->second.released = true;
  forget_if_unused(it);
}

void FaultyTransport::forget_if_unused(Lists::iterator list) {
  if (!list->second.released || list->second.delayed_posts > 0) return;
  inner_->release_list(list->first);
  lists_.erase(list);
}

bool FaultyTransport::is_dead(const AgentName& peer) const {
  return std::ranges::any_of(plan_.peer_deaths, [&](const PeerDeath& death) {
    return death.peer == peer && death.at <= now_;
  });
}

Result<TransferHandle> FaultyTransport::post_read(DescListHandle local, DescListHandle remote,
                                                  ReadIndices indices) {
  DescList& into = find_list(local)->second;
  DescList& out_of = find_list(remote)->second;
  KVL_CHECK(!into.peer && out_of.peer, "a read goes from a remote list into a local one");
  KVL_CHECK(peers_.contains(*out_of.peer),
            "a prepared list is not used after its peer was removed");
  if (auto bytes = paired_bytes(into.descriptors, out_of.descriptors, indices); !bytes) {
    return std::unexpected(bytes.error());
  }
  const bool refused = strikes(refuse_post_);
  const bool delayed = strikes(delay_post_);
  Read read{.peer = *out_of.peer, .fails = strikes(fail_read_), .hangs = strikes(hang_read_)};
  if (refused || is_dead(read.peer)) {
    return error(ErrorCode::kSuspectPeer, "fault: a read from " + read.peer.str() + " is refused");
  }
  if (!delayed) {
    const Result<TransferHandle> started = inner_->post_read(local, remote, indices);
    if (!started) return started;
    read.inner = *started;
  }
  const TransferHandle transfer(next_transfer_++);
  reads_.emplace(transfer, std::move(read));
  if (delayed) {
    ++into.delayed_posts;
    ++out_of.delayed_posts;
    delayed_posts_.push_back({.transfer = transfer,
                              .local = local,
                              .remote = remote,
                              .local_indices = {indices.local.begin(), indices.local.end()},
                              .remote_indices = {indices.remote.begin(), indices.remote.end()},
                              .due = std::nullopt});
  }
  return transfer;
}

FaultyTransport::Read& FaultyTransport::find_read(TransferHandle transfer) {
  const auto it = reads_.find(transfer);
  KVL_CHECK(it != reads_.end(), "a read is used by its agent and before its release");
  return it->second;
}

TransferState FaultyTransport::poll(TransferHandle transfer) {
  Read& read = find_read(transfer);
  if (read.state != TransferState::kInProgress || !read.inner) return read.state;
  const TransferState state = inner_->poll(*read.inner);
  if (state == TransferState::kInProgress || read.hangs) return read.state;
  read.state = read.fails || is_dead(read.peer) ? TransferState::kError : state;
  return read.state;
}

Duration FaultyTransport::post_time(TransferHandle transfer) const {
  const auto read = reads_.find(transfer);
  KVL_CHECK(read != reads_.end(), "a read of this agent that was not released");
  return read->second.inner ? inner_->post_time(*read->second.inner) : Duration::zero();
}

void FaultyTransport::release(TransferHandle transfer) {
  const Read& read = find_read(transfer);
  KVL_CHECK(read.state != TransferState::kInProgress,
            "a read is released only after poll() gave its final state (L26)");
  if (read.inner) inner_->release(*read.inner);
  reads_.erase(transfer);
}

Result<void> FaultyTransport::send_notif(const AgentName& peer,
                                         std::span<const std::byte> payload) {
  // The inner transport answers what breaks the contract.
  if (!peers_.contains(peer) || payload.size() > notification_bytes_max()) {
    return inner_->send_notif(peer, payload);
  }
  const bool refused = strikes(refuse_notif_);
  const bool dropped = strikes(drop_notif_);
  const bool twice = strikes(duplicate_notif_);
  const Duration delay = strikes(delay_notif_) ? plan_.notif_delay : Duration::zero();
  const bool overtakes = strikes(reorder_notif_);
  if (refused || is_dead(peer)) {
    return error(ErrorCode::kSuspectPeer, "fault: a notification to " + peer.str() + " is refused");
  }
  const std::string& prefix = plan_.drop_notifs_with_prefix;
  if (dropped || (!prefix.empty() && as_text(payload).starts_with(prefix))) return {};
  for (int copy = 0; copy < (twice ? 2 : 1); ++copy) {
    const auto sent =
        overtakes ? inner_->send_notif(peer, payload) : send_or_delay(peer, payload, delay);
    if (!sent) return sent;
  }
  return {};
}

Result<void> FaultyTransport::send_or_delay(const AgentName& peer,
                                            std::span<const std::byte> payload, Duration delay) {
  if (delay == Duration::zero() && !delayed_notifs_.contains(peer)) {
    return inner_->send_notif(peer, payload);
  }
  delayed_notifs_[peer].push_back(
      {.payload = {payload.begin(), payload.end()}, .delay = delay, .due = std::nullopt});
  return {};
}

std::vector<Notification> FaultyTransport::take_notifs() {
  std::vector<Notification> notifs = inner_->take_notifs();
  std::erase_if(notifs, [&](const Notification& notif) { return is_dead(notif.sender); });
  return notifs;
}

Instant FaultyTransport::next_poll(bool reads_outstanding, Instant now) {
  now_ = now;
  start_due_posts(now);
  send_due_notifs(now);
  if (std::exchange(read_failed_here_, false)) return now;
  Instant next = inner_->next_poll(reads_outstanding, now);
  if (!delayed_posts_.empty()) next = earlier(next, *delayed_posts_.front().due);
  for (const auto& [peer, queue] : delayed_notifs_) next = earlier(next, *queue.front().due);
  return next;
}

void FaultyTransport::start_due_posts(Instant now) {
  for (DelayedPost& post : delayed_posts_) {
    if (!post.due) post.due = saturating_add(now, plan_.post_delay);
  }
  while (!delayed_posts_.empty() && *delayed_posts_.front().due <= now) {
    start(delayed_posts_.front());
    end_delayed(delayed_posts_.front());
    delayed_posts_.pop_front();
  }
}

void FaultyTransport::start(const DelayedPost& post) {
  Read& read = find_read(post.transfer);
  if (!is_dead(read.peer)) {
    const auto started = inner_->post_read(
        post.local, post.remote, {.local = post.local_indices, .remote = post.remote_indices});
    if (started) {
      read.inner = *started;
      return;
    }
  }
  read.state = TransferState::kError;
  read_failed_here_ = true;
}

void FaultyTransport::end_delayed(const DelayedPost& post) {
  for (const DescListHandle handle : {post.local, post.remote}) {
    const auto list = lists_.find(handle);
    --list->second.delayed_posts;
    forget_if_unused(list);
  }
}

void FaultyTransport::send_due_notifs(Instant now) {
  for (auto& [peer, queue] : delayed_notifs_) {
    for (DelayedNotif& notif : queue) {
      if (!notif.due) notif.due = saturating_add(now, notif.delay);
    }
    while (!queue.empty() && *queue.front().due <= now) {
      // A notification that is refused now is one that was lost on its way.
      if (!is_dead(peer)) {
        [[maybe_unused]] const auto lost = inner_->send_notif(peer, queue.front().payload);
      }
      queue.pop_front();
    }
  }
  std::erase_if(delayed_notifs_, [](const auto& entry) { return entry.second.empty(); });
}

}  // namespace

std::unique_ptr<Transport> fault(std::unique_ptr<Transport> inner, FaultPlan plan) {
  return std::make_unique<FaultyTransport>(std::move(inner), std::move(plan));
}

}  // namespace kvlease::fabric
