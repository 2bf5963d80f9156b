// Implements demo_overload.h. Decoding is the slower half, so leases wait in the decoders' queues
// for longer than they last unrenewed, and pile up on P until the router says no (L43, F14).
#include "kvlease/cli/demo_overload.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "kvlease/cli/demo.h"
#include "kvlease/runtime/process.h"
#include "kvlease/serving/cluster.h"
#include "kvlease/wire/json_fields.h"

namespace kvlease {
namespace {

constexpr std::uint32_t kParts = 3;
constexpr double kOfferedOverCapacity = 3;
constexpr double kGoodputMin = 0.9;
constexpr double kLeaseSeconds = 1;
constexpr std::uint32_t kPrompts = 16;
constexpr std::uint32_t kMaxTokens = 16;
// Under way at once while capacity is measured: more than the decoders run, fewer than P may lease.
constexpr std::size_t kClosedLoop = 10;
constexpr Duration kRampUp = std::chrono::seconds{1};
constexpr Duration kAnswerLimit = std::chrono::seconds{60};

struct Figures {
  std::uint64_t offered = 0;
  std::uint64_t answered = 0;  // with the right text
  std::uint64_t refused = 0;   // 503 with Retry-After
  std::uint64_t wrong = 0;     // any other answer
  std::uint64_t in_time = 0;   // of `answered`, while the part was measured
  double seconds = 0;
  double per_second() const { return static_cast<double>(in_time) / seconds; }
};

class Overload {
 public:
  explicit Overload(const OverloadOptions& options)
      : options_(options),
        cluster_({.binary = self_executable_path(),
                  .on_event = [this](const InstanceEvent& event) { on_event(event); }}),
        begun_(cluster_.now()) {}

  Result<void> run();
  bool summarize();

 private:
  struct Sent {
    std::unique_ptr<Cluster::PendingCompletion> call;
    std::uint32_t prompt = 0;
  };
  Result<void> start();
  std::vector<std::string> instance_arguments(const std::string& name) const;
  Result<void> compute_expected();
  void on_event(const InstanceEvent& event);
  void send(Figures& figures);
  void take_answers(Figures& figures, bool measured);
  void measure_capacity(double seconds);
  void overload(double seconds);
  void finish_part(Figures& figures);
  bool good() const;
  std::string json() const;
  [[gnu::format(printf, 2, 3)]] void say(const char* format, ...);

  OverloadOptions options_;
  Cluster cluster_;
  Instant begun_;
  std::vector<std::string> expected_;
  std::vector<Sent> sent_;
  std::uint32_t next_ = 0;
  Figures capacity_;
  Figures overload_;
  std::map<std::string, std::uint64_t> events_;  // by kind
  std::map<std::string, std::uint64_t> ends_;    // of P's leases
  double longest_lease_seconds_ = 0;
  std::uint64_t granted_ = 0;
  bool balanced_ = false;
};

void Overload::say(const char* format, ...) {
  std::FILE* out = options_.json ? stderr : stdout;
  std::fprintf(out, "%8.3f s  ", to_seconds(cluster_.now() - begun_));
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(out, format, arguments);
  va_end(arguments);
  std::fputc('\n', out);
  std::fflush(out);
}

void Overload::on_event(const InstanceEvent& event) {
  if (event.instance == "single") return;
  ++events_[event.kind];
  if (event.kind == "lease_ended") {
    longest_lease_seconds_ = std::max(longest_lease_seconds_, event.length_seconds);
  }
}

std::vector<std::string> Overload::instance_arguments(const std::string& name) const {
  std::vector<std::string> arguments{"--no-enable-prefix-caching"};
  if (!options_.nixl_path.empty()) {
    arguments.insert(arguments.end(), {"--nixl-path", options_.nixl_path});
  }
  if (name == "single") return arguments;
  JsonWriter extra;
  extra.number("kv_lease_duration", kLeaseSeconds);
  JsonWriter config;
  config.string("kv_role", name == "P1" ? "kv_producer" : "kv_consumer");
  config.string("engine_id", name);
  config.json("kv_connector_extra_config", extra.take());
  arguments.insert(arguments.end(), {"--kv-transfer-config", config.take()});
  if (name == "P1") {  // a prompt in about 45 ms, and room for about 30 leases
    arguments.insert(arguments.end(),
                     {"--num-gpu-blocks", "1024", "--prefill-time-per-token", "0.0001"});
  } else {  // two answers at once, each in about 320 ms
    arguments.insert(arguments.end(), {"--max-num-seqs", "2", "--inter-token-latency", "0.02"});
  }
  return arguments;
}

Result<void> Overload::start() {
  say("starting P1, D1, D2 and a single instance to compare with, then the router");
  std::vector<std::pair<std::string, Cluster::StartOptions>> instances;
  for (const char* name : {"P1", "D1", "D2", "single"}) {
    std::vector<std::string> arguments = instance_arguments(name);
    instances.emplace_back(name, Cluster::StartOptions{.arguments = std::move(arguments)});
  }
  if (auto started = cluster_.start_all(std::move(instances)); !started) return started;
  const auto url = [&](const char* name) {
    return "http://127.0.0.1:" + std::to_string(cluster_.port(name));
  };
  return cluster_.start("router",
                        {.command = "route",
                         .arguments = {"--prefill", url("P1"), "--decode", url("D1"), url("D2")}});
}

Result<void> Overload::compute_expected() {
  for (std::uint32_t i = 0; i < kPrompts; ++i) {
    const auto answer = cluster_.complete("single", {.prompt = demo_prompt(i),
                                                     .max_tokens = kMaxTokens,
                                                     .request_id = "single",
                                                     .ignore_eos = true});
    if (!answer) return std::unexpected(answer.error());
    expected_.push_back(answer->text);
  }
  return {};
}

void Overload::send(Figures& figures) {
  const std::uint32_t number = next_++;
  ++figures.offered;
  sent_.push_back({cluster_.begin_completion("router", {.prompt = demo_prompt(number % kPrompts),
                                                        .max_tokens = kMaxTokens,
                                                        .request_id = "r" + std::to_string(number),
                                                        .ignore_eos = true,
                                                        .stream = number % 2 == 1,
                                                        .timeout = kAnswerLimit}),
                   number % kPrompts});
}

void Overload::take_answers(Figures& figures, bool measured) {
  std::erase_if(sent_, [&](const Sent& sent) {
    const auto& result = sent.call->result;
    if (!result) return false;
    if (*result && (*result)->text == expected_[sent.prompt]) {
      ++figures.answered;
      if (measured) ++figures.in_time;
    } else if (sent.call->status == 503 && sent.call->has_retry_after) {
      ++figures.refused;
    } else {
      ++figures.wrong;
      say("%s", *result ? "WRONG TEXT" : result->error().message.c_str());
    }
    return true;
  });
}

void Overload::finish_part(Figures& figures) {
  cluster_.wait_until(
      [&] {
        take_answers(figures, false);
        return sent_.empty();
      },
      kAnswerLimit);
}

// As many as are answered are sent.
void Overload::measure_capacity(double seconds) {
  const Instant from = cluster_.now() + kRampUp;
  const Instant until = from + from_seconds(seconds);
  cluster_.wait_until(
      [&] {
        const Instant now = cluster_.now();
        take_answers(capacity_, now >= from && now < until);
        while (sent_.size() < kClosedLoop && now < until) send(capacity_);
        return now >= until;
      },
      until - cluster_.now());
  capacity_.seconds += seconds;
  finish_part(capacity_);
  say("capacity so far: %.2f requests/s", capacity_.per_second());
}

// Whether they are answered or not.
void Overload::overload(double seconds) {
  const Duration gap = from_seconds(1 / (kOfferedOverCapacity * capacity_.per_second()));
  const Instant from = cluster_.now() + kRampUp;
  const Instant until = from + from_seconds(seconds);
  for (Instant next = cluster_.now(); next < until; next += gap) {
    const auto take = [&] {
      const Instant now = cluster_.now();
      take_answers(overload_, now >= from && now < until);
      return now >= next;
    };
    cluster_.wait_until(take, std::max(next - cluster_.now(), Duration::zero()));
    send(overload_);
  }
  overload_.seconds += seconds;
  finish_part(overload_);
  say("overload so far: %llu offered, %.2f answered/s, %llu told to come again",
      static_cast<unsigned long long>(overload_.offered), overload_.per_second(),
      static_cast<unsigned long long>(overload_.refused));
}

Result<void> Overload::run() {
  if (const auto done = start(); !done) return done;
  if (const auto done = compute_expected(); !done) return done;
  const double part = static_cast<double>(options_.seconds) / kParts;
  for (std::uint32_t i = 0; i < kParts; ++i) {
    measure_capacity(part / 2);
    overload(part);
  }
  const auto ledger = cluster_.wait_for_ledger(
      "P1", kAnswerLimit, [](const InstanceLedger& seen) { return seen.all_blocks_back(); });
  if (!ledger) return std::unexpected(ledger.error());
  balanced_ = ledger->all_blocks_back();
  granted_ = ledger->granted;
  for (const auto& [end, count] : ledger->ended) ends_[end] = count;
  for (const char* name : {"router", "D1", "D2", "P1", "single"}) {
    if (auto stopped = cluster_.stop(name); !stopped) return stopped;
  }
  return {};
}

bool Overload::good() const {
  const auto seen = [this](const char* kind) {
    const auto it = events_.find(kind);
    return it != events_.end() && it->second > 0;
  };
  return capacity_.wrong == 0 && overload_.wrong == 0 && overload_.refused > 0 && balanced_ &&
         ends_.at("expired") == 0 && !seen("load_failed") && !seen("decode_alone") &&
         overload_.per_second() >= kGoodputMin * capacity_.per_second();
}

std::string Overload::json() const {
  JsonWriter ends;
  for (const auto& [end, count] : ends_) ends.integer(end, count);
  JsonWriter json;
  json.number("capacity_per_s", capacity_.per_second());
  json.number("goodput_per_s", overload_.per_second());
  json.number("goodput_over_capacity", overload_.per_second() / capacity_.per_second());
  json.number("overload_s", overload_.seconds);
  json.integer("offered", overload_.offered);
  json.integer("answered", overload_.answered);
  json.integer("refused", overload_.refused);
  json.integer("wrong", capacity_.wrong + overload_.wrong);
  json.integer("leases_granted", granted_);
  json.json("leases_by_end", ends.take());
  json.number("lease_duration_s", kLeaseSeconds);
  json.number("longest_lease_s", longest_lease_seconds_);
  json.boolean("balanced", balanced_);
  return json.take();
}

bool Overload::summarize() {
  if (options_.json) {
    std::printf("%s\n", json().c_str());
    return good();
  }
  const auto line = [](const char* name, const char* format, auto... values) {
    std::printf("%-36s ", name);
    std::printf(format, values...);
    std::printf("\n");
  };
  const auto count = [](std::uint64_t n) { return static_cast<unsigned long long>(n); };
  std::printf("\n");
  line("capacity (requests/s)", "%.2f", capacity_.per_second());
  line("offered (requests/s)", "%.2f",
       static_cast<double>(overload_.offered) / (overload_.seconds + kParts * to_seconds(kRampUp)));
  line("goodput under overload (requests/s)", "%.2f, %.0f %% of capacity", overload_.per_second(),
       100 * overload_.per_second() / capacity_.per_second());
  line("told to come again (503)", "%llu of %llu", count(overload_.refused),
       count(overload_.offered));
  line("answered, all texts identical", "%llu", count(overload_.answered + capacity_.answered));
  line("other answers", "%llu", count(overload_.wrong + capacity_.wrong));
  line("leases granted", "%llu", count(granted_));
  for (const auto& [end, n] : ends_) line(("  " + end).c_str(), "%llu", count(n));
  line("longest lease (s), lasting unrenewed", "%.2f, %.0f", longest_lease_seconds_, kLeaseSeconds);
  line("ledger balanced, all blocks back", "%s", balanced_ ? "yes" : "NO");
  return good();
}

}  // namespace

int run_overload(const OverloadOptions& options) {
  Overload overload(options);
  if (const auto done = overload.run(); !done) {
    std::fprintf(stderr, "kvlease demo: %s\n", done.error().message.c_str());
    return 1;
  }
  return overload.summarize() ? 0 : 1;
}

}  // namespace kvlease
