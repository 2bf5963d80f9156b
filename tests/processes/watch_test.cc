// What an instance tells those who watch it: its leases with their readers, and its events, each
// once.
#include <algorithm>

#include "kvlease/serving/view_json.h"
#include "tests/processes/handoff_testing.h"

namespace kvlease {
namespace {

class Watch : public ProcessTest {
 protected:
  InstanceView view(const std::string& name) {
    const auto answer = cluster_.call(name, {.target = std::string(kLeasesPath)});
    if (!answer) return no_view(answer.error());
    const auto view = parse_instance_view(answer->body);
    return view ? *view : no_view(view.error());
  }
  // The first view that has what is asked for, or the last one at the limit.
  InstanceView wait_for_view(const std::string& name,
                             const std::function<bool(const InstanceView&)>& condition) {
    const Instant end = cluster_.now() + kLimit;
    InstanceView seen = view(name);
    while (!condition(seen) && cluster_.now() < end) seen = view(name);
    return seen;
  }
  EventsView events_after(const std::string& name, std::uint64_t number) {
    const auto answer = cluster_.call(
        name, {.target = std::string(kEventsPath) + "?after=" + std::to_string(number)});
    const auto events = answer ? parse_events_view(answer->body)
                               : Result<EventsView>(std::unexpected(answer.error()));
    if (!events) ADD_FAILURE() << events.error().message;
    return events.value_or(EventsView{});
  }

 private:
  static InstanceView no_view(const Error& why) {
    ADD_FAILURE() << why.message;
    return {};
  }
};

TEST_F(Watch, ALeaseShowsItsReaderFromTheFirstHeartbeatOn) {  // L48
  start_pair(60);
  const auto occupying = occupy("D");
  const std::string prompt = prompt_text(1);
  const std::string params = prefill("P", prompt);
  ASSERT_TRUE(wait_for("P", "lease_granted"));
  const InstanceView granted = view("P");
  EXPECT_EQ(granted.role, "kv_producer");
  EXPECT_EQ(granted.status, "ready");
  EXPECT_EQ(granted.leases_live, 1u);
  ASSERT_EQ(granted.leases.size(), 1u);
  const LeaseView& lease = granted.leases[0];
  EXPECT_EQ(lease.id, last("P", "lease_granted").lease);
  EXPECT_EQ(lease.blocks, last("P", "lease_granted").count);
  EXPECT_EQ(lease.duration_s, 60);
  EXPECT_NEAR(lease.age_s + lease.slack_s, 60, 1e-3);  // not renewed yet
  EXPECT_EQ(lease.reader, "");
  EXPECT_FALSE(lease.hold);

  auto decoding = begin_decode("D", prompt, params);
  const InstanceView renewed = wait_for_view("P", [](const InstanceView& seen) {
    return seen.leases.size() == 1 && !seen.leases[0].reader.empty();
  });
  ASSERT_EQ(renewed.leases.size(), 1u);
  EXPECT_EQ(renewed.leases[0].reader, view("D").engine);
  EXPECT_EQ(view("D").known_peers, 1u);
  decoding.reset();
  expect_all_blocks_back("P", kSlack);
  EXPECT_EQ(view("P").leases_live, 0u);
  EXPECT_TRUE(view("P").leases.empty());
}

TEST_F(Watch, HoldsAreMarkedAndHaveTheirOwnTime) {  // L39
  start("P", transfer_config("kv_producer", R"("bidirectional_kv_xfer":true)"));
  start("D", transfer_config("kv_consumer",
                             R"("bidirectional_kv_xfer":true,"decoder_kv_blocks_ttl":300)"));
  const std::string prompt = prompt_text(2);
  decode("D", prompt, prefill("P", prompt));
  const InstanceView holding =
      wait_for_view("D", [](const InstanceView& seen) { return seen.leases_live == 1; });
  ASSERT_EQ(holding.leases.size(), 1u);
  EXPECT_TRUE(holding.leases[0].hold);
  EXPECT_EQ(holding.leases[0].duration_s, 300);
  EXPECT_GT(holding.leases[0].slack_s, 200);
}

TEST_F(Watch, TheOldestLeasesAreListedAndAllAreCounted) {  // L43
  start("P", joined(transfer_config("kv_producer", R"("kv_lease_duration":600)"),
                    {"--num-gpu-blocks", "4096"}));
  const std::size_t count = kLeasesListedMax + 4;
  for (std::size_t i = 0; i < count; ++i) prefill("P", "p" + std::to_string(i));
  const InstanceView seen = view("P");
  EXPECT_EQ(seen.leases_live, count);
  ASSERT_EQ(seen.leases.size(), kLeasesListedMax);
  EXPECT_TRUE(std::ranges::is_sorted(seen.leases, std::ranges::greater{}, &LeaseView::age_s));
  ASSERT_TRUE(wait_for("P", "lease_granted", count));
  std::vector<std::string> granted;
  for (const InstanceEvent& event : events_) {
    if (event.kind == "lease_granted") granted.push_back(event.lease);
  }
  ASSERT_GE(granted.size(), kLeasesListedMax);
  for (std::size_t i = 0; i < kLeasesListedMax; ++i) EXPECT_EQ(seen.leases[i].id, granted[i]);
}

TEST_F(Watch, WhoAsksAgainGetsEachEventOnceAndIsToldOfThoseThatAreGone) {  // L43
  start("P", joined(transfer_config("kv_producer", R"("kv_lease_duration":600)"),
                    {"--num-gpu-blocks", "4096"}));
  EXPECT_EQ(events_after("P", 0).last, 0u);
  prefill("P", prompt_text(1));
  ASSERT_TRUE(wait_for("P", "lease_granted"));
  const EventsView first = events_after("P", 0);
  EXPECT_EQ(first.missed, 0u);
  ASSERT_FALSE(first.events.empty());
  EXPECT_EQ(first.events.back().event, "lease_granted");
  EXPECT_EQ(first.events.back().lease, last("P", "lease_granted").lease);
  EXPECT_EQ(first.events.back().number, first.last);
  EXPECT_TRUE(events_after("P", first.last).events.empty());

  prefill("P", prompt_text(2));
  const EventsView next = events_after("P", first.last);
  ASSERT_FALSE(next.events.empty());
  EXPECT_EQ(next.events.front().number, first.last + 1);
  EXPECT_EQ(next.incarnation, first.incarnation);

  for (std::size_t i = 0; i < kEventsKept; ++i) prefill("P", "p" + std::to_string(i));
  const EventsView late = events_after("P", next.last);
  EXPECT_EQ(late.events.size(), kEventsKept);
  EXPECT_EQ(late.last, next.last + late.missed + kEventsKept);
  EXPECT_EQ(late.events.front().number, next.last + late.missed + 1);
}

}  // namespace
}  // namespace kvlease
