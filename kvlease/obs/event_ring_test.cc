// Tests of event_ring.h and printable.h.
#include "kvlease/obs/event_ring.h"

#include <gtest/gtest.h>

#include <vector>

#include "kvlease/obs/printable.h"

namespace kvlease {
namespace {

std::vector<std::uint64_t> numbers(const EventRing::Answer& answer) {
  std::vector<std::uint64_t> numbers;
  for (auto it = answer.begin; it != answer.end; ++it) numbers.push_back(it->number);
  return numbers;
}

TEST(EventRing, EachEventIsGotOnceByWhoAsksInTime) {
  EventRing ring(4);
  std::uint64_t seen = 0;
  std::vector<std::uint64_t> got;
  for (std::uint64_t i = 1; i <= 9; ++i) {
    ring.add({.kind = EventKind::kLeaseGranted, .count = i}, kTimeZero + Duration(i));
    if (i % 3 != 0) continue;  // asks after every third
    const EventRing::Answer answer = ring.after(seen);
    EXPECT_EQ(answer.missed, 0u);
    for (auto it = answer.begin; it != answer.end; ++it) {
      EXPECT_EQ(it->event.count, it->number);
      EXPECT_EQ(it->at, kTimeZero + Duration(it->number));
    }
    for (const std::uint64_t number : numbers(answer)) got.push_back(number);
    seen = ring.last();
  }
  EXPECT_EQ(got, (std::vector<std::uint64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST(EventRing, WhoAsksLateIsToldHowManyAreGone) {  // L43
  EventRing ring(4);
  EXPECT_EQ(ring.last(), 0u);
  EXPECT_EQ(ring.after(0).missed, 0u);
  for (int i = 0; i < 10; ++i) ring.add({}, kTimeZero);
  const EventRing::Answer all = ring.after(0);
  EXPECT_EQ(numbers(all), (std::vector<std::uint64_t>{7, 8, 9, 10}));
  EXPECT_EQ(all.missed, 6u);
  EXPECT_EQ(ring.after(5).missed, 1u);
  EXPECT_EQ(ring.after(6).missed, 0u);
  EXPECT_EQ(numbers(ring.after(8)), (std::vector<std::uint64_t>{9, 10}));
  for (const std::uint64_t none : {std::uint64_t{10}, std::uint64_t{11}, UINT64_MAX}) {
    EXPECT_EQ(numbers(ring.after(none)), std::vector<std::uint64_t>{}) << none;
    EXPECT_EQ(ring.after(none).missed, 0u) << none;
  }
}

TEST(EventRing, KeepsNothingOfAPeersTextThatSteersOrHasNoEnd) {  // L43, L44
  EventRing ring(1);
  ring.add({.lease = LeaseId("a\x1b[2Jb"), .peer = "\xff\n", .detail = std::string(10'000, 'x')},
           kTimeZero);
  const Event& kept = ring.after(0).begin->event;
  EXPECT_EQ(kept.lease.str(), "a?[2Jb");
  EXPECT_EQ(kept.peer, "??");
  EXPECT_EQ(kept.detail.size(), 512u);
  EXPECT_TRUE(kept.detail.ends_with("x..."));
}

TEST(Printable, KeepsAsciiAndCuts) {
  EXPECT_EQ(printable("plain <b>text</b> ~", 64), "plain <b>text</b> ~");
  EXPECT_EQ(printable(std::string_view("\0\x7f\x80\t", 4), 64), "????");
  EXPECT_EQ(printable("abcdef", 6), "abcdef");
  EXPECT_EQ(printable("abcdefg", 6), "abc...");
}

}  // namespace
}  // namespace kvlease
