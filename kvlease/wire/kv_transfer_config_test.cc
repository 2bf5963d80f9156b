// Tests of kv_transfer_config.h: vLLM's keys, what becomes of each, and every refusal (L13).
#include "kvlease/wire/kv_transfer_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvlease/wire/testing.h"

namespace kvlease {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

KvTransferConfig parsed(std::string_view json) {
  const Result<KvTransferConfig> config = parse_kv_transfer_config(json);
  EXPECT_TRUE(config.has_value()) << (config ? "" : config.error().message);
  return config.value_or(KvTransferConfig{});
}

TEST(KvTransferConfig, EverythingHasADefault) {
  const KvTransferConfig config = parsed("{}");
  EXPECT_EQ(config.kv_role, KvRole::kBoth);
  EXPECT_EQ(config.engine_id, std::nullopt);
  EXPECT_EQ(config.lease, LeaseConfig{});
  EXPECT_THAT(config.warnings, IsEmpty());
}

TEST(KvTransferConfig, EveryKeyIsRead) {
  const KvTransferConfig config = parsed(
      R"({"kv_connector": "NixlConnector", "kv_role": "kv_producer", "engine_id": "pre-7f",
          "kv_load_failure_policy": "fail",
          "kv_connector_extra_config": {"kv_lease_duration": 60, "kv_lease_slots": 128,
                                        "kv_lease_max_blocks_fraction": 0.5,
                                        "allow_unvalidated_peers": true}})");
  EXPECT_EQ(config.kv_role, KvRole::kProducer);
  EXPECT_EQ(config.engine_id, EngineId("pre-7f"));
  EXPECT_EQ(config.lease.load_failure_policy, LoadFailurePolicy::kFail);
  EXPECT_EQ(config.lease.times, (LeaseTimes{.duration = seconds{60},
                                            .heartbeat_interval = seconds{10},
                                            .extension = seconds{40}}));
  EXPECT_EQ(config.lease.lease_slots, 128u);
  EXPECT_EQ(config.lease.lease_max_blocks_fraction, 0.5);
  EXPECT_TRUE(config.lease.allow_unvalidated_peers);
  EXPECT_THAT(config.warnings, IsEmpty());
}

TEST(KvTransferConfig, NullIsAsGoodAsAbsent) {
  const KvTransferConfig config =
      parsed(R"({"kv_connector":null,"kv_role":null,"engine_id":null,"kv_rank":null,)"
             R"("kv_load_failure_policy":null,"kv_connector_extra_config":null})");
  EXPECT_EQ(config.kv_role, KvRole::kBoth);
  EXPECT_EQ(config.lease, LeaseConfig{});
  EXPECT_THAT(config.warnings, IsEmpty());
}

TEST(KvTransferConfig, RolesAreSpelledAsInVllm) {
  for (const KvRole role : {KvRole::kProducer, KvRole::kConsumer, KvRole::kBoth}) {
    const std::string name(kv_role_name(role));
    EXPECT_EQ(parsed(R"({"kv_role":")" + name + "\"}").kv_role, role) << name;
  }
  EXPECT_EQ(kv_role_name(KvRole::kConsumer), "kv_consumer");
}

TEST(KvTransferConfig, OurOwnConnectorNameIsKnown) {
  EXPECT_EQ(parsed(R"({"kv_connector":"KvleaseConnector"})").lease, LeaseConfig{});
}

TEST(KvTransferConfig, PolicyMayStandAmongTheExtraOptions) {
  EXPECT_EQ(parsed(R"({"kv_connector_extra_config":{"kv_load_failure_policy":"fail"}})")
                .lease.load_failure_policy,
            LoadFailurePolicy::kFail);
}

TEST(KvTransferConfig, KeysOfVllmThatWeDoNotUseAreWarnedOfOnceEach) {  // L13
  const KvTransferConfig config = parsed(
      R"({"kv_buffer_device":"cpu","enable_permute_local_kv":false,"kv_ip":"127.0.0.1",)"
      R"("kv_connector_module_path":"a.b","kv_rank":0,"kv_parallel_size":1,"kv_port":14579,)"
      R"("kv_buffer_size":1e9,"kv_connector_extra_config":{"backends":["UCX"],"num_threads":4}})");
  EXPECT_THAT(config.warnings,
              ElementsAre(HasSubstr("enable_permute_local_kv"), HasSubstr("kv_buffer_device"),
                          HasSubstr("kv_buffer_size"), HasSubstr("kv_connector_module_path"),
                          HasSubstr("kv_ip"), HasSubstr("kv_parallel_size"), HasSubstr("kv_port"),
                          HasSubstr("kv_rank"), HasSubstr("backends"), HasSubstr("num_threads")));
  EXPECT_EQ(config.lease, LeaseConfig{});
}

TEST(KvTransferConfig, WhatAKeyMayNotHoldIsRefusedByName) {  // L13
  const auto extra = [](std::string_view option) {
    return R"({"kv_connector_extra_config":{)" + std::string(option) + "}}";
  };
  constexpr std::string_view kScalars = "allowed: null, true, false, a finite number or a string";
  expect_refused(
      parse_kv_transfer_config,
      {
          {"", "kv_transfer_config is no JSON"},
          {"[]", "kv_transfer_config is []; allowed: an object"},
          {R"({"kv_connector":"LMCacheConnectorV1"})",
           R"(`kv_connector` is "LMCacheConnectorV1"; allowed: "NixlConnector", )"
           R"("KvleaseConnector")"},
          {R"({"kv_role":"producer"})",
           R"(`kv_role` is "producer"; allowed: "kv_producer", "kv_consumer", "kv_both")"},
          {R"({"engine_id":"a/b"})",
           R"(`engine_id` is "a/b"; allowed: a string of 1 to 255 printable ASCII characters )"
           R"(without '/')"},
          {R"({"engine_id":""})", R"(`engine_id` is "")"},
          {R"({"engine_id":7})", "`engine_id` is 7"},
          {R"({"kv_port":"14579"})", R"(`kv_port` is "14579"; allowed: a finite number)"},
          {R"({"kv_rank":"0"})", R"(`kv_rank` is "0"; allowed: a finite number)"},
          {R"({"kv_parallel_size":true})", "`kv_parallel_size` is true"},
          {R"({"kv_buffer_size":1e999})", "`kv_buffer_size` is 1e999"},
          {R"({"kv_ip":1})", "`kv_ip` is 1; allowed: a string"},
          {R"({"kv_buffer_device":["cuda"]})", R"(`kv_buffer_device` is ["cuda"])"},
          {R"({"kv_connector_module_path":0})", "`kv_connector_module_path` is 0"},
          {R"({"enable_permute_local_kv":"false"})",
           R"(`enable_permute_local_kv` is "false"; allowed: true or false)"},
          {R"({"kv_roles":"kv_both"})",
           "`kv_roles` is unknown; allowed: kv_connector, kv_role, engine_id, "},
          {R"({"kv_role":"kv_both","kv_role":"kv_producer"})", "allowed: each field once"},
          {R"({"kv_connector_extra_config":[]})", "`kv_connector_extra_config` is []"},
          {R"({"kv_load_failure_policy":"retry"})", R"(kv_load_failure_policy is "retry")"},
          {R"({"kv_load_failure_policy":[]})", "`kv_load_failure_policy` is []"},
          {R"({"kv_load_failure_policy":"fail",)"
           R"("kv_connector_extra_config":{"kv_load_failure_policy":"fail"}})",
           R"(`kv_load_failure_policy` is "fail"; allowed: one place)"},
          {extra(R"("kv_lease_duration":"60")"), R"(kv_lease_duration is "60")"},
          {extra(R"("kv_lease_duration":0)"), "kv_lease_duration is 0"},
          {extra(R"("kv_lease_duration":1e999)"),
           "`kv_connector_extra_config.kv_lease_duration` is 1e999; " + std::string(kScalars)},
          {extra(R"("kv_lease_duration":[30])"),
           "`kv_connector_extra_config.kv_lease_duration` is [30]; " + std::string(kScalars)},
          {extra(R"("kv_lease_slots":65536.5)"), "kv_lease_slots is 65536.5"},
          {extra(R"("initial_kv_lease":30)"), "initial_kv_lease is not an option"},
          {extra(R"("num_threads":4,"num_threads":8)"),
           "`kv_connector_extra_config.num_threads` is 8; allowed: each field once"},
      });
}

}  // namespace
}  // namespace kvlease
