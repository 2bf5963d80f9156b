// What an instance refuses to start with, in words that tell the way out, and what it takes.
#include "tests/processes/handoff_testing.h"

namespace kvlease {
namespace {

class Start : public ProcessTest {};

TEST_F(Start, RefusesWhatItCannotHonour) {  // L13, L51, L7
  const auto extra = [](const std::string& option) { return transfer_config("kv_both", option); };
  const struct {
    std::vector<std::string> arguments;
    std::vector<std::string> words;
    std::vector<EnvironmentVariable> environment = {};
  } rows[] = {
      {extra(R"("kv_lease_duration":0)"), {"exit code 2", "kv_lease_duration", "0.05"}},
      {extra(R"("kv_lease_duration":-1)"), {"exit code 2", "kv_lease_duration", "-1"}},
      {extra(R"("kv_lease_duration":NaN)"), {"exit code 2", "--kv-transfer-config", "JSON"}},
      {extra(R"("kv_lease_duration":"NaN")"), {"exit code 2", "kv_lease_duration", "NaN"}},
      {extra(R"("kv_lease_duration":"30")"), {"exit code 2", "kv_lease_duration"}},
      {extra(R"("kv_lease_duraton":30)"), {"exit code 2", "kv_lease_duraton"}},
      {extra(R"("kv_lease_duration":6,"kv_heartbeat_interval":3)"),
       {"exit code 2", "kv_heartbeat_interval"}},
      {transfer_config("kv_both", "", "a/b"), {"exit code 2", "engine_id", "a/b"}},
      {transfer_config("producer", ""), {"exit code 2", "kv_role", "producer"}},
      {{"--kv-transfer-config", "{"}, {"exit code 2", "--kv-transfer-config"}},
      {{"--kv-transfer-config", "@/nonexistent.json"}, {"exit code 2", "/nonexistent.json"}},
      {{"--host", "0.0.0.0"}, {"exit code 2", "0.0.0.0", "--peer-key", "--insecure-peers"}},
      {{"--advertise-host", "http://10.0.0.1"}, {"exit code 2", "--advertise-host", "http://"}},
      {{"--advertise-host", "10.0.0.1:80"}, {"exit code 2", "--advertise-host", "10.0.0.1:80"}},
      {{"--kv-transfer-config", "@/tmp"}, {"exit code 2", "/tmp"}},
      {{"a-model.gguf"}, {"exit code 2", "a-model.gguf", "synthetic"}},
      {{"--num-kv-heads", "3", "--tensor-parallel-size", "2"}, {"exit code 2", "3", "2"}},
      {{"--block-size", "0"}, {"--block-size"}},
      {{"--num-gpu-blocks", "16777216", "--block-size", "1024", "--num-layers", "1024",
        "--num-kv-heads", "1024", "--head-dim", "4096", "--kv-element-bytes", "8"},
       {"exit code 2", "--num-gpu-blocks", "16777216 blocks", "64 TiB"}},
      // 2^64 bytes, which as 64 bits are none.
      {{"--num-gpu-blocks", "16777216", "--block-size", "1024", "--num-layers", "1024",
        "--num-kv-heads", "1024", "--head-dim", "64", "--kv-element-bytes", "8"},
       {"exit code 2", "--num-gpu-blocks", "64 TiB"}},
      {{"--fault-post-delay", "-1"}, {"--fault-post-delay", "from 0 to 3600"}},
      {{"--max-num-waiting", "0"}, {"--max-num-waiting", "from 1 to 1048576"}},
      {{"--seed", "1"}, {"exit code 2", "KVLEASE_API_KEY", "--api-key"}, {{"KVLEASE_API_KEY", ""}}},
      {{"--seed", "1"}, {"exit code 2", "KVLEASE_PEER_KEY"}, {{"KVLEASE_PEER_KEY", ""}}},
      {{"--no-such-flag"}, {"--no-such-flag"}},
      {{"--nixl-path", "/nonexistent"},
       {"exit code 1", "/nonexistent", "NIXL cannot be loaded", "`./dev deps`"}},
  };
  int number = 0;
  for (const auto& row : rows) {
    const std::string name = "row " + std::to_string(number++);
    const auto started =
        cluster_.start(name, {.arguments = row.arguments, .environment = row.environment});
    ASSERT_FALSE(started) << name;
    for (const std::string& word : row.words) {
      EXPECT_NE(started.error().message.find(word), std::string::npos)
          << word << " is not in: " << started.error().message;
    }
  }
}

TEST_F(Start, TakesAnIpv6AddressInBracketsToo) {
  const auto started = cluster_.start("v6", {.arguments = {"--host", "[::1]"}});
  if (!started && started.error().message.find("cannot listen on [::1]") != std::string::npos) {
    GTEST_SKIP() << started.error().message;  // a machine without IPv6
  }
  EXPECT_TRUE(started) << started.error().message;
}

TEST_F(Start, TakesALongerLeaseAsVllmDocumentsIt) {  // L12
  start("longer",
        {"--kv-transfer-config", R"({"kv_connector":"NixlConnector","kv_role":"kv_producer",)"
                                 R"("kv_connector_extra_config":{"kv_lease_duration":60}})"});
  prefill("longer", prompt_text(1));
  ASSERT_TRUE(wait_for("longer", "lease_granted"));
  EXPECT_EQ(last("longer", "lease_granted").length_seconds, 60);
}

// From vLLM's documentation of the NIXL connector, word for word.
TEST_F(Start, TakesTheConfigurationThatVllmDocuments) {
  start("documented", {"--kv-transfer-config", R"({
  "kv_connector":"NixlConnector",
  "kv_role":"kv_both",
  "kv_buffer_device":"cuda",
  "kv_connector_extra_config":{"backends":["UCX"]}
})"});
  std::string said;
  for (const std::string& line : cluster_.last_lines("documented")) said += line + '\n';
  EXPECT_NE(said.find("kv_buffer_device"), std::string::npos) << said;  // L13: one warning each
  EXPECT_NE(said.find("backends"), std::string::npos) << said;
  const std::string prompt = prompt_text(1);
  EXPECT_EQ(decode("documented", prompt, ""), expected_text(prompt));
}

}  // namespace
}  // namespace kvlease
