// `kvlease demo`: a prefill and a decode instance as real processes over real NIXL. Tells what
// happens as it happens, compares every text with a single instance's, forces a stale read twice
// (validated: rejected and recomputed; unvalidated: wrong text), and ends with a table. Exit code 0
// only if all is as it should.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "kvlease/cli/command.h"
#include "kvlease/runtime/process.h"
#include "kvlease/serving/cluster.h"
#include "kvlease/wire/json_fields.h"

namespace kvlease {
namespace {

struct DemoOptions {
  std::uint32_t prompts = 4;
  double lease_seconds = 2;
  std::uint32_t tp = 1;
  std::string nixl_path;
};

constexpr std::uint32_t kMaxTokens = 48;
constexpr std::uint32_t kNumBlocks = 64;  // small, so that P soon gives freed blocks to others
constexpr std::string_view kAskForHandOff =
    R"({"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,)"
    R"("remote_block_ids":null,"remote_host":null,"remote_port":null})";

// Long enough for several blocks, and different in every block.
std::string prompt_text(std::uint32_t number) {
  std::string text = "Prompt " + std::to_string(number) + ":";
  for (std::uint32_t i = 0; i < 12 + number % 5; ++i) {
    text += " line " + std::to_string(i * 7 + number) + " of a long document;";
  }
  return text;
}

struct Row {
  std::string what;
  bool identical = false;
  bool should_be_identical = true;
  double seconds = 0;
};

class Demo {
 public:
  explicit Demo(const DemoOptions& options)
      : options_(options),
        cluster_({.binary = self_executable_path(),
                  .on_event = [this](const InstanceEvent& event) { on_event(event); }}),
        begun_(cluster_.now()) {}

  Result<void> run() {
    if (const auto done = start_instances(); !done) return done;
    if (const auto done = hand_over_prompts(); !done) return done;
    if (const auto done = read_stale("D-late", true); !done) return done;
    if (const auto done = read_stale("D-blind", false); !done) return done;
    return wait_for_blocks();
  }

  // Prints the table; true when everything is as it should.
  bool summarize();

 private:
  Result<void> start_instances();
  Result<void> hand_over_prompts();
  Result<void> read_stale(const std::string& decoder, bool should_be_identical);
  Result<void> overwrite_freed_blocks();
  Result<void> wait_for_blocks();
  Result<std::string> expected_text(const std::string& prompt);
  Result<std::string> prefill(const std::string& prompt, const std::string& id);
  std::vector<std::string> instance_arguments(const std::string& role) const;
  void on_event(const InstanceEvent& event);
  void say(const std::string& who, const std::string& what);

  DemoOptions options_;
  Cluster cluster_;
  Instant begun_;
  std::uint32_t next_prompt_ = 0;
  std::vector<Row> rows_;
  std::map<std::string, std::uint64_t> events_seen_;  // by "instance kind"
  std::string last_lease_end_;
  InstanceLedger ledger_;
};

void Demo::say(const std::string& who, const std::string& what) {
  std::printf("%8.3f s  %-8s %s\n", to_seconds(cluster_.now() - begun_), who.c_str(), what.c_str());
  std::fflush(stdout);
}

// One line for what a reader of the story wants to see; the rest is counted only.
void Demo::on_event(const InstanceEvent& event) {
  ++events_seen_[event.instance + ' ' + event.kind];
  const std::string blocks = std::to_string(event.count) + " blocks";
  char length[32];
  std::snprintf(length, sizeof length, "%.3f s", event.length_seconds);
  if (event.kind == "lease_granted") {
    say(event.instance, "grants lease " + event.lease + " on " + blocks + " for " + length);
  } else if (event.kind == "lease_ended") {
    last_lease_end_ = event.lease;
    say(event.instance, "lease " + event.lease + " " + event.detail + " after " + length + ": " +
                            blocks + " fenced and freed");
  } else if (event.kind == "handshake_done") {
    say(event.instance, "handshake done");
  } else if (event.kind == "tracking_started") {
    say(event.instance, "keeps " + event.lease + " alive from now on");
  } else if (event.kind == "heartbeat_sent") {
    say(event.instance, "sends a heartbeat for " + std::to_string(event.count) + " lease(s)");
  } else if (event.kind == "read_posted") {
    say(event.instance, "reads " + blocks + " of " + event.lease);
  } else if (event.kind == "read_validated") {
    say(event.instance,
        "has " + std::to_string(event.count) + " bytes of " + event.lease + " after " + length);
  } else if (event.kind == "read_rejected") {
    say(event.instance, "REJECTS what it read of " + event.lease + ": the lease had ended");
  } else if (event.kind == "load_failed") {
    say(event.instance, event.detail);
  } else if (event.kind == "completion_sent") {
    say(event.instance, "tells P that " + event.lease + " is done with");
  } else if (event.kind == "handshake_failed" || event.kind == "peer_suspect") {
    say(event.instance, event.kind + ": " + event.detail);
  }
}

std::vector<std::string> Demo::instance_arguments(const std::string& role) const {
  JsonWriter extra;
  extra.number("kv_lease_duration", options_.lease_seconds);
  JsonWriter config;
  config.string("kv_connector", "NixlConnector");
  config.string("kv_role", role);
  config.json("kv_connector_extra_config", extra.take());
  std::vector<std::string> arguments{"--kv-transfer-config",      config.take(),
                                     "--num-gpu-blocks",          std::to_string(kNumBlocks),
                                     "--tensor-parallel-size",    std::to_string(options_.tp),
                                     "--no-enable-prefix-caching"};
  if (!options_.nixl_path.empty()) {
    arguments.insert(arguments.end(), {"--nixl-path", options_.nixl_path});
  }
  return arguments;
}

Result<void> Demo::start_instances() {
  say("demo", "starting P and D (kvlease serve), and a single instance to compare with");
  const double late = options_.lease_seconds * 1.5;
  const struct {
    std::string name;
    std::string role;
    std::vector<std::string> faults;
  } instances[] = {
      {"P", "kv_producer", {}},
      {"D", "kv_consumer", {}},
      {"single", "kv_both", {}},
      {"D-late",
       "kv_consumer",
       {"--fault-drop-heartbeats", "--fault-post-delay", std::to_string(late)}},
      {"D-blind",
       "kv_consumer",
       {"--fault-drop-heartbeats", "--fault-post-delay", std::to_string(late),
        "--fault-accept-unvalidated"}},
  };
  for (const auto& instance : instances) {
    std::vector<std::string> arguments = instance_arguments(instance.role);
    arguments.insert(arguments.end(), instance.faults.begin(), instance.faults.end());
    if (auto started = cluster_.start(instance.name, {.arguments = std::move(arguments)});
        !started) {
      return started;
    }
  }
  return {};
}

Result<std::string> Demo::expected_text(const std::string& prompt) {
  auto result = cluster_.complete(
      "single", {.prompt = prompt, .max_tokens = kMaxTokens, .request_id = "single"});
  if (!result) return std::unexpected(result.error());
  return result->text;
}

Result<std::string> Demo::prefill(const std::string& prompt, const std::string& id) {
  auto result = cluster_.complete("P", {.prompt = prompt,
                                        .max_tokens = 1,
                                        .request_id = id,
                                        .kv_transfer_params = std::string(kAskForHandOff)});
  if (!result) return std::unexpected(result.error());
  return result->kv_transfer_params;
}

Result<void> Demo::hand_over_prompts() {
  std::printf("\n--- prefill here, decode there\n");
  for (std::uint32_t i = 0; i < options_.prompts; ++i) {
    const std::string prompt = prompt_text(next_prompt_++);
    const std::string id = "r" + std::to_string(i);
    const auto expected = expected_text(prompt);
    if (!expected) return std::unexpected(expected.error());
    const Instant begin = cluster_.now();
    const auto params = prefill(prompt, id);
    if (!params) return std::unexpected(params.error());
    const auto decoded = cluster_.complete("D", {.prompt = prompt,
                                                 .max_tokens = kMaxTokens,
                                                 .request_id = id,
                                                 .kv_transfer_params = *params});
    if (!decoded) return std::unexpected(decoded.error());
    rows_.push_back({.what = "hand-off " + id,
                     .identical = decoded->text == *expected,
                     .seconds = to_seconds(cluster_.now() - begin)});
    say("demo", "D says \"" + decoded->text.substr(0, 32) + "…\"");
  }
  return {};
}

// Prompts of other tenants, enough to use every block of P once.
Result<void> Demo::overwrite_freed_blocks() {
  std::uint32_t used_tokens = 0;
  while (used_tokens < kNumBlocks * 16 * 2) {
    const std::string prompt = prompt_text(next_prompt_++);
    used_tokens += static_cast<std::uint32_t>(prompt.size());
    const auto done =
        cluster_.complete("P", {.prompt = prompt, .max_tokens = 1, .request_id = "other"});
    if (!done) return std::unexpected(done.error());
  }
  say("demo", "P has used its freed blocks for other prompts");
  return {};
}

// A decoder whose heartbeats are lost and whose read starts only after the lease has ended and P
// has given the blocks to others.
Result<void> Demo::read_stale(const std::string& decoder, bool should_be_identical) {
  std::printf("\n--- a stale read, %s\n",
              should_be_identical ? "validated: it must be rejected and computed again"
                                  : "with validation switched off: the text must be wrong");
  const std::string prompt = prompt_text(next_prompt_++);
  const auto expected = expected_text(prompt);
  if (!expected) return std::unexpected(expected.error());
  const Instant begin = cluster_.now();
  last_lease_end_.clear();
  const auto params = prefill(prompt, decoder);
  if (!params) return std::unexpected(params.error());
  const auto decoding = cluster_.begin_completion(decoder, {.prompt = prompt,
                                                            .max_tokens = kMaxTokens,
                                                            .request_id = decoder,
                                                            .kv_transfer_params = *params});
  const Duration limit = std::chrono::seconds{30};
  if (!cluster_.wait_until([&] { return !last_lease_end_.empty(); }, limit)) {
    return error(ErrorCode::kTimeout, "P did not end the lease");
  }
  if (const auto overwritten = overwrite_freed_blocks(); !overwritten) return overwritten;
  cluster_.wait_until([&] { return decoding->result.has_value(); }, limit);
  if (!decoding->result) return error(ErrorCode::kTimeout, decoder + " did not answer");
  const Result<CompletionResult>& decoded = *decoding->result;
  if (!decoded) return std::unexpected(decoded.error());
  rows_.push_back(
      {.what = should_be_identical ? "stale read, validated" : "stale read, unvalidated",
       .identical = decoded->text == *expected,
       .should_be_identical = should_be_identical,
       .seconds = to_seconds(cluster_.now() - begin)});
  say("demo", decoder + " says \"" + decoded->text.substr(0, 32) + "…\", a single instance \"" +
                  expected->substr(0, 32) + "…\"");
  return {};
}

Result<void> Demo::wait_for_blocks() {
  const auto ledger = cluster_.wait_for_ledger(
      "P", std::chrono::seconds{30}, [](const InstanceLedger& seen) { return seen.live == 0; });
  if (!ledger) return std::unexpected(ledger.error());
  ledger_ = *ledger;
  for (const char* name : {"P", "D", "D-late", "D-blind", "single"}) {
    if (auto stopped = cluster_.stop(name); !stopped) return stopped;
  }
  return {};
}

bool Demo::summarize() {
  bool good = true;
  std::printf("\n%-26s %-22s %9s\n", "request", "text", "seconds");
  for (const Row& row : rows_) {
    const bool as_it_should = row.identical == row.should_be_identical;
    good = good && as_it_should;
    std::printf("%-26s %-22s %9.3f\n", row.what.c_str(),
                row.identical ? (as_it_should ? "identical" : "IDENTICAL (unexpected)")
                              : (as_it_should ? "wrong, as expected" : "DIFFERENT"),
                row.seconds);
  }
  const std::uint64_t heartbeats = events_seen_["D heartbeat_sent"];
  const bool rejected = events_seen_["D-late read_rejected"] > 0;
  const bool blocks_back = ledger_.all_blocks_back();
  std::printf("\nleases granted by P        %llu\n",
              static_cast<unsigned long long>(ledger_.granted));
  for (const auto& [end, count] : ledger_.ended) {
    std::printf("  %-24s %llu\n", end.c_str(), static_cast<unsigned long long>(count));
  }
  std::printf("heartbeats sent by D       %llu\n", static_cast<unsigned long long>(heartbeats));
  std::printf("stale read rejected        %s\n", rejected ? "yes" : "NO");
  std::printf("all blocks of P are back   %s\n", blocks_back ? "yes" : "NO");
  std::printf("seconds                    %.1f\n", to_seconds(cluster_.now() - begun_));
  return good && rejected && blocks_back;
}

}  // namespace

int run_demo(std::span<const std::string> arguments) {
  CLI::App app("Shows a leased hand-off between real processes over real NIXL.", "kvlease demo");
  DemoOptions options;
  app.add_option("--prompts", options.prompts, "prompts to hand over")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--kv-lease-duration", options.lease_seconds, "seconds")
      ->check(CLI::Range(0.5, 600.0))
      ->capture_default_str();
  app.add_option("--tensor-parallel-size", options.tp, "ranks of every instance")
      ->check(CLI::Range(1, 4))
      ->capture_default_str();
  app.add_option("--nixl-path", options.nixl_path, "as for kvlease serve");
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& problem) {
    return app.exit(problem) == 0 ? 0 : 2;
  }
  Demo demo(options);
  if (const auto done = demo.run(); !done) {
    std::fprintf(stderr, "kvlease demo: %s\n", done.error().message.c_str());
    return 1;
  }
  return demo.summarize() ? 0 : 1;
}

}  // namespace kvlease
