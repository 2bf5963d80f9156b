// Tests of conversations.h.
#include "kvlease/route/conversations.h"

#include <gtest/gtest.h>

namespace kvlease {
namespace {

using std::chrono::seconds;

Instant at(int time) { return kTimeZero + seconds(time); }

TEST(ConversationStore, ParamsAreUsedOnceAndNotTooLate) {
  ConversationStore store(10);
  store.put("a", "1", at(0));
  EXPECT_EQ(store.take("a", at(449)), "1");
  EXPECT_EQ(store.take("a", at(449)), std::nullopt);
  store.put("a", "2", at(0));
  EXPECT_EQ(store.take("a", at(450)), std::nullopt);
  EXPECT_EQ(store.size(), 0u);
}

TEST(ConversationStore, TheLastAnswerCountsAndTheOldestGivesWay) {  // L43
  ConversationStore store(2);
  store.put("a", "1", at(0));
  store.put("a", "2", at(1));
  store.put("b", "3", at(2));
  EXPECT_EQ(store.size(), 2u);
  store.put("c", "4", at(3));
  EXPECT_EQ(store.size(), 2u);
  EXPECT_EQ(store.take("a", at(4)), std::nullopt);
  EXPECT_EQ(store.take("b", at(4)), "3");
  EXPECT_EQ(store.take("c", at(4)), "4");
}

TEST(ConversationStore, KeepsLessLongThanTheHolderHolds) {  // L39
  const auto params = [](const std::string& duration_ms) {
    return R"({"do_remote_decode":true,"kvlease":{"v":1,"incarnation":"00000000000000aa",)"
           R"("slot":1,"word":"00000000000000aa","digest":"000102030405060708090a0b0c0d0e0f",)"
           R"("digest_tokens":1,"seal":"000102030405060708090a0b0c0d0e0f","lease_duration_ms":)" +
           duration_ms + R"(,"heartbeat_interval_ms":5000,"release_by":"decoder"}})";
  };
  EXPECT_EQ(keep_params_for(params("480000")), seconds(450));
  EXPECT_EQ(keep_params_for(params("16000")), seconds(15));
  EXPECT_EQ(keep_params_for(params("4800000")), seconds(450));
  EXPECT_EQ(keep_params_for("{}"), seconds(450));
}

}  // namespace
}  // namespace kvlease
