// Tests the options: derived values against vLLM's, every range at its edges, and the messages.
#include "kvlease/core/lease_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "kvlease/core/lease_testing.h"

namespace kvlease {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Result<ParsedLeaseConfig> parse(const std::vector<Option>& options) {
  return parse_lease_config(options);
}
LeaseConfig accepted(const std::vector<Option>& options) { return parse(options).value().config; }
std::string refused(const std::vector<Option>& options) {
  const Result<ParsedLeaseConfig> parsed = parse(options);
  if (parsed) return "accepted";
  EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument);
  return parsed.error().message;
}

TEST(LeaseConfigTest, DefaultsAreVllms) {  // L12
  const ParsedLeaseConfig parsed = parse({}).value();
  EXPECT_EQ(parsed.config, LeaseConfig{});
  EXPECT_EQ(parsed.config.times, kThirtySeconds);
  EXPECT_THAT(parsed.warnings, IsEmpty());
}

// What vLLM's functions give, from 6 s on ours too; below, ours are the quotients in milliseconds.
struct FormulaRow {
  double duration;
  double interval;
  double extension;
  std::optional<double> beats_per_extension;
  double first_useful_heartbeat;
};

TEST(LeaseConfigTest, DerivedValues) {  // L12
  const std::vector<FormulaRow> rows{
      // lease_formulas
      {1, 0.166, 0.666, std::nullopt, 0.334},
      {2, 0.333, 1.333, std::nullopt, 0.667},
      {3, 0.5, 2, std::nullopt, 1},
      {4, 0.666, 2.666, std::nullopt, 1.334},
      {5, 0.833, 3.333, std::nullopt, 1.667},
      {6, 1, 4, 4.0, 2},
      {7, 1, 4, 4.0, 3},
      {10, 1, 6, 6.0, 4},
      {11, 1, 7, 7.0, 4},
      {12, 2, 8, 4.0, 4},
      {20, 3, 13, 4.333333333333333, 7},
      {30, 5, 20, 4.0, 10},
      {45, 7, 30, 4.285714285714286, 15},
      {60, 10, 40, 4.0, 20},
      {120, 20, 80, 4.0, 40},
      {300, 50, 200, 4.0, 100},
      // lease_formulas_float
      {0.5, 0.083, 0.333, std::nullopt, 0.167},
      {1.5, 0.25, 1, std::nullopt, 0.5},
      {10.5, 1, 7, 7.0, 3.5},
      {29.9, 4, 19, 4.75, 10.899999999999999},
      {30.0, 5, 20, 4.0, 10},
      // the shortest
      {0.05, 0.008, 0.033, std::nullopt, 0.017},
  };
  for (const FormulaRow& row : rows) {
    SCOPED_TRACE(row.duration);
    const LeaseTimes times = accepted({{"kv_lease_duration", row.duration}}).times;
    EXPECT_EQ(times, (LeaseTimes{.duration = secs(row.duration),
                                 .heartbeat_interval = secs(row.interval),
                                 .extension = secs(row.extension)}));
    if (row.beats_per_extension) {
      EXPECT_DOUBLE_EQ(to_seconds(times.extension) / to_seconds(times.heartbeat_interval),
                       *row.beats_per_extension);
    }
    // A heartbeat moves the deadline only when it comes later than this after the grant (L2).
    TestRank rank;
    rank.grant("a", 1, times, at(0));
    rank.renew({"a"}, at(row.first_useful_heartbeat));
    EXPECT_EQ(rank.table.expires_at(LeaseId{"a"}), at(row.duration));
    rank.renew({"a"}, at(row.first_useful_heartbeat) + Duration{1});
    EXPECT_EQ(rank.table.expires_at(LeaseId{"a"}), at(row.duration) + Duration{1});
  }
}

TEST(LeaseConfigTest, DerivedValuesOfTheLongest) {  // L13
  const LeaseTimes times = derive_lease_times(kForever);
  EXPECT_EQ(times.duration, kForever);
  // 2/3 of 2^63 - 1 ns, no overflow
  EXPECT_EQ(times.extension, std::chrono::seconds{6'148'914'691});
}

// A19: nonsense is refused by name and range, whatever is accepted can be renewed.
TEST(LeaseConfigTest, A19_NonsenseDurationsAreRefused) {  // L13; lease_formulas_negative
  const std::vector<OptionValue> nonsense{std::int64_t{-1},
                                          std::int64_t{-6},
                                          std::int64_t{0},
                                          0.0,
                                          -0.5,
                                          0.049,
                                          kNaN,
                                          kInfinity,
                                          -kInfinity,
                                          std::monostate{},
                                          true,
                                          false,
                                          std::string("30")};
  for (const OptionValue& value : nonsense) {
    EXPECT_THAT(refused({{"kv_lease_duration", value}}),
                AllOf(HasSubstr("kv_lease_duration is "), HasSubstr("at least 0.05")));
    for (const char* name : {"kv_heartbeat_interval", "kv_lease_extension", "kv_lease_max_hold",
                             "handshake_timeout", "kv_load_timeout"}) {
      if (value == OptionValue{0.049}) continue;
      EXPECT_THAT(refused({{name, value}}), AllOf(HasSubstr(std::string(name) + " is "),
                                                  HasSubstr("a number of seconds, at least")));
    }
  }
  EXPECT_EQ(refused({{"kv_lease_duration", kNaN}}),
            "kv_lease_duration is nan but must be a number of seconds, at least 0.05");
  EXPECT_EQ(refused({{"kv_lease_duration", std::int64_t{-1}}}),
            "kv_lease_duration is -1 but must be a number of seconds, at least 0.05");
  EXPECT_EQ(refused({{"kv_lease_duration", std::string("x")}}),
            "kv_lease_duration is \"x\" but must be a number of seconds, at least 0.05");
  for (const std::int64_t duration : {1, 5, 6, 30}) {
    const LeaseTimes times = accepted({{"kv_lease_duration", duration}}).times;
    EXPECT_GT(times.heartbeat_interval, Duration::zero());
    EXPECT_GT(times.extension, Duration::zero());
  }
}

TEST(LeaseConfigTest, A18_TheLargestDurationsAreForever) {  // L13
  for (const std::int64_t largest : {INT64_MAX, INT64_MAX - 1}) {
    const LeaseTimes times = accepted({{"kv_lease_duration", largest}}).times;
    EXPECT_EQ(times.duration, kForever);
    TestRank rank;
    rank.grant("a", 1, times, at(1000));
    EXPECT_EQ(rank.table.expires_at(LeaseId{"a"}), kNever);
    EXPECT_EQ(rank.table.next_deadline(), kNever);
    EXPECT_THAT(rank.sweep(at(1e9)), IsEmpty());
  }
  EXPECT_EQ(accepted({{"kv_lease_duration", 1e300}}).times.duration, kForever);

  const LeaseTimes long_times =
      accepted({{"kv_lease_duration", std::int64_t{1'000'000'000}}}).times;
  TestRank rank;
  rank.grant("a", 1, long_times, at(1000));
  EXPECT_EQ(rank.table.expires_at(LeaseId{"a"}), at(1'000'001'000.0));
}

TEST(LeaseConfigTest, IntervalAndExtensionCanBeSet) {  // L12, L13
  EXPECT_EQ(accepted({{"kv_heartbeat_interval", std::int64_t{2}}}).times,
            (LeaseTimes{secs(30), secs(2), secs(20)}));
  EXPECT_EQ(accepted({{"kv_lease_extension", 10.0}}).times,
            (LeaseTimes{secs(30), secs(5), secs(10)}));
  EXPECT_EQ(accepted({{"kv_lease_extension", std::int64_t{90}},
                      {"kv_heartbeat_interval", std::int64_t{40}},
                      {"kv_lease_duration", std::int64_t{60}}})
                .times,
            (LeaseTimes{secs(60), secs(40), secs(90)}));
  EXPECT_EQ(refused({{"kv_heartbeat_interval", 10.1}}),
            "kv_heartbeat_interval is 10.1 s but must fit at least twice into kv_lease_extension, "
            "which is 20 s: set it to at most 10 s");
  EXPECT_THAT(refused({{"kv_lease_extension", std::int64_t{9}}}), HasSubstr("at most 4.5 s"));
}

TEST(LeaseConfigTest, AHoldLimitBelowTheDurationIsRefused) {  // L48
  EXPECT_EQ(accepted({{"kv_lease_max_hold", std::int64_t{30}}}).lease_max_hold, secs(30));
  EXPECT_EQ(refused({{"kv_lease_max_hold", 29.5}}),
            "kv_lease_max_hold is 29.5 s but must be at least kv_lease_duration, which is 30 s");
}

// F04: the default policy is a fact, and an unknown name is refused.
TEST(LeaseConfigTest, F04_LoadFailurePolicy) {  // L27
  EXPECT_EQ(load_failure_policy_name(accepted({}).load_failure_policy), "recompute");
  EXPECT_EQ(accepted({{"kv_load_failure_policy", std::string("fail")}}).load_failure_policy,
            LoadFailurePolicy::kFail);
  EXPECT_EQ(refused({{"kv_load_failure_policy", std::string("retry")}}),
            "kv_load_failure_policy is \"retry\" but must be \"recompute\" or \"fail\"");
  EXPECT_THAT(refused({{"kv_load_failure_policy", true}}), HasSubstr("\"recompute\" or \"fail\""));
}

TEST(LeaseConfigTest, TheOtherOptions) {  // L13, L17, L22, L28, L30, L32, L43, L48
  const LeaseConfig config = accepted({{"kv_lease_slots", std::int64_t{2}},
                                       {"kv_lease_max_blocks_fraction", std::int64_t{1}},
                                       {"handshake_timeout", 2.5},
                                       {"kv_load_timeout", 0.001},
                                       {"engine_ttl", 60.0},
                                       {"allow_unvalidated_peers", true},
                                       {"enforce_handshake_compat", false},
                                       {"notification_bytes_max", std::int64_t{256}}});
  EXPECT_EQ(config.lease_slots, 2u);
  EXPECT_EQ(config.lease_max_blocks_fraction, 1.0);
  EXPECT_EQ(config.handshake_timeout, secs(2.5));
  EXPECT_EQ(config.load_timeout, secs(0.001));
  EXPECT_EQ(config.engine_ttl, secs(60));
  EXPECT_TRUE(config.allow_unvalidated_peers);
  EXPECT_FALSE(config.enforce_handshake_compat);
  EXPECT_EQ(config.notification_bytes_max, 256u);
  EXPECT_EQ(accepted({{"engine_ttl", std::int64_t{0}}}).engine_ttl, kForever);
  EXPECT_EQ(accepted({{"engine_ttl", -1.5}}).engine_ttl, kForever);

  const std::vector<Option> wrong{
      {"kv_lease_slots", std::int64_t{1}},
      {"kv_lease_slots", std::int64_t{16'777'217}},
      {"kv_lease_slots", 64.0},
      {"kv_lease_slots", true},
      {"kv_lease_max_blocks_fraction", std::int64_t{0}},
      {"kv_lease_max_blocks_fraction", 1.01},
      {"kv_lease_max_blocks_fraction", kNaN},
      {"kv_lease_max_blocks_fraction", true},
      {"engine_ttl", kNaN},
      {"engine_ttl", -kInfinity},
      {"engine_ttl", kInfinity},
      {"engine_ttl", false},
      {"allow_unvalidated_peers", std::int64_t{1}},
      {"enforce_handshake_compat", std::string("true")},
      {"notification_bytes_max", std::int64_t{255}},
      {"notification_bytes_max", std::monostate{}},
  };
  for (const Option& option : wrong) {
    EXPECT_THAT(refused({option}), HasSubstr(option.name + " is ")) << option.name;
  }
}

TEST(LeaseConfigTest, WhatVllmKnowsIsAcceptedWithOneWarning) {  // L13
  const ParsedLeaseConfig parsed = parse({{"num_threads", std::int64_t{4}},
                                          {"kv_lease_duration", std::int64_t{60}},
                                          {"backends", std::monostate{}}})
                                       .value();
  EXPECT_EQ(parsed.config.times.duration, secs(60));
  EXPECT_THAT(parsed.warnings,
              ElementsAre("num_threads is an option of vLLM that kvlease does not use",
                          "backends is an option of vLLM that kvlease does not use"));
  EXPECT_TRUE(is_foreign_option("push_registration_timeout"));
  EXPECT_FALSE(is_foreign_option("bidirectional_kv_xfer"));
}

TEST(LeaseConfigTest, HoldsHaveTheirOptions) {  // L39, L42, L49
  const LeaseConfig plain = accepted({});
  EXPECT_FALSE(plain.bidirectional);
  EXPECT_EQ(plain.hold_ttl, secs(480));
  EXPECT_EQ(plain.hold_max_lifetime, Duration::zero());
  EXPECT_EQ(plain.recompute_threshold, 64u);
  const LeaseConfig set = accepted({{"bidirectional_kv_xfer", true},
                                    {"decoder_kv_blocks_ttl", std::int64_t{60}},
                                    {"kv_hold_max_lifetime", std::int64_t{90}},
                                    {"kv_hold_max_blocks_fraction", 0.25},
                                    {"kv_recompute_threshold", std::int64_t{0}}});
  EXPECT_TRUE(set.bidirectional);
  EXPECT_EQ(set.hold_ttl, secs(60));
  EXPECT_EQ(set.hold_max_lifetime, secs(90));
  EXPECT_EQ(set.hold_max_blocks_fraction, 0.25);
  EXPECT_EQ(set.recompute_threshold, 0u);
  EXPECT_EQ(refused({{"kv_hold_max_lifetime", std::int64_t{60}}}),
            "kv_hold_max_lifetime is 60 s but must be at least decoder_kv_blocks_ttl, which is "
            "480 s");
  EXPECT_EQ(refused({{"bidirectional_kv_xfer", std::int64_t{1}}}),
            "bidirectional_kv_xfer is 1 but must be true or false");
}

TEST(LeaseConfigTest, AdaptiveLeasesHaveTheirOptions) {  // L13, L14
  EXPECT_FALSE(accepted({}).lease_adaptive);
  EXPECT_EQ(accepted({{"kv_lease_duration", std::int64_t{60}}}).lease_duration_min, secs(12));
  EXPECT_EQ(accepted({{"kv_lease_duration", 0.1}}).lease_duration_min, secs(0.05));
  const LeaseConfig set =
      accepted({{"kv_lease_adaptive", true}, {"kv_lease_duration_min", std::int64_t{2}}});
  EXPECT_TRUE(set.lease_adaptive);
  EXPECT_EQ(set.lease_duration_min, secs(2));
  EXPECT_EQ(refused({{"kv_lease_adaptive", std::int64_t{1}}}),
            "kv_lease_adaptive is 1 but must be true or false");
  EXPECT_EQ(refused({{"kv_lease_duration_min", 0.049}}),
            "kv_lease_duration_min is 0.049 but must be a number of seconds, at least 0.05, at "
            "most kv_lease_duration");
  EXPECT_EQ(refused({{"kv_lease_duration_min", std::int64_t{31}}}),
            "kv_lease_duration_min is 31 s but must be at most kv_lease_duration, which is 30 s");
  EXPECT_EQ(refused({{"kv_lease_adaptive", true}, {"kv_heartbeat_interval", std::int64_t{4}}}),
            "kv_lease_adaptive is true but kv_heartbeat_interval is 4 s and kv_lease_extension is "
            "20 s: both follow from each lease's duration then, leave them out");
  EXPECT_EQ(refused({{"kv_lease_adaptive", true}, {"kv_lease_duration", std::int64_t{86'401}}}),
            "kv_lease_adaptive is true but kv_lease_duration is 86401 s: it must be at most 86400 "
            "s then");
  EXPECT_THAT(
      accepted({{"kv_lease_adaptive", true}, {"kv_heartbeat_interval", std::int64_t{5}}}).times,
      kThirtySeconds);
}

TEST(LeaseConfigTest, AKeyThatNobodyKnowsIsRefused) {  // L13
  EXPECT_EQ(refused({{"kv_lease_durations", std::int64_t{30}}}),
            "kv_lease_durations is not an option: see docs/configuration.md for those that are");
}

TEST(LeaseConfigTest, EveryRowIsComplete) {
  for (const OptionRow& row : lease_option_rows()) {
    EXPECT_FALSE(row.name.empty() || row.default_value.empty() || row.range.empty() ||
                 row.rule.empty() || row.meaning.empty())
        << row.name;
    EXPECT_FALSE(is_foreign_option(row.name)) << row.name;
  }
}

}  // namespace
}  // namespace kvlease
