// What the leases of one rank cost: a sweep when nothing is due, a renewed id, a grant with its
// end. Figures of one run are for comparing with each other, not with another machine's.
#include <benchmark/benchmark.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvlease/core/lease_table.h"

namespace kvlease {
namespace {

using std::chrono::seconds;

constexpr std::uint32_t kWordHigh = 7;

// A table with live leases of vLLM-like ids of 54 bytes.
class Leases {
 public:
  explicit Leases(std::size_t live)
      : memory_(live + 2), entries_(memory_, kWordHigh), table_(LeaseTableLimits{}, entries_) {
    for (std::size_t i = 0; i < live; ++i) {
      const std::string number = std::to_string(i);
      ids_.emplace_back("chatcmpl-" + std::string(36 - number.size(), '0') + number + "-0badcafe");
      table_.grant(grant(LeaseId(ids_.back()), i + 1), kTimeZero);
    }
    names_.assign(ids_.begin(), ids_.end());
  }

  LeaseGrant grant(const LeaseId& id, std::size_t slot_number) const {
    const SlotId slot(static_cast<std::uint32_t>(slot_number));
    return {.id = id,
            .slot = slot,
            .word = entries_.word(slot),
            .remaining = seconds(30),
            .extension = seconds(20)};
  }

  LeaseTable& table() { return table_; }
  std::span<const std::string_view> names() const { return names_; }
  std::size_t spare_slot() const { return memory_.size() - 1; }

 private:
  std::vector<LeaseEntry> memory_;
  LeaseEntries entries_;
  LeaseTable table_;
  std::vector<std::string> ids_;
  std::vector<std::string_view> names_;
};

void idle_sweep(benchmark::State& state) {
  Leases leases(static_cast<std::size_t>(state.range(0)));
  for (auto _ : state) {
    leases.table().sweep(kTimeZero + seconds(1));
    benchmark::DoNotOptimize(leases.table().next_deadline());
  }
}
BENCHMARK(idle_sweep)->Arg(0)->Arg(1'000)->Arg(10'000);

void renew_one_heartbeat_of_1024_ids(benchmark::State& state) {
  Leases leases(static_cast<std::size_t>(state.range(0)));
  const std::size_t ids = std::min<std::size_t>(1024, leases.names().size());
  std::size_t first = 0;
  Instant now = kTimeZero + seconds(15);
  for (auto _ : state) {
    leases.table().renew(leases.names().subspan(first, ids), now);
    first = first + 2 * ids <= leases.names().size() ? first + ids : 0;
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(ids));
}
BENCHMARK(renew_one_heartbeat_of_1024_ids)->Arg(1'024)->Arg(10'240);

void grant_and_complete(benchmark::State& state) {
  Leases leases(static_cast<std::size_t>(state.range(0)));
  const LeaseId id("chatcmpl-the-one-that-comes-and-goes-0-0badcafe");
  const AgentName reader("decoder/0/00000000000000aa.0");
  for (auto _ : state) {
    leases.table().grant(leases.grant(id, leases.spare_slot()), kTimeZero);
    leases.table().complete({.id = id.str(), .readers_expected = 1}, reader, kTimeZero);
    benchmark::DoNotOptimize(leases.table().take_ended());
  }
}
BENCHMARK(grant_and_complete)->Arg(0)->Arg(10'000);

}  // namespace
}  // namespace kvlease

BENCHMARK_MAIN();
