// Keeps a rank's leases as records in a slab that never moves, an index by id, and lower bounds of
// their deadlines in place of a timer queue: a renewal writes its own record and nothing else, a
// sweep with nothing due is one comparison, and expiry is exact for any mix of durations (L3, L4).
#include "kvlease/core/lease_table.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "kvlease/base/check.h"
#include "kvlease/core/agent_name.h"
#include "kvlease/core/lease_index.h"
#include "kvlease/core/lease_waits.h"
#include "kvlease/core/recent_ends.h"

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

// Readers by number, so that a renewal notes its own in the record that it writes anyway. The name
// that was given a number first gives way to a new one (L43).
class ReaderNames {
 public:
  using Number = std::uint32_t;
  static constexpr Number kNobody = 0;

  Number number(const AgentName& agent) {
    const std::optional<AgentNameParts> parts = parse_agent_name(agent.str());
    const std::string_view name = parts ? parts->engine_id : agent.str();
    if (const auto it = numbers_.find(name); it != numbers_.end()) return it->second;
    if (names_.size() == kNamesMax) {
      numbers_.erase(names_.front());
      names_.pop_front();
    }
    if (++last_ == kNobody) ++last_;
    names_.emplace_back(name);
    numbers_.emplace(name, last_);
    return last_;
  }

  // Empty for nobody, and for who has given way.
  std::string name(Number number) const {
    const Number since = last_ - number;
    if (number == kNobody || since >= names_.size()) return {};
    return names_[names_.size() - 1 - since];
  }

 private:
  static constexpr std::size_t kNamesMax = 1024;

  std::deque<std::string> names_;  // the one with number last_ at the end
  std::map<std::string, Number, std::less<>> numbers_;
  Number last_ = kNobody;
};

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

enum class LeaseState : std::uint8_t { kFree, kInBatch, kLive };

// What a renewal and a sweep look at: two cache lines that are fetched together.
struct alignas(64) Record {
  // Live: expires_at. In batch: when the oldest early completion is dropped. Else never.
  Instant deadline = kNever;
  Instant expires_at_max;  // live: of lifetime_max
  Duration extension{};    // live
  SlotId slot;             // live
  std::uint32_t id_length = 0;
  const LeaseId* id = nullptr;  // of the details
  Instant sign_at;              // live: of life, the last; the grant until the first
  LeaseState state = LeaseState::kFree;
  bool has_sign = false;                              // live
  bool observed = false;                              // live
  ReaderNames::Number reader = ReaderNames::kNobody;  // live
  std::array<char, 72> id_head{};                     // of most ids the whole
};
static_assert(sizeof(Record) == 128);

bool has_id(const Record& lease, std::string_view id) {
  const std::size_t head = std::min(id.size(), lease.id_head.size());
  return lease.id_length == id.size() && std::memcmp(lease.id_head.data(), id.data(), head) == 0 &&
         (head == id.size() || lease.id->str() == id);
}

// The rest of a record, by its state.
struct Details {
  LeaseId id;
  std::vector<EarlyCompletion> early;  // in batch: oldest first
  Instant granted_at;                  // live
  std::vector<ReaderGroup> groups;     // live
};

struct RecordBlock {
  std::array<Record, kRecordsPerBlock> records;
  std::array<Details, kRecordsPerBlock> details;
};

// A record's place in the slab.
using RecordNumber = LeaseIndex::RecordNumber;

}  // namespace

class LeaseTable::Impl {
 public:
  Impl(const LeaseTableLimits& limits, LeaseEntries& entries)
      : limits_(limits), entries_(entries), waits_(limits.waits_max) {}

  void admit(const LeaseId& id) {
    KVL_CHECK(!find(id.str()), "an admitted id is neither in batch nor live (L45)");
    record(add(id)).state = LeaseState::kInBatch;
    ++in_batch_;
  }

  void forget(const LeaseId& id) {
    const std::optional<RecordNumber> number = find(id.str());
    if (!number) return;
    counters_.add(Counter::kCompletionEarlyDropped, take_early(*number).size());
    release(*number);
  }

  void grant(const LeaseGrant& grant, Instant now) {
    const std::optional<RecordNumber> admitted = find(grant.id.str());
    const RecordNumber number = admitted ? *admitted : add(grant.id);
    std::vector<EarlyCompletion> early;
    if (admitted) early = take_early(number);

    // L1, L48: the deadline counts from here, on this process's clock (L46).
    Record& lease = record(number);
    lease.state = LeaseState::kLive;
    lease.slot = grant.slot;
    lease.extension = grant.extension;
    lease.expires_at_max = saturating_add(now, grant.lifetime_max);
    lease.deadline = earlier(saturating_add(now, grant.remaining), lease.expires_at_max);
    lease.observed = grant.observed;
    lease.sign_at = now;
    details(number).granted_at = now;
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

  void renew(std::span<const std::string_view> ids, const AgentName* sender, Instant now) {
    const auto reader = sender == nullptr ? ReaderNames::kNobody : readers_.number(*sender);
    counters_.add(Counter::kHeartbeatsReceived);
    for (; ids.size() > kRenewalsAhead; ids = ids.subspan(kRenewalsAhead)) {
      renew_some(ids.first(kRenewalsAhead), reader, now);
    }
    renew_some(ids, reader, now);
  }

  void complete(const Completion& completion, const AgentName& sender, Instant now) {
    KVL_CHECK(completion.readers_expected > 0, "a completion names at least its own reader (L7)");
    const std::optional<RecordNumber> number = find(completion.id);
    if (!number) {
      counters_.add(Counter::kCompletionUnknown);  // L5
      note_late_sign(completion.id, now);
    } else if (record(*number).state == LeaseState::kInBatch) {
      keep_early(*number, completion, sender, now);
    } else {
      note_sign(record(*number), now);
      if (count_report(details(*number).groups, completion, sender)) {
        end_copy(*number, LeaseEnd::kCompleted, /*slot_mismatch=*/false, now);
      } else {
        record(*number).reader = readers_.number(sender);
      }
    }
  }

  void end(const LeaseId& id, LeaseEnd end, Instant now) {
    const std::optional<RecordNumber> number = find(id.str());
    if (!number) return;
    KVL_CHECK(record(*number).state == LeaseState::kLive,
              "a rank gets the grant before the end (L23)");
    end_copy(*number, end, /*slot_mismatch=*/false, now);
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
    const std::optional<RecordNumber> number = find(id.str());
    if (!number || record(*number).state != LeaseState::kLive) return std::nullopt;
    return record(*number).deadline;
  }

  std::optional<LeaseStatus> status(const LeaseId& id) const {
    const std::optional<RecordNumber> number = find(id.str());
    if (!number || record(*number).state != LeaseState::kLive) return std::nullopt;
    const Record& lease = record(*number);
    return LeaseStatus{.expires_at = lease.deadline, .reader = readers_.name(lease.reader)};
  }

  Instant next_deadline() const { return bounds_.earliest(); }
  std::vector<LeaseEnded> take_ended() { return std::exchange(ended_, {}); }
  std::vector<LeaseWait> take_waits() { return waits_.take(); }
  bool has_waits() const { return !waits_.empty(); }
  std::size_t live() const { return live_; }
  std::size_t in_batch() const { return in_batch_; }
  const Counters& counters() const { return counters_; }
  std::uint64_t records_scanned() const { return records_scanned_; }

 private:
  // How many of one message's ids are looked up side by side: the memory of one is fetched while
  // others are worked on.
  static constexpr std::size_t kRenewalsAhead = 32;

  Record& record(RecordNumber number) {
    return slab_[number / kRecordsPerBlock]->records[number % kRecordsPerBlock];
  }
  const Record& record(RecordNumber number) const {
    return slab_[number / kRecordsPerBlock]->records[number % kRecordsPerBlock];
  }
  Details& details(RecordNumber number) {
    return slab_[number / kRecordsPerBlock]->details[number % kRecordsPerBlock];
  }

  std::optional<RecordNumber> find(std::string_view id) const {
    return find(LeaseIndex::hash(id), id);
  }
  std::optional<RecordNumber> find(std::uint64_t hash, std::string_view id) const {
    return index_.find(hash, [&](RecordNumber number) { return has_id(record(number), id); });
  }

  // Requires: at most kRenewalsAhead ids.
  void renew_some(std::span<const std::string_view> ids, ReaderNames::Number reader, Instant now) {
    std::array<std::uint64_t, kRenewalsAhead> hashes{};
    for (std::size_t i = 0; i < ids.size(); ++i) {
      hashes[i] = LeaseIndex::hash(ids[i]);
      index_.prefetch(hashes[i]);
    }
    // Ids hardly ever share what the index keeps of their hashes, so these are the leases.
    std::array<Record*, kRenewalsAhead> leases{};
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto probable = index_.find(hashes[i], [](RecordNumber) { return true; });
      if (!probable) continue;
      leases[i] = &record(*probable);
      __builtin_prefetch(leases[i]);
      __builtin_prefetch(&leases[i]->id_head.back());
    }
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (leases[i] != nullptr) entries_.prefetch(leases[i]->slot);
    }
    std::uint64_t renewed = 0;
    std::uint64_t holds = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      Record* lease = leases[i];
      if (lease != nullptr && !has_id(*lease, ids[i])) {
        const std::optional<RecordNumber> number = find(hashes[i], ids[i]);
        lease = number ? &record(*number) : nullptr;
      }
      if (lease == nullptr || lease->state != LeaseState::kLive) {
        count_not_live(hashes[i], lease);  // L5: revives nothing
        note_late_sign(ids[i], now);
        continue;
      }
      if (lease->extension == Duration::zero()) {  // L39: a hold
        ++holds;
        continue;
      }
      const Instant until = saturating_add(now, lease->extension);  // L14: its own extension
      // L2: never shortened; L48: never beyond its lifetime_max.
      lease->deadline = std::max(lease->deadline, earlier(until, lease->expires_at_max));
      entries_.renew(lease->slot);  // L22
      if (reader != ReaderNames::kNobody) lease->reader = reader;
      note_sign(*lease, now);
      ++renewed;
    }
    counters_.add(Counter::kLeasesRenewed, renewed);
    counters_.add(Counter::kHeartbeatHold, holds);
  }

  // `in_batch`: its record, if it has one.
  void count_not_live(std::uint64_t hash, const Record* in_batch) {
    if (in_batch != nullptr) return counters_.add(Counter::kHeartbeatEarly);
    const std::optional<LeaseEnd> end = ends_.find(hash);
    if (!end) return counters_.add(Counter::kHeartbeatUnknown);
    counters_.add(*end == LeaseEnd::kExpired ? Counter::kHeartbeatExpired
                                             : Counter::kHeartbeatEnded);
  }

  static LeaseSilence silence(const Record& lease) {
    return {.since = lease.sign_at, .first = !lease.has_sign, .extension = lease.extension};
  }

  // Most signs come in time and are not the first: they cost a comparison.
  void note_sign(Record& lease, Instant now) {
    const bool notable = !lease.has_sign || now - lease.sign_at > lease.extension / 2;
    if (notable && lease.observed) waits_.on_sign(silence(lease), now);
    lease.has_sign = true;
    lease.sign_at = now;
  }

  void note_late_sign(std::string_view id, Instant now) {
    if (waits_.on_late_sign(id, now)) counters_.add(Counter::kSignsLate);
  }

  // Takes a free record for an id that is not in the index.
  RecordNumber add(const LeaseId& id) {
    if (free_.empty()) {
      const auto first = static_cast<RecordNumber>(slab_.size() * kRecordsPerBlock);
      slab_.push_back(std::make_unique<RecordBlock>());
      bounds_.add_block();
      for (RecordNumber i = kRecordsPerBlock; i-- > 0;) free_.push_back(first + i);
    }
    const RecordNumber number = free_.back();
    free_.pop_back();
    details(number).id = id;
    Record& added = record(number);
    added.id = &details(number).id;
    added.id_length = static_cast<std::uint32_t>(id.str().size());
    id.str().copy(added.id_head.data(), added.id_head.size());
    index_.insert(LeaseIndex::hash(id.str()), number);
    return number;
  }

  void release(RecordNumber number) {
    index_.erase(LeaseIndex::hash(details(number).id.str()), number);
    record(number) = Record{};
    details(number) = Details{};
    free_.push_back(number);
  }

  // Ends the stay in batch. Requires: in batch.
  std::vector<EarlyCompletion> take_early(RecordNumber number) {
    KVL_CHECK(record(number).state == LeaseState::kInBatch,
              "a lease is granted once, and a live one is not forgotten (L6)");
    std::vector<EarlyCompletion> early = std::exchange(details(number).early, {});
    early_ -= early.size();
    --in_batch_;
    return early;
  }

  Instant dropped_at(const EarlyCompletion& completion) const {
    return saturating_add(completion.received, limits_.early_completion_ttl);
  }

  void keep_early(RecordNumber number, const Completion& completion, const AgentName& sender,
                  Instant now) {
    if (early_ >= limits_.early_completions_max) {  // L8, L43
      counters_.add(Counter::kCompletionEarlyDropped);
      return;
    }
    counters_.add(Counter::kCompletionEarly);
    ++early_;
    std::vector<EarlyCompletion>& early = details(number).early;
    early.push_back(
        {.sender = sender, .readers_expected = completion.readers_expected, .received = now});
    record(number).deadline = dropped_at(early.front());
    bounds_.lower(number / kRecordsPerBlock, record(number).deadline);
  }

  // Adds a report to its group. Returns true when that group is complete (L7).
  bool count_report(std::vector<ReaderGroup>& groups, const Completion& completion,
                    const AgentName& sender) {
    ReaderName name = reader_name(sender);
    auto group = std::find_if(groups.begin(), groups.end(), [&](const ReaderGroup& other) {
      return other.engine_id == name.engine_id && other.incarnation == name.incarnation;
    });
    if (group == groups.end()) {
      // A decoder that reported in part and stopped has been followed by many others: let it go.
      if (groups.size() >= limits_.reader_groups_max) groups.erase(groups.begin());
      group = groups.insert(groups.end(), {.engine_id = std::move(name.engine_id),
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
    if (record(number).state == LeaseState::kLive) {
      end_copy(number, LeaseEnd::kExpired, /*slot_mismatch=*/false, now);  // L3
      return;
    }
    std::vector<EarlyCompletion>& early = details(number).early;
    const std::size_t dropped = std::erase_if(
        early, [&](const EarlyCompletion& completion) { return now >= dropped_at(completion); });
    counters_.add(Counter::kCompletionEarlyDropped, dropped);
    early_ -= dropped;
    record(number).deadline = early.empty() ? kNever : dropped_at(early.front());
  }

  // Requires: live.
  void end_copy(RecordNumber number, LeaseEnd end, bool slot_mismatch, Instant now) {
    const Record& lease = record(number);
    // L23: fenced before anybody can see the end. A word that was not the granted one refuses that
    // grant's reader as it stands; one more step could turn it into the granted one.
    if (!slot_mismatch) entries_.end(lease.slot);
    if (end == LeaseEnd::kExpired && lease.observed) {
      waits_.on_expired(details(number).id, silence(lease));
    }
    LeaseEnded ended{.id = details(number).id,
                     .end = end,
                     .slot_mismatch = slot_mismatch,
                     .held = now - details(number).granted_at,
                     .left = remaining(lease.deadline, now),
                     .silent = now - lease.sign_at};
    for (const ReaderGroup& group : details(number).groups) {
      if (group.readers.size() <= ended.readers_done) continue;
      ended.readers_done = static_cast<std::uint32_t>(group.readers.size());
      ended.readers_expected = group.readers_expected;
    }
    ends_.add(LeaseIndex::hash(ended.id.str()), end);
    ended_.push_back(std::move(ended));
    --live_;
    release(number);
  }

  const LeaseTableLimits limits_;
  LeaseEntries& entries_;
  std::vector<std::unique_ptr<RecordBlock>> slab_;
  std::vector<RecordNumber> free_;
  LeaseIndex index_;
  DeadlineBounds bounds_;
  ReaderNames readers_;
  std::vector<LeaseEnded> ended_;
  RecentEnds ends_;
  Counters counters_;
  std::size_t live_ = 0;
  std::size_t in_batch_ = 0;
  std::size_t early_ = 0;  // early completions in all records
  LeaseWaits waits_;
  std::uint64_t records_scanned_ = 0;
};

LeaseTable::LeaseTable(const LeaseTableLimits& limits, LeaseEntries& entries)
    : impl_(std::make_unique<Impl>(limits, entries)) {}
LeaseTable::~LeaseTable() = default;

void LeaseTable::admit(const LeaseId& id) { impl_->admit(id); }
void LeaseTable::forget(const LeaseId& id) { impl_->forget(id); }
void LeaseTable::grant(const LeaseGrant& grant, Instant now) { impl_->grant(grant, now); }
void LeaseTable::renew(std::span<const std::string_view> ids, Instant now) {
  impl_->renew(ids, nullptr, now);
}
void LeaseTable::renew(std::span<const std::string_view> ids, const AgentName& sender,
                       Instant now) {
  impl_->renew(ids, &sender, now);
}
void LeaseTable::complete(const Completion& completion, const AgentName& sender, Instant now) {
  impl_->complete(completion, sender, now);
}
void LeaseTable::end(const LeaseId& id, LeaseEnd end, Instant now) { impl_->end(id, end, now); }
void LeaseTable::sweep(Instant now) { impl_->sweep(now); }
Instant LeaseTable::next_deadline() const { return impl_->next_deadline(); }
std::vector<LeaseEnded> LeaseTable::take_ended() { return impl_->take_ended(); }
std::vector<LeaseWait> LeaseTable::take_waits() { return impl_->take_waits(); }
bool LeaseTable::has_waits() const { return impl_->has_waits(); }
std::size_t LeaseTable::live() const { return impl_->live(); }
std::size_t LeaseTable::in_batch() const { return impl_->in_batch(); }
std::optional<Instant> LeaseTable::expires_at(const LeaseId& id) const {
  return impl_->expires_at(id);
}
std::optional<LeaseStatus> LeaseTable::status(const LeaseId& id) const { return impl_->status(id); }
const Counters& LeaseTable::counters() const { return impl_->counters(); }
std::uint64_t LeaseTable::records_scanned() const { return impl_->records_scanned(); }

}  // namespace kvlease
