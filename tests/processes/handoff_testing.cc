// See handoff_testing.h.
#include "tests/processes/handoff_testing.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <ranges>

#include "kvlease/wire/json_fields.h"

namespace kvlease {
namespace {

// The instance to compare with, started by the first test that asks and ended after the last.
class SingleInstance : public ::testing::Environment {
 public:
  Cluster& cluster() {
    if (!cluster_) {
      cluster_.emplace(
          Cluster::Options{.binary = kBinary, .on_event = [](const InstanceEvent&) {}});
      const auto started = cluster_->start("single", {.arguments = {}});
      EXPECT_TRUE(started) << started.error().message;
    }
    return *cluster_;
  }
  void TearDown() override { cluster_.reset(); }

 private:
  std::optional<Cluster> cluster_;
};

SingleInstance& single_instance() {
  static auto* const environment = static_cast<SingleInstance*>(
      ::testing::AddGlobalTestEnvironment(std::make_unique<SingleInstance>().release()));
  return *environment;
}

[[maybe_unused]] const SingleInstance& kRegistered = single_instance();

}  // namespace

std::string prompt_text(std::uint32_t number) {
  std::string text = "Prompt " + std::to_string(number) + ":";
  for (std::uint32_t i = 0; i < 10 + number % 5; ++i) {
    text += " line " + std::to_string(i * 7 + number) + " of a document;";
  }
  return text;
}

std::vector<std::string> transfer_config(const std::string& role, const std::string& extra,
                                         const std::string& engine_id) {
  JsonWriter config;
  config.string("kv_connector", "NixlConnector");
  config.string("kv_role", role);
  if (!engine_id.empty()) config.string("engine_id", engine_id);
  config.json("kv_connector_extra_config", "{" + extra + "}");
  return {"--kv-transfer-config", config.take()};
}

std::vector<std::string> joined(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

ProcessTest::ProcessTest()
    : cluster_({.binary = kBinary,
                .on_event = [this](const InstanceEvent& event) { events_.push_back(event); }}) {}

void ProcessTest::SetUp() {
  const char* skip = std::getenv("KVLEASE_SKIP_NIXL");
  if (skip != nullptr && std::string_view(skip) == "1") GTEST_SKIP() << "KVLEASE_SKIP_NIXL=1";
}

void ProcessTest::start(const std::string& name, std::vector<std::string> arguments,
                        std::vector<EnvironmentVariable> environment, std::uint16_t port) {
  const auto started = cluster_.start(
      name,
      {.arguments = std::move(arguments), .environment = std::move(environment), .port = port});
  ASSERT_TRUE(started) << started.error().message;
}

void ProcessTest::start_pair(double lease_seconds,
                             const std::vector<std::string>& decoder_arguments) {
  const std::string lease = R"("kv_lease_duration":)" + std::to_string(lease_seconds);
  const std::vector<std::string> small{"--num-gpu-blocks", "64", "--no-enable-prefix-caching"};
  start("P", joined(transfer_config("kv_producer", lease), small));
  start("D", joined(joined(transfer_config("kv_consumer", R"("kv_load_timeout":3)"),
                           {"--max-num-seqs", "1", "--inter-token-latency", "0.005"}),
                    decoder_arguments));
}

std::string ProcessTest::expected_text(const std::string& prompt) {
  const auto result = single_instance().cluster().complete(
      "single", {.prompt = prompt, .max_tokens = kMaxTokens, .request_id = "single"});
  EXPECT_TRUE(result) << result.error().message;
  return result ? result->text : "";
}

std::string ProcessTest::prefill(const std::string& name, const std::string& prompt,
                                 std::uint32_t max_tokens) {
  const auto result = cluster_.complete(name, {.prompt = prompt,
                                               .max_tokens = max_tokens,
                                               .request_id = "r" + std::to_string(next_request_++),
                                               .kv_transfer_params = std::string(kAskForHandOff)});
  EXPECT_TRUE(result) << result.error().message;
  return result ? result->kv_transfer_params : "";
}

std::unique_ptr<Cluster::PendingCompletion> ProcessTest::begin_decode(const std::string& name,
                                                                      const std::string& prompt,
                                                                      const std::string& params) {
  return cluster_.begin_completion(name, {.prompt = prompt,
                                          .max_tokens = kMaxTokens,
                                          .request_id = "r" + std::to_string(next_request_++),
                                          .kv_transfer_params = params});
}

std::string ProcessTest::text_of(Cluster::PendingCompletion& pending) {
  if (!cluster_.wait_until([&] { return pending.result.has_value(); }, kLimit)) {
    ADD_FAILURE() << "no answer in time";
    return "";
  }
  EXPECT_TRUE(*pending.result) << pending.result->error().message;
  return *pending.result ? (*pending.result)->text : "";
}

std::string ProcessTest::decode(const std::string& name, const std::string& prompt,
                                const std::string& params) {
  return text_of(*begin_decode(name, prompt, params));
}

std::unique_ptr<Cluster::PendingCompletion> ProcessTest::occupy(const std::string& name) {
  auto pending = cluster_.begin_completion(name, {.prompt = "Occupies the instance.",
                                                  .max_tokens = 15000,
                                                  .request_id = "occupies",
                                                  .kv_transfer_params = "",
                                                  .ignore_eos = true});
  const auto running = cluster_.wait_for_ledger(
      name, kLimit, [](const InstanceLedger& seen) { return seen.blocks_in_use > 0; });
  EXPECT_TRUE(running && running->blocks_in_use > 0);
  return pending;
}

void ProcessTest::overwrite_freed_blocks(const std::string& name) {
  std::size_t used_tokens = 0;
  for (std::uint32_t number = 100; used_tokens < 2 * 64 * 16; ++number) {
    const std::string prompt = prompt_text(number);
    used_tokens += prompt.size();
    const auto done =
        cluster_.complete(name, {.prompt = prompt, .max_tokens = 1, .request_id = "other"});
    ASSERT_TRUE(done) << done.error().message;
  }
}

std::size_t ProcessTest::count(std::string_view instance, std::string_view kind) const {
  return static_cast<std::size_t>(std::ranges::count_if(events_, [&](const InstanceEvent& event) {
    return event.instance == instance && event.kind == kind;
  }));
}

const InstanceEvent& ProcessTest::last(std::string_view instance, std::string_view kind) const {
  const auto backwards = std::views::reverse(events_);
  const auto it = std::ranges::find_if(backwards, [&](const InstanceEvent& event) {
    return event.instance == instance && event.kind == kind;
  });
  if (it != backwards.end()) return *it;
  ADD_FAILURE() << instance << " has not told of " << kind;
  static const InstanceEvent kNone{};
  return kNone;
}

bool ProcessTest::wait_for(std::string_view instance, std::string_view kind, std::size_t times) {
  return cluster_.wait_until([&] { return count(instance, kind) >= times; }, kLimit);
}

InstanceLedger ProcessTest::expect_all_blocks_back(const std::string& name, Duration limit) {
  const auto ledger = cluster_.wait_for_ledger(
      name, limit, [](const InstanceLedger& seen) { return seen.all_blocks_back(); });
  EXPECT_TRUE(ledger) << ledger.error().message;
  if (!ledger) return {};
  EXPECT_TRUE(ledger->all_blocks_back())
      << ledger->live << " live, " << ledger->blocks_leased << " blocks leased, "
      << ledger->blocks_in_use << " in use, balanced: " << ledger->balanced;
  return *ledger;
}

std::uint64_t ProcessTest::ended(const InstanceLedger& ledger, std::string_view end) {
  const auto it =
      std::ranges::find(ledger.ended, end, &std::pair<std::string, std::uint64_t>::first);
  return it == ledger.ended.end() ? 0 : it->second;
}

}  // namespace kvlease
