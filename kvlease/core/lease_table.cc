// Keeps a rank's leases as records in a slab that never moves, an index by id, and lower bounds of
// their deadlines in place of a timer queue: a renewal writes its own record and nothing else, a
// sweep with nothing due is one comparison, and expiry is exact for any mix of durations (L3, L4).
#include "kvlease/core/lease_table.h"

#include <algorithm>
#include <array>
#include <boost/unordered/unordered_flat_map.hpp>
#include <deque>
#include <set>
#include <string>
#include <utility>
#include <variant>

#include "kvlease/base/check.h"
#include "kvlease/core/agent_name.h"

namespace kvlease {
namespace {

constexpr std::uint32_t kRecordsPerBlock = 32;
constexpr std::size_t kBlocksPerGroup = 64;

// A bound for each block of records, for each group of blocks and for all, never later than the
// earliest deadline below it. A deadline that moves later or goes away leaves the bounds as they
// are: too early, which costs a rescan and never a late expiry.
class DeadlineBounds {
 public:
  void add_block() {
    if (blocks_.size() % kBlocksPerGroup == 0) groups_.push_back(kNever);
    blocks_.push_back(kNever);
  }

  void lower(std::size_t block, Instant deadline) {
    blocks_[block] = earlier(blocks_[block], deadline);
    groups_[block / kBlocksPerGroup] = earlier(groups_[block / kBlocksPerGroup], deadline);
    earliest_ = earlier(earliest_, deadline);
  }

  Instant earliest() const { return earliest_; }

  // Calls rescan(block), which returns the block's earliest deadline, for every block whose bound
  // has come, and raises the bounds.
  template <typename Rescan>
  void advance(Instant now, Rescan rescan) {
    if (now < earliest_) return;
    earliest_ = kNever;
    for (std::size_t group = 0; group < groups_.size(); ++group) {
      if (groups_[group] <= now) {
        groups_[group] = kNever;
        const std::size_t end = std::min((group + 1) * kBlocksPerGroup, blocks_.size());
        for (std::size_t block = group * kBlocksPerGroup; block < end; ++block) {
          if (blocks_[block] <= now) blocks_[block] = rescan(block);
          groups_[group] = earlier(groups_[group], blocks_[block]);
        }
      }
      earliest_ = earlier(earliest_, groups_[group]);
    }
  }

 private:
  std::vector<Instant> blocks_;
  std::vector<Instant> groups_;
  Instant earliest_ = kNever;
};

// Who reported: the group is one start of one decoder, the reader is one of its ranks. All names of
// another form share the group without an engine id, and each of them is a reader (L7).
struct ReaderName {
  std::string engine_id;
  Incarnation incarnation;
  std::string reader;
};

ReaderName reader_name(const AgentName& agent) {
  const std::optional<AgentNameParts> parts = parse_agent_name(agent.str());
  if (!parts) return {.engine_id = {}, .incarnation = {}, .reader = agent.str()};
  return {.engine_id = std::string(parts->engine_id),
          .incarnation = parts->incarnation,
          .reader = std::to_string(parts->rank.value())};
}

struct ReaderGroup {
  std::string engine_id;
  Incarnation incarnation;
  std::uint32_t readers_expected = 0;  // n of the group's first report
  std::set<std::string> readers;
};

struct EarlyCompletion {
  AgentName sender;
  std::uint32_t readers_expected = 0;
  Instant received;
};

struct InBatch {
  std::vector<EarlyCompletion> early;  // oldest first
};

struct Live {
  SlotId slot;
  Duration extension{};
  Instant expires_at_max;  // of hold_max
  Instant granted_at;
  std::vector<ReaderGroup> groups;
};

struct Record {
  // Live: expires_at. In batch: when the oldest early completion is dropped. Else never.
  Instant deadline = kNever;
  LeaseId id;
  std::variant<std::monostate, InBatch, Live> state;
};

// A record's place in the slab.
using RecordNumber = std::uint32_t;

}  // namespace

class LeaseTable::Impl {
 public:
  Impl(const LeaseTableLimits& limits, LeaseEntries& entries)
      : limits_(limits), entries_(entries) {}

  void admit(const LeaseId& id) {
    KVL_CHECK(!index_.contains(id.str()), "an admitted id is neither in batch nor live (L45)");
    record(add(id)).state.emplace<InBatch>();
    ++in_batch_;
  }

  void forget(const LeaseId& id) {
    const auto found = index_.find(id.str());
    if (found == index_.end()) return;
    const RecordNumber number = found->second;
    const std::vector<EarlyCompletion> early = take_early(record(number));
    counters_.add(Counter::kCompletionEarlyDropped, early.size());
    index_.erase(found);
    release(number);
  }

  void grant(const LeaseGrant& grant, Instant now) {
    const auto found = index_.find(grant.id.str());
    const bool admitted = found != index_.end();
    const RecordNumber number = admitted ? found->second : add(grant.id);
    Record& lease = record(number);
    std::vector<EarlyCompletion> early;
    if (admitted) early = take_early(lease);

    // L1, L48: the deadline counts from here, on this process's clock (L46).
    const Live& live =
        lease.state.emplace<Live>(Live{.slot = grant.slot,
                                       .extension = grant.extension,
                                       .expires_at_max = saturating_add(now, limits_.hold_max),
                                       .granted_at = now,
                                       .groups = {}});
    lease.deadline = earlier(saturating_add(now, grant.remaining), live.expires_at_max);
    ++live_;
    if (entries_.word(grant.slot) == grant.word) {
      entries_.begin(grant.slot);
      bounds_.lower(number / kRecordsPerBlock, lease.deadline);
    } else {
      counters_.add(Counter::kSlotMismatch);
      end_copy(number, LeaseEnd::kRecalled, /*slot_mismatch=*/true, now);
    }
    for (const EarlyCompletion& completion : early) {  // L8
      if (now >= dropped_at(completion)) {
        counters_.add(Counter::kCompletionEarlyDropped);
      } else {
        complete({.id = grant.id.str(), .readers_expected = completion.readers_expected},
                 completion.sender, now);
      }
    }
  }

  void renew(std::span<const std::string_view> ids, Instant now) {
    counters_.add(Counter::kHeartbeatsReceived);
    for (const std::string_view id : ids) {
      const auto found = index_.find(id);
      Record* lease = found == index_.end() ? nullptr : &record(found->second);
      Live* live = lease == nullptr ? nullptr : std::get_if<Live>(&lease->state);
      if (live == nullptr) {
        counters_.add(Counter::kHeartbeatUnknown);  // L5: revives nothing
        continue;
      }
      const Instant renewed = saturating_add(now, live->extension);  // L14: its own extension
      // L2: never shortened; L48: never beyond its hold_max.
      lease->deadline = std::max(lease->deadline, earlier(renewed, live->expires_at_max));
      entries_.renew(live->slot);  // L22
      counters_.add(Counter::kLeasesRenewed);
    }
  }

  void complete(const Completion& completion, const AgentName& sender, Instant now) {
    KVL_CHECK(completion.readers_expected > 0, "a completion names at least its own reader (L7)");
    const auto found = index_.find(completion.id);
    if (found == index_.end()) {
      counters_.add(Counter::kCompletionUnknown);  // L5
      return;
    }
    Record& lease = record(found->second);
    if (InBatch* in_batch = std::get_if<InBatch>(&lease.state)) {
      keep_early(found->second, *in_batch, completion, sender, now);
    } else if (count_report(std::get<Live>(lease.state), completion, sender)) {
      end_copy(found->second, LeaseEnd::kCompleted, /*slot_mismatch=*/false, now);
    }
  }

  void end(const LeaseId& id, LeaseEnd end, Instant now) {
    const auto found = index_.find(id.str());
    if (found == index_.end()) return;
    KVL_CHECK(std::holds_alternative<Live>(record(found->second).state),
              "a rank gets the grant before the end (L23)");
    end_copy(found->second, end, /*slot_mismatch=*/false, now);
  }

  void sweep(Instant now) {
    bounds_.advance(now, [this, now](std::size_t block) {
      const auto first = static_cast<RecordNumber>(block * kRecordsPerBlock);
      Instant earliest = kNever;
      for (RecordNumber number = first; number < first + kRecordsPerBlock; ++number) {
        ++records_scanned_;
        if (now >= record(number).deadline) on_deadline(number, now);
        earliest = earlier(earliest, record(number).deadline);
      }
      return earliest;
    });
  }

  std::optional<Instant> expires_at(const LeaseId& id) const {
    const auto found = index_.find(id.str());
    if (found == index_.end()) return std::nullopt;
    const Record& lease = record(found->second);
    if (!std::holds_alternative<Live>(lease.state)) return std::nullopt;
    return lease.deadline;
  }

  Instant next_deadline() const { return bounds_.earliest(); }
  std::vector<LeaseEnded> take_ended() { return std::exchange(ended_, {}); }
  std::size_t live() const { return live_; }
  std::size_t in_batch() const { return in_batch_; }
  const Counters& counters() const { return counters_; }
  std::uint64_t records_scanned() const { return records_scanned_; }

 private:
  Record& record(RecordNumber number) {
    return slab_[number / kRecordsPerBlock][number % kRecordsPerBlock];
  }
  const Record& record(RecordNumber number) const {
    return slab_[number / kRecordsPerBlock][number % kRecordsPerBlock];
  }

  // Takes a free record for an id that is not in the index.
  RecordNumber add(const LeaseId& id) {
    if (free_.empty()) {
      const auto first = static_cast<RecordNumber>(slab_.size() * kRecordsPerBlock);
      slab_.emplace_back();
      bounds_.add_block();
      for (RecordNumber i = kRecordsPerBlock; i-- > 0;) free_.push_back(first + i);
    }
    const RecordNumber number = free_.back();
    free_.pop_back();
    record(number).id = id;
    index_.emplace(record(number).id.str(), number);
    return number;
  }

  // Requires: the index names the record no more, for its key is the record's own id.
  void release(RecordNumber number) {
    record(number) = Record{};
    free_.push_back(number);
  }

  // Ends the stay in batch. Requires: in batch.
  std::vector<EarlyCompletion> take_early(Record& lease) {
    InBatch* in_batch = std::get_if<InBatch>(&lease.state);
    KVL_CHECK(in_batch != nullptr, "a lease is granted once, and a live one is not forgotten (L6)");
    early_ -= in_batch->early.size();
    --in_batch_;
    return std::move(in_batch->early);
  }

  Instant dropped_at(const EarlyCompletion& completion) const {
    return saturating_add(completion.received, limits_.early_completion_ttl);
  }

  void keep_early(RecordNumber number, InBatch& in_batch, const Completion& completion,
                  const AgentName& sender, Instant now) {
    if (early_ >= limits_.early_completions_max) {  // L8, L43
      counters_.add(Counter::kCompletionEarlyDropped);
      return;
    }
    counters_.add(Counter::kCompletionEarly);
    ++early_;
    in_batch.early.push_back(
        {.sender = sender, .readers_expected = completion.readers_expected, .received = now});
    record(number).deadline = dropped_at(in_batch.early.front());
    bounds_.lower(number / kRecordsPerBlock, record(number).deadline);
  }

  // Adds a report to its group. Returns true when that group is complete (L7).
  bool count_report(Live& live, const Completion& completion, const AgentName& sender) {
    ReaderName name = reader_name(sender);
    auto group =
        std::find_if(live.groups.begin(), live.groups.end(), [&](const ReaderGroup& other) {
          return other.engine_id == name.engine_id && other.incarnation == name.incarnation;
        });
    if (group == live.groups.end()) {
      // A decoder that reported in part and stopped has been followed by many others: let it go.
      if (live.groups.size() >= limits_.reader_groups_max) live.groups.erase(live.groups.begin());
      group =
          live.groups.insert(live.groups.end(), {.engine_id = std::move(name.engine_id),
                                                 .incarnation = name.incarnation,
                                                 .readers_expected = completion.readers_expected,
                                                 .readers = {}});
    }
    if (group->readers_expected != completion.readers_expected) {
      counters_.add(Counter::kCompletionMismatch);
      return false;
    }
    if (!group->readers.insert(std::move(name.reader)).second) {
      counters_.add(Counter::kCompletionDuplicate);
      return false;
    }
    counters_.add(Counter::kCompletionsReceived);
    return group->readers.size() == group->readers_expected;
  }

  void on_deadline(RecordNumber number, Instant now) {
    Record& lease = record(number);
    InBatch* in_batch = std::get_if<InBatch>(&lease.state);
    if (in_batch == nullptr) {
      end_copy(number, LeaseEnd::kExpired, /*slot_mismatch=*/false, now);  // L3
      return;
    }
    const std::size_t dropped = std::erase_if(
        in_batch->early, [&](const EarlyCompletion& early) { return now >= dropped_at(early); });
    counters_.add(Counter::kCompletionEarlyDropped, dropped);
    early_ -= dropped;
    lease.deadline = in_batch->early.empty() ? kNever : dropped_at(in_batch->early.front());
  }

  // Requires: live.
  void end_copy(RecordNumber number, LeaseEnd end, bool slot_mismatch, Instant now) {
    Record& lease = record(number);
    const Live& live = std::get<Live>(lease.state);
    // L23: fenced before anybody can see the end. A word that was not the granted one refuses that
    // grant's reader as it stands; one more step could turn it into the granted one.
    if (!slot_mismatch) entries_.end(live.slot);
    LeaseEnded ended{
        .id = lease.id, .end = end, .slot_mismatch = slot_mismatch, .held = now - live.granted_at};
    for (const ReaderGroup& group : live.groups) {
      if (group.readers.size() <= ended.readers_done) continue;
      ended.readers_done = static_cast<std::uint32_t>(group.readers.size());
      ended.readers_expected = group.readers_expected;
    }
    ended_.push_back(std::move(ended));
    --live_;
    index_.erase(lease.id.str());
    release(number);
  }

  const LeaseTableLimits limits_;
  LeaseEntries& entries_;
  std::deque<std::array<Record, kRecordsPerBlock>> slab_;
  std::vector<RecordNumber> free_;
  // Keys are views of the records' own ids. Never iterated.
  boost::unordered_flat_map<std::string_view, RecordNumber> index_;
  DeadlineBounds bounds_;
  std::vector<LeaseEnded> ended_;
  Counters counters_;
  std::size_t live_ = 0;
  std::size_t in_batch_ = 0;
  std::size_t early_ = 0;  // early completions in all records
  std::uint64_t records_scanned_ = 0;
};

LeaseTable::LeaseTable(const LeaseTableLimits& limits, LeaseEntries& entries)
    : impl_(std::make_unique<Impl>(limits, entries)) {}
LeaseTable::~LeaseTable() = default;

void LeaseTable::admit(const LeaseId& id) { impl_->admit(id); }
void LeaseTable::forget(const LeaseId& id) { impl_->forget(id); }
void LeaseTable::grant(const LeaseGrant& grant, Instant now) { impl_->grant(grant, now); }
void LeaseTable::renew(std::span<const std::string_view> ids, Instant now) {
  impl_->renew(ids, now);
}
void LeaseTable::complete(const Completion& completion, const AgentName& sender, Instant now) {
  impl_->complete(completion, sender, now);
}
void LeaseTable::end(const LeaseId& id, LeaseEnd end, Instant now) { impl_->end(id, end, now); }
void LeaseTable::sweep(Instant now) { impl_->sweep(now); }
Instant LeaseTable::next_deadline() const { return impl_->next_deadline(); }
std::vector<LeaseEnded> LeaseTable::take_ended() { return impl_->take_ended(); }
std::size_t LeaseTable::live() const { return impl_->live(); }
std::size_t LeaseTable::in_batch() const { return impl_->in_batch(); }
std::optional<Instant> LeaseTable::expires_at(const LeaseId& id) const {
  return impl_->expires_at(id);
}
const Counters& LeaseTable::counters() const { return impl_->counters(); }
std::uint64_t LeaseTable::records_scanned() const { return impl_->records_scanned(); }

}  // namespace kvlease
