// `kvlease demo`: two prefill and two decode instances behind the router, as real processes over
// real NIXL, and the two stories of a lease. Requests wait in the decoders' queues for longer than
// a lease, and heartbeats keep their blocks; then a decoder is killed with leases in its queue, and
// the blocks come back within seconds. Tells what happens as it happens, compares every text with a
// single instance's, and ends with a table, or the same as JSON.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <ranges>
#include <string>
#include <vector>

#include "kvlease/cli/arguments.h"
#include "kvlease/cli/command.h"
#include "kvlease/cli/validators.h"
#include "kvlease/core/lease_config.h"
#include "kvlease/runtime/process.h"
#include "kvlease/serving/cluster.h"
#include "kvlease/wire/json_fields.h"

namespace kvlease {
namespace {

struct DemoOptions {
  std::uint32_t requests = 8;
  double lease_seconds = 2;
  std::uint32_t prefill_tp = 1;
  std::uint32_t decode_tp = 1;
  bool multi_turn = false;
  bool json = false;
  std::string nixl_path;
};

constexpr std::uint32_t kMaxTokens = 48;
// Of each decode instance: what one request runs in and one more is loaded into, so that others
// have to wait with their leases.
constexpr std::uint32_t kDecodeBlocks = 64;
// Requests of the second story: through the router, and from a client that chose its instances.
constexpr std::uint32_t kRoutedInSecondStory = 6;
constexpr std::uint32_t kDirectInSecondStory = 2;
// Late by more than this, a lease's end would be a bug, not a busy machine.
constexpr double kReclaimSlackSeconds = 1;
// Of the conversation.
constexpr std::uint32_t kTurns = 4;
constexpr std::uint32_t kHoldSeconds = 20;
constexpr const char* kPrefills[] = {"P1", "P2"};
constexpr const char* kDecodes[] = {"D1", "D2"};
constexpr const char* kDoomed = "D2";

// Long enough for many blocks, and different in every block.
std::string prompt_text(std::uint32_t number) {
  std::string text = "Prompt " + std::to_string(number) + ":";
  for (std::uint32_t i = 0; i < 12 + number % 5; ++i) {
    text += " line " + std::to_string(i * 7 + number) + " of a long document;";
  }
  return text;
}

// One request of a client, until it has its answer.
struct DemoRequest {
  std::string id;  // X-Request-Id
  std::string prompt;
  std::string expected;
  Instant begun{};
  std::unique_ptr<Cluster::PendingCompletion> call;
  std::optional<double> seconds;  // until the answer
  bool identical = false;
  std::string note;
};

// One lease, as the instances' events tell of it.
struct DemoLease {
  std::string prefill;
  std::string decode;  // who tracks it; empty: nobody yet
  Instant granted_at{};
  std::optional<Instant> ended_at;
};

class Demo {
 public:
  explicit Demo(const DemoOptions& options)
      : options_(options),
        times_(derive_lease_times(from_seconds(options.lease_seconds))),
        out_(options.json ? stderr : stdout),
        cluster_({.binary = self_executable_path(),
                  .on_event = [this](const InstanceEvent& event) { on_event(event); }}),
        begun_(cluster_.now()) {}

  Result<void> run() {
    if (const auto done = start(); !done) return done;
    if (const auto done = wait_longer_than_a_lease(); !done) return done;
    if (options_.multi_turn) {
      if (const auto done = converse(); !done) return done;
    }
    if (const auto done = kill_a_decoder(); !done) return done;
    return finish();
  }

  // Prints the table or the JSON; true when all texts are identical and all blocks are back.
  bool summarize();

 private:
  Result<void> start();
  Result<void> wait_longer_than_a_lease();
  Result<void> converse();
  Result<void> kill_a_decoder();
  Result<void> finish();

  std::vector<std::string> instance_arguments(const std::string& name) const;
  Cluster::CompletionCall completion(const DemoRequest& request) const;
  Result<DemoRequest*> new_request();
  Result<DemoRequest*> new_request(std::string prompt);
  void send(DemoRequest& request, const std::string& to, bool stream, const std::string& params);
  Result<void> hand_over_directly(DemoRequest& request);
  Result<void> wait_for_answers();
  void take_answers();
  Result<std::uint64_t> blocks_free();
  Result<void> wait_for_reclaim(const std::vector<std::string>& doomed, Instant killed_at);

  void on_event(const InstanceEvent& event);
  void on_lease_event(const InstanceEvent& event);
  bool ended(const std::string& lease) const { return leases_.at(lease).ended_at.has_value(); }
  std::vector<std::string> live_leases_of(const std::string& decode) const;
  bool is_tracked(const std::string& request, const std::string& decode) const;
  void title(const char* text) { print("\n--- %s\n", text); }
  void say(const std::string& who, const std::string& what);
  [[gnu::format(printf, 2, 3)]] void print(const char* format, ...);
  bool good() const;
  std::string json() const;
  void print_requests();
  void print_figures();
  std::size_t identical() const;

  DemoOptions options_;
  LeaseTimes times_;
  std::FILE* out_;
  Cluster cluster_;
  Instant begun_;
  std::vector<std::unique_ptr<DemoRequest>> requests_;  // addresses stay
  std::map<std::string, DemoLease> leases_;
  std::map<std::string, Instant> last_heartbeat_;       // by decode instance
  std::map<std::string, std::uint64_t> events_seen_;    // by kind, and by instance and kind
  std::map<std::string, std::uint64_t> leases_by_end_;  // of all prefill instances
  std::uint64_t leases_granted_ = 0;
  std::uint64_t blocks_free_before_ = 0;
  std::uint64_t blocks_free_after_ = 0;
  bool balanced_ = true;
  double seconds_ = 0;                // the whole demo
  double reclaim_seconds_ = 0;        // from the kill to the last block free …
  double reclaim_bound_seconds_ = 0;  // … and by when it had to be
};

void Demo::print(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(out_, format, arguments);
  va_end(arguments);
  std::fflush(out_);
}

void Demo::say(const std::string& who, const std::string& what) {
  print("%8.3f s  %-7s %s\n", to_seconds(cluster_.now() - begun_), who.c_str(), what.c_str());
}

// One line for what a reader of the story wants to see; the rest is counted only.
void Demo::on_event(const InstanceEvent& event) {
  if (event.instance == "single") return;
  ++events_seen_[event.kind];
  ++events_seen_[event.instance + ' ' + event.kind];
  on_lease_event(event);
  const std::string blocks = std::to_string(event.count) + " blocks";
  char length[32];
  std::snprintf(length, sizeof length, "%.3f s", event.length_seconds);
  if (event.kind == "lease_granted") {
    say(event.instance, "grants " + event.lease + ": " + blocks + " for " + length);
  } else if (event.kind == "lease_ended") {
    say(event.instance, event.lease + " " + event.detail + " after " + length + ": " + blocks +
                            " fenced and freed");
  } else if (event.kind == "handshake_done") {
    say(event.instance, "handshake with " + event.peer);
  } else if (event.kind == "tracking_started") {
    say(event.instance, "keeps " + event.lease + " of " + event.peer + " alive from now on");
  } else if (event.kind == "heartbeat_sent") {
    say(event.instance,
        "heartbeat to " + event.peer + " for " + std::to_string(event.count) + " lease(s)");
  } else if (event.kind == "read_posted") {
    say(event.instance, "reads " + blocks + " of " + event.lease);
  } else if (event.kind == "read_validated") {
    say(event.instance,
        "has " + std::to_string(event.count) + " bytes of " + event.lease + " after " + length);
  } else if (event.kind == "read_rejected" || event.kind == "load_failed" ||
             event.kind == "handshake_failed" || event.kind == "peer_suspect" ||
             event.kind == "backend_down" || event.kind == "backend_up" ||
             event.kind == "released") {
    say(event.instance, event.kind + ": " + event.detail);
  } else if (event.kind == "retried" || event.kind == "decode_alone") {
    say(event.instance, event.request + " " + event.kind + ": " + event.detail);
  }
}

void Demo::on_lease_event(const InstanceEvent& event) {
  if (event.kind == "lease_granted") {
    DemoLease& lease = leases_[event.lease];  // D may have told of it first
    lease.prefill = event.instance;
    lease.granted_at = event.at;
  } else if (event.kind == "tracking_started") {
    leases_[event.lease].decode = event.instance;
  } else if (event.kind == "lease_ended") {
    leases_[event.lease].ended_at = event.at;
  } else if (event.kind == "heartbeat_sent") {
    last_heartbeat_[event.instance] = event.at;
  }
}

std::vector<std::string> Demo::live_leases_of(const std::string& decode) const {
  std::vector<std::string> live;
  for (const auto& [id, lease] : leases_) {
    if (lease.decode == decode && !lease.ended_at) live.push_back(id);
  }
  return live;
}

bool Demo::is_tracked(const std::string& request, const std::string& decode) const {
  return std::ranges::any_of(leases_, [&](const auto& entry) {
    return entry.second.decode == decode && entry.first.starts_with("cmpl-" + request + "-");
  });
}

std::vector<std::string> Demo::instance_arguments(const std::string& name) const {
  const bool decode = name.starts_with('D');
  JsonWriter extra;
  extra.number("kv_lease_duration", options_.lease_seconds);
  if (options_.multi_turn) {
    extra.boolean("bidirectional_kv_xfer", true);
    extra.integer("decoder_kv_blocks_ttl", kHoldSeconds);
    extra.integer("kv_recompute_threshold", 16);  // below the length of an answer here
  }
  JsonWriter config;
  config.string("kv_connector", "NixlConnector");
  config.string("kv_role", decode ? "kv_consumer" : "kv_producer");
  config.string("engine_id", name);
  config.json("kv_connector_extra_config", extra.take());
  const std::uint32_t tp = decode ? options_.decode_tp : options_.prefill_tp;
  std::vector<std::string> arguments;
  if (name != "single") arguments = {"--tensor-parallel-size", std::to_string(tp)};
  if (name != "single") arguments.insert(arguments.end(), {"--kv-transfer-config", config.take()});
  if (decode) {  // one request at a time, each for half a lease
    const double per_token = options_.lease_seconds / 2 / kMaxTokens;
    arguments.insert(arguments.end(),
                     {"--num-gpu-blocks", std::to_string(kDecodeBlocks), "--max-num-seqs", "1",
                      "--inter-token-latency", std::to_string(per_token)});
  }
  if (!options_.nixl_path.empty()) {
    arguments.insert(arguments.end(), {"--nixl-path", options_.nixl_path});
  }
  return arguments;
}

Result<void> Demo::start() {
  say("demo", "starting P1, P2, D1, D2 and a single instance to compare with (kvlease serve)");
  std::vector<std::pair<std::string, Cluster::StartOptions>> instances;
  for (const char* name : {"P1", "P2", "D1", "D2", "single"}) {
    instances.emplace_back(name, Cluster::StartOptions{.arguments = instance_arguments(name)});
  }
  if (auto started = cluster_.start_all(std::move(instances)); !started) return started;
  std::vector<std::string> arguments;
  const auto add = [&](const char* flag, const char* name) {
    arguments.insert(arguments.end(),
                     {flag, "http://127.0.0.1:" + std::to_string(cluster_.port(name))});
  };
  for (const char* name : kPrefills) add("--prefill", name);
  for (const char* name : kDecodes) add("--decode", name);
  say("demo", "starting the router (kvlease route)");
  if (auto started = cluster_.start("router", {.command = "route", .arguments = arguments});
      !started) {
    return started;
  }
  const auto free = blocks_free();
  if (!free) return std::unexpected(free.error());
  blocks_free_before_ = *free;
  return {};
}

Cluster::CompletionCall Demo::completion(const DemoRequest& request) const {
  return {.prompt = request.prompt,
          .max_tokens = kMaxTokens,
          .request_id = request.id,
          .kv_transfer_params = "",
          .ignore_eos = true,
          .timeout = std::chrono::seconds{60} + 20 * times_.duration};
}

Result<DemoRequest*> Demo::new_request() {
  return new_request(prompt_text(static_cast<std::uint32_t>(requests_.size())));
}

Result<DemoRequest*> Demo::new_request(std::string prompt) {
  const std::size_t number = requests_.size();
  DemoRequest& request = *requests_.emplace_back(std::make_unique<DemoRequest>());
  request.id = "r" + std::to_string(number);
  request.prompt = std::move(prompt);
  const auto expected = cluster_.complete("single", completion(request));
  if (!expected) return std::unexpected(expected.error());
  request.expected = expected->text;
  return &request;
}

void Demo::send(DemoRequest& request, const std::string& to, bool stream,
                const std::string& params) {
  Cluster::CompletionCall call = completion(request);
  call.stream = stream;
  call.kv_transfer_params = params;
  request.begun = cluster_.now();
  request.call = cluster_.begin_completion(to, call);
}

void Demo::take_answers() {
  for (const auto& request : requests_) {
    if (request->seconds || !request->call || !request->call->result) continue;
    const Result<CompletionResult>& answer = *request->call->result;
    request->seconds = to_seconds(cluster_.now() - request->begun);
    request->identical = answer && answer->text == request->expected;
    if (!answer) request->note = answer.error().message;
    say("client", request->id + (answer ? " has its text: \"" + answer->text.substr(0, 24) + "…\""
                                        : " failed: " + request->note));
  }
}

Result<void> Demo::wait_for_answers() {
  const Duration limit = std::chrono::seconds{60} + 20 * times_.duration;
  const bool all = cluster_.wait_until(
      [&] {
        take_answers();
        return std::ranges::all_of(requests_, [](const auto& r) { return r->seconds.has_value(); });
      },
      limit);
  return all ? Result<void>{} : error(ErrorCode::kTimeout, "not all requests were answered");
}

Result<void> Demo::wait_longer_than_a_lease() {
  title("requests that wait in the decoders' queues for longer than a lease");
  const std::size_t first = requests_.size();
  for (std::uint32_t i = 0; i < options_.requests; ++i) {
    if (const auto made = new_request(); !made) return std::unexpected(made.error());
  }
  say("client", "sends " + std::to_string(options_.requests) +
                    " requests to the router at once, every other one streamed");
  for (std::size_t i = first; i < requests_.size(); ++i) {
    send(*requests_[i], "router", i % 2 == 1, "");
  }
  return wait_for_answers();
}

// D holds what it has computed, the router remembers it, and P reads it in the next turn.
Result<void> Demo::converse() {
  title("a conversation: P reads from D what D has computed in the turn before");
  std::string conversation = "Once upon a time there was a cache.";
  for (std::uint32_t turn = 0; turn < kTurns; ++turn) {
    const auto made = new_request(conversation + " What happened next in it, in some detail?");
    if (!made) return std::unexpected(made.error());
    DemoRequest& request = **made;
    request.note = "turn " + std::to_string(turn + 1);
    Cluster::CompletionCall call = completion(request);
    call.conversation_id = "demo";
    request.begun = cluster_.now();
    request.call = cluster_.begin_completion("router", call);
    if (const auto done = wait_for_answers(); !done) return done;
    conversation = request.prompt + request.expected;
  }
  const std::uint64_t reads = events_seen_["P1 read_validated"] + events_seen_["P2 read_validated"];
  if (reads < (kTurns - 1) * options_.prefill_tp) {
    return error(ErrorCode::kUnavailable, "P has not read what D held: " + std::to_string(reads) +
                                              " reads in " + std::to_string(kTurns) + " turns");
  }
  return {};
}

// As a client does that knows its instances, and needs no router.
Result<void> Demo::hand_over_directly(DemoRequest& request) {
  Cluster::CompletionCall call = completion(request);
  call.max_tokens = 1;
  call.kv_transfer_params = R"({"do_remote_decode":true,"do_remote_prefill":false})";
  const auto prefilled = cluster_.complete(kPrefills[0], call);
  if (!prefilled) return std::unexpected(prefilled.error());
  send(request, kDoomed, false, prefilled->kv_transfer_params);
  return {};
}

Result<void> Demo::kill_a_decoder() {
  title("a decoder is killed with leases in its queue");
  std::vector<DemoRequest*> fresh;
  for (std::uint32_t i = 0; i < kRoutedInSecondStory + kDirectInSecondStory; ++i) {
    auto made = new_request();
    if (!made) return std::unexpected(made.error());
    fresh.push_back(*made);
  }
  say("client", "sends " + std::to_string(kRoutedInSecondStory) + " requests to the router, and " +
                    std::to_string(kDirectInSecondStory) + " to " + kDoomed + " by itself");
  for (std::uint32_t i = 0; i < kRoutedInSecondStory; ++i) send(*fresh[i], "router", false, "");
  // Until it has all that it can run and load: what comes now has to queue.
  const std::string reads = std::string(kDoomed) + " read_posted";
  const std::uint64_t reads_before = events_seen_[reads];
  const Duration limit = std::chrono::seconds{60} + 2 * times_.duration;
  cluster_.wait_until([&] { return events_seen_[reads] >= reads_before + 2; }, limit);
  for (std::uint32_t i = kRoutedInSecondStory; i < fresh.size(); ++i) {
    if (const auto done = hand_over_directly(*fresh[i]); !done) return done;
  }
  const auto all_queued = [&] {
    return std::ranges::all_of(
        std::views::drop(fresh, kRoutedInSecondStory),
        [this](const DemoRequest* request) { return is_tracked(request->id, kDoomed); });
  };
  if (!cluster_.wait_until(all_queued, limit)) {
    return error(ErrorCode::kTimeout, std::string(kDoomed) + " has no leases in its queue");
  }
  const Instant queued_at = cluster_.now();
  cluster_.wait_until([&] { return last_heartbeat_[kDoomed] > queued_at; }, limit);
  cluster_.signal(kDoomed, SIGKILL);
  const Instant killed_at = cluster_.now();
  const std::vector<std::string> doomed = live_leases_of(kDoomed);
  say("demo", std::string("kill -9 ") + kDoomed + ", with " + std::to_string(doomed.size()) +
                  " leases in its queue");
  if (const auto done = wait_for_reclaim(doomed, killed_at); !done) return done;
  for (std::uint32_t i = kRoutedInSecondStory; i < fresh.size(); ++i) {
    DemoRequest& request = *fresh[i];
    cluster_.wait_until([&] { return request.call->result.has_value(); }, limit);
    say("client", request.id + " has lost its decoder and asks again, through the router");
    request.note = "asked twice";
    send(request, "router", false, "");
  }
  return wait_for_answers();
}

// The leases that the router knows of are released; the others end by themselves, in time (L3).
Result<void> Demo::wait_for_reclaim(const std::vector<std::string>& doomed, Instant killed_at) {
  Instant bound = last_heartbeat_[kDoomed] + times_.extension;
  for (const std::string& id : doomed) {
    bound = std::max(bound, leases_.at(id).granted_at + times_.duration);
  }
  const auto all_ended = [&] {
    return std::ranges::all_of(doomed, [&](const std::string& id) { return ended(id); });
  };
  if (!cluster_.wait_until(all_ended, std::chrono::seconds{60} + 2 * times_.duration)) {
    return error(ErrorCode::kTimeout, "the leases of the killed decoder do not end");
  }
  Instant last = killed_at;
  for (const std::string& id : doomed) last = std::max(last, *leases_.at(id).ended_at);
  reclaim_seconds_ = to_seconds(last - killed_at);
  reclaim_bound_seconds_ = to_seconds(bound - killed_at);
  say("demo", "all blocks that " + std::string(kDoomed) + " held at P1 and P2 are free again");
  return {};
}

Result<std::uint64_t> Demo::blocks_free() {
  std::uint64_t free = 0;
  for (const char* name : kPrefills) {
    const auto ledger = cluster_.ledger(name);
    if (!ledger) return std::unexpected(ledger.error());
    free += ledger->blocks_free;
  }
  return free;
}

Result<void> Demo::finish() {
  title("the end");
  for (const char* name : kPrefills) {
    const auto ledger =
        cluster_.wait_for_ledger(name, std::chrono::seconds{30} + times_.duration,
                                 [](const InstanceLedger& seen) { return seen.all_blocks_back(); });
    if (!ledger) return std::unexpected(ledger.error());
    leases_granted_ += ledger->granted;
    balanced_ = balanced_ && ledger->all_blocks_back();
    for (const auto& [end, count] : ledger->ended) leases_by_end_[end] += count;
  }
  const auto free = blocks_free();
  if (!free) return std::unexpected(free.error());
  blocks_free_after_ = *free;
  for (const char* name : {"router", "D1", "P1", "P2", "single"}) {
    if (auto stopped = cluster_.stop(name); !stopped) return stopped;
  }
  seconds_ = to_seconds(cluster_.now() - begun_);
  say("demo", "all processes have ended by themselves after SIGTERM");
  return {};
}

std::size_t Demo::identical() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(requests_, [](const auto& request) { return request->identical; }));
}

bool Demo::good() const {
  return identical() == requests_.size() && blocks_free_after_ == blocks_free_before_ &&
         balanced_ && reclaim_seconds_ <= reclaim_bound_seconds_ + kReclaimSlackSeconds;
}

std::string Demo::json() const {
  JsonWriter ends;
  for (const auto& [end, count] : leases_by_end_) ends.integer(end, count);
  JsonWriter json;
  json.integer("requests", requests_.size());
  json.integer("identical", identical());
  json.integer("leases_granted", leases_granted_);
  json.json("leases_by_end", ends.take());
  json.integer("blocks_free_before", blocks_free_before_);
  json.integer("blocks_free_after", blocks_free_after_);
  json.number("reclaim_after_kill_s", reclaim_seconds_);
  json.number("reclaim_bound_s", reclaim_bound_seconds_);
  json.number("seconds", seconds_);
  return json.take();
}

void Demo::print_requests() {
  print("\n%-9s %-10s %9s  %s\n", "request", "text", "seconds", "note");
  for (const auto& request : requests_) {
    print("%-9s %-10s %9.3f  %s\n", request->id.c_str(),
          request->identical ? "identical" : "DIFFERENT", request->seconds.value_or(0),
          request->note.c_str());
  }
}

void Demo::print_figures() {
  const auto line = [this](const char* name, const std::string& value) {
    print("%-28s %s\n", name, value.c_str());
  };
  print("\n");
  line("requests", std::to_string(requests_.size()));
  line("identical texts", std::to_string(identical()));
  line("leases granted by P1 and P2", std::to_string(leases_granted_));
  for (const auto& [end, count] : leases_by_end_) line(("  " + end).c_str(), std::to_string(count));
  line("heartbeats sent by D1, D2", std::to_string(events_seen_["heartbeat_sent"]));
  char reclaim[64];
  std::snprintf(reclaim, sizeof reclaim, "%.2f s (bound: %.2f s)", reclaim_seconds_,
                reclaim_bound_seconds_);
  line("blocks back after the kill", reclaim);
  line("blocks free before, after",
       std::to_string(blocks_free_before_) + ", " + std::to_string(blocks_free_after_));
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.1f", seconds_);
  line("seconds", seconds);
}

bool Demo::summarize() {
  if (options_.json) {
    std::printf("%s\n", json().c_str());
  } else {
    print_requests();
    print_figures();
  }
  return good();
}

}  // namespace

int run_demo(std::span<const std::string> arguments) {
  CLI::App app("Shows leased hand-offs between real processes over real NIXL.", "kvlease demo");
  DemoOptions options;
  app.add_option("--requests", options.requests, "requests that are sent to the router at once")
      ->check(integer_between(1, 1000))
      ->capture_default_str();
  app.add_option("--kv-lease-duration", options.lease_seconds, "seconds")
      ->check(number_between(0.5, 600))
      ->capture_default_str();
  app.add_option("--prefill-tp", options.prefill_tp, "ranks of each prefill instance")
      ->check(integer_between(1, 8))
      ->capture_default_str();
  app.add_option("--decode-tp", options.decode_tp, "ranks of each decode instance")
      ->check(integer_between(1, 8))
      ->capture_default_str();
  app.add_flag("--multi-turn", options.multi_turn, "show a conversation, too");
  app.add_option("--nixl-path", options.nixl_path, "as for kvlease serve");
  app.add_flag("--json", options.json, "print the result as JSON, and the story on stderr");
  if (const auto exit_code = parse_arguments(app, arguments)) return *exit_code;
  Demo demo(options);
  if (const auto done = demo.run(); !done) {
    std::fprintf(stderr, "kvlease demo: %s\n", done.error().message.c_str());
    return 1;
  }
  return demo.summarize() ? 0 : 1;
}

}  // namespace kvlease
