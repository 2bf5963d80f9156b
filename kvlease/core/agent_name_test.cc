// Tests agent names: both ways, and every other form refused.
#include "kvlease/core/agent_name.h"

#include <gtest/gtest.h>

#include <string>

namespace kvlease {
namespace {

TEST(AgentNameTest, RoundTrip) {  // L7, L31
  const AgentName name = make_agent_name({.engine_id = "pre-7f_dp0",
                                          .rank = Rank{3},
                                          .incarnation = Incarnation{0x0123456789abcdef},
                                          .agent_number = 12});
  EXPECT_EQ(name.str(), "pre-7f_dp0/3/0123456789abcdef.12");
  const auto parts = parse_agent_name(name.str());
  ASSERT_TRUE(parts);
  EXPECT_EQ(parts->engine_id, "pre-7f_dp0");
  EXPECT_EQ(parts->rank, Rank{3});
  EXPECT_EQ(parts->incarnation, Incarnation{0x0123456789abcdef});
  EXPECT_EQ(parts->agent_number, 12u);
}

TEST(AgentNameTest, SplitsFromTheRight) {  // L7
  const auto parts = parse_agent_name("a/b.c/7/00000000000000ff.0");
  ASSERT_TRUE(parts);
  EXPECT_EQ(parts->engine_id, "a/b.c");
  EXPECT_EQ(parts->rank, Rank{7});
  EXPECT_EQ(parts->incarnation, Incarnation{0xff});
}

TEST(AgentNameTest, OtherFormsAreRefused) {  // L7
  for (const std::string name : {
           "",
           "/",
           "//.",
           "decoder",
           "4f1d2c9e-6a35-4a3c-b1de-0d6a1f0e7c11",  // vLLM's
           "d/0",
           "d/0/00000000000000ff",
           "d/0/ff.0",
           "/0/00000000000000ff.0",
           "0/00000000000000ff.0",
           "d//00000000000000ff.0",
           "d/x/00000000000000ff.0",
           "d/-1/00000000000000ff.0",
           "d/+1/00000000000000ff.0",
           "d/01/00000000000000ff.0",
           "d/4294967296/00000000000000ff.0",
           "d/0/00000000000000FF.0",
           "d/0/00000000000000ff.",
           "d/0/00000000000000ff.1 ",
           "d/0/00000000000000ff.00",
           "d/0/00000000000000ff.0/x",
       }) {
    EXPECT_FALSE(parse_agent_name(name)) << name;
  }
}

TEST(AgentNameDeathTest, EngineIdHoldsNoSlash) {  // L7
  EXPECT_DEATH(make_agent_name({.engine_id = "a/b"}), "L7");
}

}  // namespace
}  // namespace kvlease
