// Runs an engine of 1 to 4 ranks over random steps, grants and orders delivered to each rank in
// order but at its own pace, reports taken in random order of the ranks, and checks the account of
// leases, references and slots after every step.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iostream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "kvlease/base/prng.h"
#include "kvlease/core/lease_testing.h"

namespace kvlease {
namespace {

using Step = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>;

constexpr std::uint32_t kSlots = 12;
const LeaseTimes kShort{.duration = secs(6), .heartbeat_interval = secs(1), .extension = secs(4)};

class Engine {
 public:
  explicit Engine(std::uint32_t tp)
      : tp_(tp), leases_({.tp = tp, .slots = kSlots, .word_high = kTestWordHigh, .id_seed = 9}) {
    for (std::uint32_t rank = 0; rank < tp; ++rank) ranks_.emplace_back();
  }

  void apply(const Step& step) {
    const auto [what, which, how] = step;
    RankSide& rank = ranks_[how % tp_];
    switch (what % 14) {
      case 0:
      case 1:
      case 2:
        reserve();
        break;
      case 3:
        if (reserved_.empty()) break;
        leases_.cancel(take(reserved_, which).id);
        break;
      case 4:
      case 5:
        if (!reserved_.empty()) grant(take(reserved_, which), /*blocks=*/1 + how % 5, how);
        break;
      case 6:
        if (const std::string* id = pick(which)) {
          leases_.end(LeaseId{*id}, static_cast<LeaseEnd>(1 + how % 3));
        }
        break;
      case 7:
        if (const std::string* id = pick(which)) rank.side.renew({*id}, now_);
        break;
      case 8:
      case 9:
        if (const std::string* id = pick(which)) {
          rank.side.complete(*id, 1, reader_agent("dec", 0), now_);
        }
        break;
      case 10:
        now_ += secs(0.1 * (which % 20));
        rank.side.table.sweep(now_);
        break;
      case 11:
      case 12:
      case 13:
        for (std::uint32_t i = 0; i <= which % 4; ++i) deliver_order(rank);
        break;
    }
    collect();
    deliver_report(which % tp_);
  }

  // Delivers everything, lets every lease expire, and delivers that.
  void drain() {
    for (int round = 0; round < 3; ++round) {
      for (RankSide& rank : ranks_) {
        while (!rank.orders.empty()) deliver_order(rank);
        rank.side.table.sweep(now_);
      }
      collect();
      for (std::uint32_t rank = 0; rank < tp_; ++rank) {
        while (!ranks_[rank].reports.empty()) deliver_report(rank);
      }
      now_ += secs(60);
    }
  }

  // What does not hold, empty when all does.
  std::string broken() const {
    const LeaseLedger& ledger = leases_.ledger();
    if (!broken_.empty()) return broken_;
    if (!ledger.balanced()) return "the ledger is out of balance";
    std::uint64_t blocks = 0;
    for (const auto& [id, lease] : leases_.live_leases()) blocks += lease.blocks.size();
    if (ledger.live != leases_.live() || ledger.live_blocks != blocks) return "live, recounted";
    if (leases_.live() != granted_.size()) return "a lease ended on every rank is still live";
    if (leases_.reserved() != reserved_.size()) return "reserved, recounted";
    if (leases_.live() + leases_.reserved() + leases_.free_slots() + leases_.retired_slots() !=
        kSlots - 1) {
      return "a slot is lost or counted twice";
    }
    return {};
  }

  std::uint64_t granted() const { return leases_.ledger().granted; }
  std::size_t live() const { return leases_.live(); }
  std::size_t retired() const { return leases_.retired_slots(); }

 private:
  struct RankSide {
    TestRank side{{}, kSlots};
    std::deque<std::variant<LeaseGrant, LeaseEndOrder>> orders;  // sent, not arrived
    std::deque<LeaseEnded> reports;
  };
  // What this test knows of a granted lease.
  struct Granted {
    LeaseGrant grant;
    std::size_t blocks = 0;
    std::uint32_t reports = 0;
    LeaseEnd worst = LeaseEnd::kCompleted;
    bool ordered = false;
  };

  template <typename T>
  static T take(std::vector<T>& from, std::uint32_t which) {
    const auto it = from.begin() + static_cast<std::ptrdiff_t>(which % from.size());
    T taken = std::move(*it);
    from.erase(it);
    return taken;
  }

  const std::string* pick(std::uint32_t which) const {
    if (granted_.empty()) return nullptr;
    return &std::next(granted_.begin(), which % granted_.size())->first;
  }

  void reserve() {
    const Result<LeaseReservation> reserved = leases_.reserve("r");
    if (!reserved) return;
    // L22: no reader was ever told this word for this slot, and every rank's entry stands at it.
    if (named_.contains({reserved->slot.value(), reserved->word})) broken_ = "a word comes again";
    for (const RankSide& rank : ranks_) {
      if (rank.side.entries.word(reserved->slot) != reserved->word) broken_ = "a word differs";
    }
    reserved_.push_back(*reserved);
  }

  void grant(const LeaseReservation& reserved, std::uint32_t blocks, std::uint32_t how) {
    std::vector<BlockId> ids;
    for (std::uint32_t i = 0; i < blocks; ++i) ids.push_back(BlockId{how % 100 + i});
    const LeaseGrant grant = leases_.grant(reserved.id, ids, kShort, now_);
    named_.insert({grant.slot.value(), grant.word});
    granted_.emplace(reserved.id.str(), Granted{.grant = grant, .blocks = ids.size()});
    if (how % 97 == 0 && leases_.retired_slots() < 3) {  // a rank whose entry went astray
      ranks_[how / 97 % tp_].side.entries.end(grant.slot);
    }
    for (RankSide& rank : ranks_) rank.orders.emplace_back(grant);
  }

  void deliver_order(RankSide& rank) {
    if (rank.orders.empty()) return;
    if (const auto* grant = std::get_if<LeaseGrant>(&rank.orders.front())) {
      rank.side.table.grant(*grant, now_);
    } else {
      const auto& order = std::get<LeaseEndOrder>(rank.orders.front());
      rank.side.table.end(order.id, order.end, now_);
    }
    rank.orders.pop_front();
  }

  // The ranks' reports set out, the engine's orders set out.
  void collect() {
    for (RankSide& rank : ranks_) {
      for (LeaseEnded& one : rank.side.table.take_ended()) rank.reports.push_back(std::move(one));
    }
    for (const LeaseEndOrder& order : leases_.take_orders()) {
      const auto known = granted_.find(order.id.str());
      if (known == granted_.end()) {
        broken_ = "an order for a lease that ended on every rank";
      } else if (std::exchange(known->second.ordered, true)) {
        broken_ = "a second order for one lease";
      }
      for (RankSide& rank : ranks_) rank.orders.emplace_back(order);
    }
  }

  void deliver_report(std::uint32_t rank) {
    if (ranks_[rank].reports.empty()) return;
    const LeaseEnded report = std::move(ranks_[rank].reports.front());
    ranks_[rank].reports.pop_front();
    if (!leases_.on_rank_ended(Rank{rank}, report)) broken_ = "a report was not taken";
    if (leases_.on_rank_ended(Rank{rank}, report)) broken_ = "a report was taken twice";
    const auto known = granted_.find(report.id.str());
    known->second.worst = std::max(known->second.worst, report.end);
    const bool is_last = ++known->second.reports == tp_;
    const std::vector<EngineLeaseEnded> ended = leases_.take_ended();
    if (ended.size() != (is_last ? 1u : 0u)) broken_ = "not one end with the last rank's";
    if (!is_last || !broken_.empty()) return;
    if (ended[0].id != report.id || ended[0].end != known->second.worst ||
        ended[0].blocks.size() != known->second.blocks) {
      broken_ = "an end other than the worst of the ranks', or other blocks";
    }
    const LeaseGrant& grant = known->second.grant;
    for (const RankSide& one : ranks_) {  // L23: fenced everywhere before the blocks are given back
      if (one.side.entries.word(grant.slot) == grant.word) broken_ = "an end without its fence";
    }
    granted_.erase(known);
  }

  std::uint32_t tp_;
  EngineLeases leases_;
  std::deque<RankSide> ranks_;
  std::vector<LeaseReservation> reserved_;
  std::map<std::string, Granted> granted_;                   // and not ended on every rank
  std::set<std::pair<std::uint32_t, std::uint64_t>> named_;  // slots and words told to readers
  Instant now_ = at(1);
  std::string broken_;
};

TEST(EngineLeasesProperty, TheLedgerBalancesAtEveryStep) {  // L6, L23, L35
  for (std::uint32_t tp = 1; tp <= 4; ++tp) {
    const std::uint64_t seed = 10 + tp;
    Prng prng(seed);
    const auto number = [&prng] { return static_cast<std::uint32_t>(prng.next()); };
    Engine engine(tp);
    for (int step = 0; step < 10'000; ++step) {
      const std::uint32_t what = number();
      const std::uint32_t which = number();
      engine.apply({what, which, number()});
      ASSERT_EQ(engine.broken(), "") << "tp " << tp << ", seed " << seed << ", step " << step;
    }
    engine.drain();
    EXPECT_EQ(engine.broken(), "");
    EXPECT_EQ(engine.live(), 0u);
    EXPECT_GT(engine.retired(), 0u) << "a run should see a mismatch";
    std::cout << "tp " << tp << ", seed " << seed << ": " << engine.granted() << " leases, "
              << engine.retired() << " slots retired\n";
  }
}

TEST(EngineLeasesProperty, TheLedgerBalancesShrinking) {
  EXPECT_TRUE(rc::check([] {
    const auto tp = *rc::gen::inRange<std::uint32_t>(1, 5);
    Engine engine(tp);
    for (const Step& step : *rc::gen::resize(300, rc::gen::arbitrary<std::vector<Step>>())) {
      engine.apply(step);
      if (!engine.broken().empty()) RC_FAIL(engine.broken());
    }
    engine.drain();
    if (!engine.broken().empty()) RC_FAIL(engine.broken());
    RC_ASSERT(engine.live() == 0u);
  }));
}

}  // namespace
}  // namespace kvlease
