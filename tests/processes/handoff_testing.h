// What the tests with real processes share: instances over real NIXL on loopback, prompts handed
// from one to the other, and what a single instance says to the same prompts.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvlease/serving/cluster.h"

namespace kvlease {

inline const std::string kBinary = std::string(KVL_BINARY_DIR) + "/bin/kvlease";
// What a router adds to a request so that P keeps its blocks for another.
inline constexpr std::string_view kAskForHandOff =
    R"({"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,)"
    R"("remote_block_ids":null,"remote_host":null,"remote_port":null})";
inline constexpr std::uint32_t kMaxTokens = 32;
// How late a loaded machine may be.
inline constexpr Duration kSlack = std::chrono::seconds{1};
// For what takes no time unless something is broken.
inline constexpr Duration kLimit = std::chrono::seconds{30};

// Several blocks long, and different from the first block on.
std::string prompt_text(std::uint32_t number);

// "--kv-transfer-config" and its value. `extra` is the inside of kv_connector_extra_config.
std::vector<std::string> transfer_config(const std::string& role, const std::string& extra,
                                         const std::string& engine_id = "");

std::vector<std::string> joined(std::vector<std::string> a, const std::vector<std::string>& b);

class ProcessTest : public ::testing::Test {
 protected:
  ProcessTest();
  // Without NIXL the tests fail, unless KVLEASE_SKIP_NIXL=1 asks to skip them.
  void SetUp() override;

  void start(const std::string& name, std::vector<std::string> arguments,
             std::vector<EnvironmentVariable> environment = {}, std::uint16_t port = 0);
  // A prefill, and a decode instance that runs one sequence at a time, with leases of this length.
  void start_pair(double lease_seconds, const std::vector<std::string>& decoder_arguments = {});

  // The text of an instance that hands nothing over. The same one serves all tests.
  std::string expected_text(const std::string& prompt);
  // What P returns for D.
  std::string prefill(const std::string& name, const std::string& prompt,
                      std::uint32_t max_tokens = 1);
  std::string decode(const std::string& name, const std::string& prompt, const std::string& params);
  std::unique_ptr<Cluster::PendingCompletion> begin_decode(const std::string& name,
                                                           const std::string& prompt,
                                                           const std::string& params);
  // Waits for it. Empty, and the test has failed, when it ended otherwise.
  std::string text_of(Cluster::PendingCompletion& pending);
  // A request that computes until it is dropped; returns when it runs, and so nothing else does.
  std::unique_ptr<Cluster::PendingCompletion> occupy(const std::string& name);
  // Prompts of others, enough to use each of 64 blocks of 16 tokens again.
  void overwrite_freed_blocks(const std::string& name);

  std::size_t count(std::string_view instance, std::string_view kind) const;
  // The latest of them; an empty one, and the test has failed, when there is none.
  const InstanceEvent& last(std::string_view instance, std::string_view kind) const;
  // Waits until the instance has told of `kind` at least `times` times.
  [[nodiscard]] bool wait_for(std::string_view instance, std::string_view kind,
                              std::size_t times = 1);
  // The ledger as soon as all blocks are back, which is to be within `limit`.
  InstanceLedger expect_all_blocks_back(const std::string& name, Duration limit);
  static std::uint64_t ended(const InstanceLedger& ledger, std::string_view end);

  std::vector<InstanceEvent> events_;
  Cluster cluster_;

 private:
  std::uint32_t next_request_ = 0;
};

}  // namespace kvlease
