// Tests of view_json.h: what is written is read as it was, and what anybody may have written does
// no harm.
#include "kvlease/serving/view_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvlease {
namespace {

using testing::HasSubstr;

InstanceView instance_view() {
  return {.engine = "P1",
          .role = "kv_producer",
          .status = "ready",
          .blocks = {.free = 1, .cached = 2, .in_use = 7, .running = 3, .leased = 4},
          .running = 5,
          .waiting = 6,
          .waiting_for_remote_kvs = 8,
          .known_peers = 9,
          .prompt_tokens = 10,
          .cached_tokens = 11,
          .generated_tokens = 12,
          .leases_live = 13,
          .leases = {{.id = "a",
                      .slot = 1,
                      .blocks = 2,
                      .age_s = 1.5,
                      .slack_s = 28.5,
                      .duration_s = 30,
                      .reader = "",
                      .hold = false},
                     {.id = "b",
                      .slot = 3,
                      .blocks = 4,
                      .age_s = 0.25,
                      .slack_s = 400,
                      .duration_s = 480,
                      .reader = "D1",
                      .hold = true}}};
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from << " in " << text;
  return text.replace(at, from.size(), to);
}

TEST(ViewJson, AnInstanceIsReadAsItWasWritten) {
  const auto read = parse_instance_view(to_json(instance_view()));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(*read, instance_view());
  EXPECT_THAT(to_json(instance_view()), HasSubstr(R"("reader":null})"));
}

TEST(ViewJson, EventsAreReadAsTheyWereWritten) {
  const EventsView view{.incarnation = "00000000000000aa",
                        .last = 300,
                        .missed = 44,
                        .events = {{.number = 299, .age_s = 2, .event = "stall_grace"},
                                   {.number = 300,
                                    .age_s = 1.25,
                                    .event = "lease_ended",
                                    .request = "r",
                                    .lease = "l",
                                    .peer = "p",
                                    .detail = "expired",
                                    .count = 5,
                                    .length_s = 30}}};
  const auto read = parse_events_view(to_json(view));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(*read, view);
}

TEST(ViewJson, WhatIsNoSuchAnswerIsRefusedWithTheField) {
  const std::string good = to_json(instance_view());
  const struct {
    std::string json;
    std::string_view message;
  } rows[] = {
      {"", "JSON"},
      {"<html>", "JSON"},
      {"[]", "object"},
      {"{}", "blocks"},
      {replaced(good, R"("leased":4)", R"("leased":-4)"), "blocks.leased"},
      {replaced(good, R"("leases":[)", R"("leases":[7,)"), "leases[0]"},
      {replaced(good, R"("slack_s":28.5)", R"("slack_s":"soon")"), "leases[0].slack_s"},
      {replaced(good, R"("id":"b")", R"("id":8)"), "leases[1].id"},
      {replaced(good, R"("engine":"P1")", "\"engine\":\"\xff\""), "JSON"},
      {std::string(kViewBytesMax + 1, ' '), "bytes"},
  };
  for (const auto& row : rows) {
    const auto read = parse_instance_view(row.json);
    ASSERT_FALSE(read) << row.json.substr(0, 200);
    EXPECT_THAT(read.error().message, HasSubstr(row.message));
  }
}

TEST(ViewJson, TextsOfPeersBecomePrintableAndListsHaveABound) {  // L43, L44
  InstanceView hostile = instance_view();
  hostile.engine = "\x1b]0;owned\x07";
  hostile.leases[1].reader = "<img src=x onerror=alert(1)>\n";
  hostile.leases.resize(kLeasesListedMax + 1, hostile.leases[0]);
  const auto read = parse_instance_view(to_json(hostile));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->engine, "?]0;owned?");
  EXPECT_EQ(read->leases[1].reader, "<img src=x onerror=alert(1)>?");  // the page's own business
  EXPECT_EQ(read->leases.size(), kLeasesListedMax);
  const auto long_text = parse_events_view(
      to_json(EventsView{.events = {{.event = "e", .detail = std::string(5000, 'x')}}}));
  ASSERT_TRUE(long_text) << long_text.error().message;
  EXPECT_EQ(long_text->events[0].detail.size(), 512u);
}

}  // namespace
}  // namespace kvlease
