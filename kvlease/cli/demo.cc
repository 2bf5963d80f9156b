// `kvlease demo`: a prefill and decode instances as real processes over real NIXL. Tells what
// happens as it happens: hand-offs, a decoder that waits and renews, one that is killed, and a
// stale read twice (validated: rejected and recomputed; unvalidated: wrong text). Compares every
// text with a single instance's and ends with a table. Exit code 0 only if all is as it should be.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "kvlease/cli/command.h"
#include "kvlease/cli/validators.h"
#include "kvlease/core/lease_config.h"
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
    if (const auto done = wait_long(); !done) return done;
    if (const auto done = kill_decoder(); !done) return done;
    if (const auto done = read_stale("D-late", true); !done) return done;
    if (const auto done = read_stale("D-blind", false); !done) return done;
    return wait_for_blocks();
  }

  // Prints the table; true when everything is as it should.
  bool summarize();

 private:
  Result<void> start_instances();
  Result<void> hand_over_prompts();
  Result<void> wait_long();
  Result<void> kill_decoder();
  Result<void> read_stale(const std::string& decoder, bool should_be_identical);
  Result<void> overwrite_freed_blocks();
  Result<void> wait_for_blocks();
  Result<std::string> expected_text(const std::string& prompt);
  Result<std::string> prefill(const std::string& prompt, const std::string& id);
  std::vector<std::string> instance_arguments(const std::string& role) const;
  LeaseTimes lease_times() const {
    return derive_lease_times(Duration(std::llround(options_.lease_seconds * 1e9)));
  }
  void on_event(const InstanceEvent& event);
  void say(const std::string& who, const std::string& what);

  DemoOptions options_;
  Cluster cluster_;
  Instant begun_;
  std::uint32_t next_prompt_ = 0;
  std::vector<Row> rows_;
  std::map<std::string, std::uint64_t> events_seen_;  // by "instance kind"
  std::string last_granted_;
  std::string last_lease_end_;
  Instant last_grant_at_{};
  Instant last_heartbeat_at_{};
  double reclaim_seconds_ = 0;        // from the kill to the last block free …
  double reclaim_bound_seconds_ = 0;  // … and by when it had to be
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
    last_grant_at_ = event.at;
    last_granted_ = event.lease;
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
    last_heartbeat_at_ = event.at;
    const bool lost = event.instance == "D-late" || event.instance == "D-blind";
    say(event.instance, "sends a heartbeat for " + std::to_string(event.count) + " lease(s)" +
                            (lost ? ", lost on purpose" : ""));
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
      {"D-slow",
       "kv_consumer",
       {"--fault-post-delay", std::to_string(options_.lease_seconds * 0.8)}},
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

// A decoder that gets to its read only long after the first lease: heartbeats keep the blocks.
Result<void> Demo::wait_long() {
  std::printf("\n--- a decoder that waits longer than one lease, and renews it\n");
  const std::string prompt = prompt_text(next_prompt_++);
  const auto expected = expected_text(prompt);
  if (!expected) return std::unexpected(expected.error());
  const Instant begin = cluster_.now();
  const auto params = prefill(prompt, "patient");
  if (!params) return std::unexpected(params.error());
  const auto decoded = cluster_.complete("D-slow", {.prompt = prompt,
                                                    .max_tokens = kMaxTokens,
                                                    .request_id = "patient",
                                                    .kv_transfer_params = *params});
  if (!decoded) return std::unexpected(decoded.error());
  rows_.push_back({.what = "renewed while waiting",
                   .identical = decoded->text == *expected,
                   .seconds = to_seconds(cluster_.now() - begin)});
  return {};
}

// A decoder that dies with a lease in its queue: P has the blocks back seconds after its last
// heartbeat.
Result<void> Demo::kill_decoder() {
  std::printf("\n--- a decoder is killed while its request waits\n");
  const std::string prompt = prompt_text(next_prompt_++);
  const auto params = prefill(prompt, "doomed");
  if (!params) return std::unexpected(params.error());
  last_lease_end_.clear();
  const std::uint64_t heartbeats = events_seen_["D-slow heartbeat_sent"];
  const auto decoding = cluster_.begin_completion("D-slow", {.prompt = prompt,
                                                             .max_tokens = kMaxTokens,
                                                             .request_id = "doomed",
                                                             .kv_transfer_params = *params});
  const Duration limit = std::chrono::seconds{60} + 2 * lease_times().duration;
  cluster_.wait_until([&] { return events_seen_["D-slow heartbeat_sent"] >= heartbeats + 2; },
                      limit);
  cluster_.signal("D-slow", SIGKILL);
  const Instant killed_at = cluster_.now();
  say("demo", "kill -9 D-slow");
  if (!cluster_.wait_until([&] { return last_lease_end_ == last_granted_; }, limit)) {
    return error(ErrorCode::kTimeout, "P did not end the lease of the killed decoder");
  }
  const LeaseTimes times = lease_times();
  const Instant bound =
      std::max(last_grant_at_ + times.duration, last_heartbeat_at_ + times.extension);
  reclaim_seconds_ = to_seconds(cluster_.now() - killed_at);
  reclaim_bound_seconds_ = to_seconds(bound - killed_at);
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
  const Duration limit = std::chrono::seconds{30} + 4 * lease_times().duration;
  if (!cluster_.wait_until([&] { return last_lease_end_ == last_granted_; }, limit)) {
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
  const bool reclaimed = reclaim_seconds_ <= reclaim_bound_seconds_ + 1;
  std::printf("blocks back after the kill %.2f s (bound %.2f s)\n", reclaim_seconds_,
              reclaim_bound_seconds_);
  std::printf("all blocks of P are back   %s\n", blocks_back ? "yes" : "NO");
  std::printf("seconds                    %.1f\n", to_seconds(cluster_.now() - begun_));
  return good && rejected && reclaimed && blocks_back;
}

}  // namespace

int run_demo(std::span<const std::string> arguments) {
  CLI::App app("Shows a leased hand-off between real processes over real NIXL.", "kvlease demo");
  DemoOptions options;
  app.add_option("--prompts", options.prompts, "prompts to hand over")
      ->check(integer_between(1, 1000))
      ->capture_default_str();
  app.add_option("--kv-lease-duration", options.lease_seconds, "seconds")
      ->check(number_between(0.5, 600))
      ->capture_default_str();
  app.add_option("--tensor-parallel-size", options.tp, "ranks of every instance")
      ->check(integer_between(1, 4))
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
