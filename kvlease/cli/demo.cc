// `kvlease demo`: two prefill and two decode instances behind the router, as real processes over
// real NIXL, and the two stories of a lease. Requests wait in the decoders' queues for longer than
// a lease, and heartbeats keep their blocks; then a decoder is killed with leases in its queue, and
// the blocks come back within seconds. Every text is compared with a single instance's.
#include "kvlease/cli/demo.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <ranges>

#include "kvlease/cli/arguments.h"
#include "kvlease/cli/command.h"
#include "kvlease/cli/demo_overload.h"
#include "kvlease/cli/validators.h"
#include "kvlease/wire/json_fields.h"

namespace kvlease {
namespace {

constexpr std::uint32_t kMaxTokens = 48;
// Of each decode instance: what one request runs in and one more is loaded into, so that others
// have to wait with their leases.
constexpr std::uint32_t kDecodeBlocks = 64;
// Requests of the second story: through the router, and from a client that chose its instances.
constexpr std::uint32_t kRoutedInSecondStory = 6;
constexpr std::uint32_t kDirectInSecondStory = 2;
// Of the conversation.
constexpr std::uint32_t kTurns = 4;
constexpr std::uint32_t kHoldSeconds = 20;
constexpr const char* kPrefills[] = {"P1", "P2"};
constexpr const char* kDoomed = "D2";
constexpr const char* kLost = "D3";
constexpr std::uint32_t kRoutedInFailover = 12;

}  // namespace

std::string demo_prompt(std::uint32_t number) {
  std::string text = "Prompt " + std::to_string(number) + ":";
  for (std::uint32_t i = 0; i < 12 + number % 5; ++i) {
    text += " line " + std::to_string(i * 7 + number) + " of a long document;";
  }
  return text;
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
  std::vector<std::string> names{"P1", "P2", "single"};
  for (const std::string& name : decodes()) names.push_back(name);
  for (const std::string& name : names) {
    instances.emplace_back(name, Cluster::StartOptions{.arguments = instance_arguments(name)});
  }
  if (auto started = cluster_.start_all(std::move(instances)); !started) return started;
  std::vector<std::string> arguments;
  const auto add = [&](const char* flag, const std::string& name) {
    arguments.insert(arguments.end(),
                     {flag, "http://127.0.0.1:" + std::to_string(cluster_.port(name))});
  };
  for (const char* name : kPrefills) add("--prefill", name);
  for (const std::string& name : decodes()) add("--decode", name);
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
  return new_request(demo_prompt(static_cast<std::uint32_t>(requests_.size())));
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

// The router knows the lease of what waits there, and has kept it alive.
Result<void> Demo::fail_over() {
  title("a decoder is killed, and another one reads the leases that wait in its queue");
  std::vector<DemoRequest*> fresh;
  for (std::uint32_t i = 0; i < kRoutedInFailover; ++i) {
    const auto made = new_request();
    if (!made) return std::unexpected(made.error());
    fresh.push_back(*made);
  }
  say("client", "sends " + std::to_string(kRoutedInFailover) + " requests to the router");
  for (DemoRequest* request : fresh) send(*request, "router", false, "");
  if (!cluster_.wait_until([this] { return live_leases_of(kLost).size() >= 2; },
                           std::chrono::seconds{60})) {
    return error(ErrorCode::kTimeout, std::string(kLost) + " has no leases in its queue");
  }
  const std::vector<std::string> lost = live_leases_of(kLost);
  const std::uint64_t granted = events_seen_["lease_granted"];
  cluster_.signal(kLost, SIGKILL);
  say("demo", std::string("kill -9 ") + kLost + ", with " + std::to_string(lost.size()) +
                  " leases in its queue");
  if (const auto done = wait_for_answers(); !done) return done;
  moved_ += moved_from(kLost, lost);
  say("demo", std::to_string(moved_) + " of them were read by other decoders; " +
                  std::to_string(events_seen_["lease_granted"] - granted) +
                  " prompts were prefilled after the kill");
  return {};
}

std::size_t Demo::moved_from(const std::string& decode, const std::vector<std::string>& leases) {
  return static_cast<std::size_t>(std::ranges::count_if(
      leases, [&](const std::string& id) { return leases_.at(id).decode != decode; }));
}

std::vector<std::string> Demo::decodes() const {
  std::vector<std::string> names{"D1", kDoomed};
  if (options_.failover) names.emplace_back(kLost);
  return names;
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

// The router hands those that it knows of to another decoder; the others end by themselves, in
// time (L3).
Result<void> Demo::wait_for_reclaim(const std::vector<std::string>& doomed, Instant killed_at) {
  const auto is_left = [&](const std::string& id) {
    return leases_.at(id).decode == kDoomed && !ended(id);
  };
  if (!cluster_.wait_until([&] { return std::ranges::none_of(doomed, is_left); },
                           std::chrono::seconds{60} + 2 * times_.duration)) {
    return error(ErrorCode::kTimeout, "the leases of the killed decoder do not end");
  }
  Instant bound = last_heartbeat_[kDoomed] + times_.extension;
  Instant last = killed_at;
  for (const std::string& id : doomed) {
    const DemoLease& lease = leases_.at(id);
    if (lease.decode != kDoomed) continue;
    bound = std::max(bound, lease.granted_at + times_.duration);
    last = std::max(last, *lease.ended_at);
  }
  moved_ += moved_from(kDoomed, doomed);
  reclaim_seconds_ = to_seconds(last - killed_at);
  reclaim_bound_seconds_ = to_seconds(bound - killed_at);
  say("demo",
      "all blocks that " + std::string(kDoomed) + " alone held at P1 and P2 are free again");
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
  app.add_flag("--failover", options.failover,
               "show a decoder's leases being read by another, too");
  OverloadOptions overload;
  bool overloaded = false;
  app.add_flag("--overload", overloaded, "instead: offer three times what the instances can do");
  app.add_option("--overload-seconds", overload.seconds, "of overload, in three parts")
      ->check(integer_between(3, 3600))
      ->needs("--overload")
      ->capture_default_str();
  app.add_option("--nixl-path", options.nixl_path, "as for kvlease serve");
  app.add_flag("--json", options.json, "print the result as JSON, and the story on stderr");
  if (const auto exit_code = parse_arguments(app, arguments)) return *exit_code;
  if (overloaded) {
    overload.json = options.json;
    overload.nixl_path = options.nixl_path;
    return run_overload(overload);
  }
  Demo demo(options);
  if (const auto done = demo.run(); !done) {
    std::fprintf(stderr, "kvlease demo: %s\n", done.error().message.c_str());
    return 1;
  }
  return demo.summarize() ? 0 : 1;
}

}  // namespace kvlease
