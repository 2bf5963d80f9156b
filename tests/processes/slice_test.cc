// The path of a request between real processes: prefill here, decode there, the same text as on one
// instance, over shared memory and over TCP.
#include <algorithm>

#include "tests/processes/handoff_testing.h"

namespace kvlease {
namespace {

struct Setup {
  std::uint32_t tp;
  std::string ucx_tls;  // empty: what UCX chooses
};

class Slice : public ProcessTest, public ::testing::WithParamInterface<Setup> {
 protected:
  void start_engine(const std::string& name, const std::string& role) {
    std::vector<EnvironmentVariable> environment;
    if (!GetParam().ucx_tls.empty()) environment.push_back({"UCX_TLS", GetParam().ucx_tls});
    start(name,
          joined(transfer_config(role, R"("kv_lease_duration":10)"),
                 {"--tensor-parallel-size", std::to_string(GetParam().tp)}),
          std::move(environment));
  }
};

INSTANTIATE_TEST_SUITE_P(, Slice,
                         ::testing::Values(Setup{1, ""}, Setup{2, ""}, Setup{1, "tcp"},
                                           Setup{2, "tcp"}),
                         [](const auto& setup) {
                           return "Tp" + std::to_string(setup.param.tp) +
                                  (setup.param.ucx_tls.empty() ? "Default" : "Tcp");
                         });

// L1, L15, L24, L6: what is handed over gives the same text, and every lease is completed at once.
TEST_P(Slice, TextsAreThoseOfOneInstanceAndAllBlocksComeBack) {
  start_engine("P", "kv_producer");
  start_engine("D", "kv_consumer");
  for (std::uint32_t number = 0; number < 3; ++number) {
    const std::string prompt = prompt_text(number);
    EXPECT_EQ(decode("D", prompt, prefill("P", prompt)), expected_text(prompt));
  }
  // A prompt that begins as the first did: D has that prefix, and reads only what follows.
  const std::string longer = prompt_text(0) + " and what else there is to say about it, at length.";
  const std::uint64_t cached_blocks = prompt_text(0).size() / 16;
  EXPECT_EQ(decode("D", longer, prefill("P", longer)), expected_text(longer));
  EXPECT_EQ(last("D", "read_posted").count, last("P", "lease_granted").count - cached_blocks);

  const InstanceLedger ledger = expect_all_blocks_back("P", kSlack);
  EXPECT_EQ(ledger.granted, 4u);
  EXPECT_EQ(ended(ledger, "completed"), 4u);
  EXPECT_EQ(count("D", "handshake_done"), 1u);                  // L29
  EXPECT_EQ(count("D", "read_validated"), 4u * GetParam().tp);  // each rank reads its part
  EXPECT_EQ(count("D", "load_failed"), 0u);
  EXPECT_TRUE(expect_all_blocks_back("D", kSlack).all_blocks_back());
}

class Mismatch : public ProcessTest {};

// H07, D15: a pair that does not fit works, slower, and its operator is told once.
TEST_F(Mismatch, H07_APairThatDoesNotFitComputesHereAndSaysSo) {
  start("P", transfer_config("kv_producer", ""));
  start("D", joined(transfer_config("kv_consumer", ""), {"--num-layers", "8"}));
  start("single-8", {"--num-layers", "8"});
  for (std::uint32_t number : {1u, 2u}) {
    const std::string prompt = prompt_text(number);
    const auto expected =
        cluster_.complete("single-8", {.prompt = prompt, .max_tokens = kMaxTokens});
    ASSERT_TRUE(expected.has_value());
    EXPECT_EQ(decode("D", prompt, prefill("P", prompt)), expected->text);
  }
  const auto& lines = cluster_.last_lines("D");
  EXPECT_EQ(std::ranges::count_if(lines,
                                  [](const std::string& line) {
                                    return line.find("handshake_failed: engine") !=
                                               std::string::npos &&
                                           line.find('8') != std::string::npos &&
                                           line.find('4') != std::string::npos;
                                  }),
            1);
  EXPECT_EQ(std::ranges::count_if(lines,
                                  [](const std::string& line) {
                                    return line.find("load_failed: engine") != std::string::npos;
                                  }),
            1);
}

}  // namespace
}  // namespace kvlease
