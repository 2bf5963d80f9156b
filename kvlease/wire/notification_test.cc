// Tests of notification.h: vLLM's vectors, every malformed form, splitting, and round trips.
#include "kvlease/wire/notification.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <string>

namespace kvlease {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr std::size_t kBytesMax = 8192;

ParsedNotif parse(std::string_view text) { return parse_notif(as_byte_span(text), kBytesMax); }

std::vector<std::string> as_texts(const std::vector<Bytes>& messages) {
  std::vector<std::string> texts;
  for (const Bytes& message : messages) texts.emplace_back(as_text(message));
  return texts;
}

TEST(Notification, HeartbeatsReadAsVllmReadsThem) {
  struct Row {
    std::string_view bytes;
    std::vector<std::string_view> ids;
  };
  for (const Row& row :
       {Row{"HB:a", {"a"}}, Row{"HB:a,b", {"a", "b"}}, Row{"HB:a:1,b", {"a:1", "b"}}}) {
    const ParsedNotif parsed = parse(row.bytes);
    const auto* heartbeat = std::get_if<HeartbeatNotif>(&parsed);
    ASSERT_NE(heartbeat, nullptr) << row.bytes;
    EXPECT_EQ(heartbeat->ids, row.ids) << row.bytes;
    EXPECT_EQ(heartbeat->empty_pieces, 0u) << row.bytes;
  }
}

TEST(Notification, CompletionsReadAsVllmReadsThem) {  // L7: the last colon splits
  struct Row {
    std::string_view bytes;
    std::string_view id;
    std::uint32_t readers_expected;
  };
  for (const Row& row : {Row{"cmpl-x-0-1234abcd:2", "cmpl-x-0-1234abcd", 2},
                         Row{"id:with:colons:4", "id:with:colons", 4}, Row{"a,b:1", "a,b", 1},
                         Row{"a:1024", "a", 1024}}) {
    const ParsedNotif parsed = parse(row.bytes);
    const auto* completion = std::get_if<CompletionNotif>(&parsed);
    ASSERT_NE(completion, nullptr) << row.bytes;
    EXPECT_EQ(completion->id, row.id);
    EXPECT_EQ(completion->readers_expected, row.readers_expected);
  }
}

TEST(Notification, EmptyPiecesAreSkippedAndCounted) {  // L17
  struct Row {
    std::string_view bytes;
    std::vector<std::string_view> ids;
    std::size_t empty_pieces;
  };
  for (const Row& row : {Row{"HB:", {}, 1}, Row{"HB:,,", {}, 3}, Row{"HB:a,", {"a"}, 1},
                         Row{"HB:,a,,b", {"a", "b"}, 2}}) {
    const ParsedNotif parsed = parse(row.bytes);
    const auto* heartbeat = std::get_if<HeartbeatNotif>(&parsed);
    ASSERT_NE(heartbeat, nullptr) << row.bytes;
    EXPECT_EQ(heartbeat->ids, row.ids) << row.bytes;
    EXPECT_EQ(heartbeat->empty_pieces, row.empty_pieces) << row.bytes;
  }
}

// Whatever lengths the pieces have, short ones hidden in the place of a longer one among them.
TEST(Notification, HeartbeatsOfAnyLengthsAreSplitAtEveryComma) {
  for (const std::string_view list : {"aaa,bbb,c,d,e,fff", "aaa,b,c,ddd", "a,bb,ccc,dd,e",
                                      "aaa,,bbb", "aaa,b,,ccc,", "aaa,bbb,c", "aaa,b,c"}) {
    const std::string text = "HB:" + std::string(list);
    const ParsedNotif parsed = parse(text);
    const auto& heartbeat = std::get<HeartbeatNotif>(parsed);
    std::string joined;
    for (const std::string_view id : heartbeat.ids) {
      EXPECT_EQ(id.find(','), std::string_view::npos) << list;
      joined += id;
    }
    const auto commas = static_cast<std::size_t>(std::ranges::count(list, ','));
    EXPECT_EQ(heartbeat.ids.size() + heartbeat.empty_pieces, commas + 1) << list;
    EXPECT_EQ(joined.size() + commas, list.size()) << list;
  }
}

TEST(Notification, C10_EveryMalformedFormHasItsCause) {  // L44
  struct Row {
    std::string_view bytes;
    std::string_view cause;
  };
  using namespace std::string_view_literals;
  const std::string long_text = std::string(kBytesMax, 'a') + ":1";
  for (const Row& row : {Row{"", "empty"},
                         Row{"\xbb\xff\x00"sv, "not_text"},
                         Row{"R1\n:1", "not_text"},
                         Row{"HB:a\x7f", "not_text"},
                         Row{"R\xc3\xa9:1", "not_text"},
                         Row{"R1", "no_colon"},
                         Row{"garbage", "no_colon"},
                         Row{"hb;a", "no_colon"},
                         Row{":1", "empty_id"},
                         Row{"R1:", "bad_count"},
                         Row{"R1:x", "bad_count"},
                         Row{"R1:-1", "bad_count"},
                         Row{"R1:+1", "bad_count"},
                         Row{"R1: 1", "bad_count"},
                         Row{"R1:1 ", "bad_count"},
                         Row{"R1:0", "bad_count"},
                         Row{"R1:01", "bad_count"},
                         Row{"R1:1025", "bad_count"},
                         Row{"R1:1.0", "bad_count"},
                         Row{"R1:99999999999999999999", "bad_count"},
                         Row{long_text, "too_long"}}) {
    const ParsedNotif parsed = parse(row.bytes);
    const auto* malformed = std::get_if<MalformedNotif>(&parsed);
    ASSERT_NE(malformed, nullptr) << row.bytes;
    EXPECT_EQ(malformed_cause_name(malformed->cause), row.cause) << row.bytes;
  }
}

TEST(Notification, C10_AnIdWithColonsCompletes) {
  const ParsedNotif parsed = parse("a:b:2");
  const auto* completion = std::get_if<CompletionNotif>(&parsed);
  ASSERT_NE(completion, nullptr);
  EXPECT_EQ(completion->id, "a:b");
  EXPECT_EQ(completion->readers_expected, 2u);
}

TEST(Notification, C10_IdsThatAFormCannotCarryAreNoWireIds) {
  for (const std::string& id : {std::string("cmpl-x-0-1234abcd"), std::string("a:b"),
                                std::string("hb:x"), std::string(512, 'a')}) {
    EXPECT_TRUE(is_wire_id(id)) << id;
  }
  for (const std::string& id :
       {std::string(), std::string("HB"), std::string("HB:"), std::string("HB:x"),
        std::string("a,b"), std::string("a\tb"), std::string("\xc3\xa9"), std::string(513, 'a')}) {
    EXPECT_FALSE(is_wire_id(id)) << id;
  }
}

TEST(Notification, TheLimitItselfIsNotTooLong) {
  const std::string text = std::string(kBytesMax - 2, 'a') + ":1";
  EXPECT_TRUE(std::holds_alternative<CompletionNotif>(parse(text)));
}

TEST(Notification, HeartbeatsAreWrittenAsVllmWritesThem) {
  const std::vector<LeaseId> ids{LeaseId("b"), LeaseId("a"), LeaseId("c:1")};
  EXPECT_THAT(as_texts(encode_heartbeat(ids, kBytesMax)), ElementsAre("HB:b,a,c:1"));
  EXPECT_THAT(encode_heartbeat({}, kBytesMax), IsEmpty());
}

TEST(Notification, HeartbeatsAreSplitExactlyAtTheLimit) {  // L17
  const LeaseId a(std::string(99, 'a'));
  const LeaseId b(std::string(98, 'b'));
  const LeaseId c("c");
  const std::vector<LeaseId> fits{a, b, c};  // "HB:" 99 "," 98 = 201 bytes
  EXPECT_THAT(as_texts(encode_heartbeat(fits, 201)),
              ElementsAre("HB:" + a.str() + "," + b.str(), "HB:c"));
  const std::vector<LeaseId> one_more{a, LeaseId(b.str() + "b"), c};
  EXPECT_THAT(as_texts(encode_heartbeat(one_more, 201)),
              ElementsAre("HB:" + a.str(), "HB:" + b.str() + "b,c"));
}

TEST(Notification, C10_IdsThatCannotBeHeartbeatedAreLeftOut) {
  const std::vector<LeaseId> ids{LeaseId("a,b"), LeaseId("a"), LeaseId(std::string(199, 'x')),
                                 LeaseId("HB:c"), LeaseId("d")};
  EXPECT_THAT(as_texts(encode_heartbeat(ids, 201)), ElementsAre("HB:a,d"));
}

TEST(Notification, CompletionsAreWrittenAsVllmWritesThem) {
  EXPECT_EQ(as_text(encode_completion(LeaseId("cmpl-x-0-1234abcd"), 2)), "cmpl-x-0-1234abcd:2");
}

rc::Gen<LeaseId> wire_ids() {
  return rc::gen::map(
      rc::gen::suchThat(
          rc::gen::nonEmpty(rc::gen::container<std::string>(rc::gen::oneOf(
              rc::gen::inRange<char>('!', '~'), rc::gen::element(':', ',', 'H', 'B')))),
          is_wire_id),
      [](std::string text) { return LeaseId(std::move(text)); });
}

TEST(Notification, WhatIsEncodedIsParsedBack) {
  EXPECT_TRUE(rc::check("heartbeats name every id once, in order, within the limit", [] {
    const auto ids = *rc::gen::container<std::vector<LeaseId>>(wire_ids());
    const std::size_t bytes_max = *rc::gen::inRange<std::size_t>(201, 400);
    std::vector<LeaseId> parsed;
    const std::vector<Bytes> messages = encode_heartbeat(ids, bytes_max);
    for (const Bytes& message : messages) {
      const ParsedNotif notif = parse_notif(message, bytes_max);
      RC_ASSERT(std::holds_alternative<HeartbeatNotif>(notif));
      const auto& heartbeat = std::get<HeartbeatNotif>(notif);
      RC_ASSERT(heartbeat.empty_pieces == 0u);
      for (const std::string_view id : heartbeat.ids) parsed.emplace_back(std::string(id));
    }
    RC_ASSERT(parsed == ids);
  }));
  EXPECT_TRUE(rc::check("completions", [] {
    const LeaseId id = *wire_ids();
    const std::uint32_t readers = *rc::gen::inRange<std::uint32_t>(1, kReadersMax + 1);
    const Bytes message = encode_completion(id, readers);
    const ParsedNotif notif = parse_notif(message, kBytesMax);
    RC_ASSERT(std::holds_alternative<CompletionNotif>(notif));
    const auto& completion = std::get<CompletionNotif>(notif);
    RC_ASSERT(completion.id == id.str());
    RC_ASSERT(completion.readers_expected == readers);
  }));
}

}  // namespace
}  // namespace kvlease
