// Implements cluster.h.
#include "kvlease/serving/cluster.h"

#include <algorithm>
#include <csignal>
#include <ranges>
#include <utility>

#include "kvlease/base/check.h"
#include "kvlease/base/text.h"
#include "kvlease/wire/json_fields.h"

namespace kvlease {
namespace {

// For conditions that no callback of the loop brings about.
constexpr Duration kLookAgain = std::chrono::milliseconds{5};

constexpr Duration kStartLimit = std::chrono::seconds{60};
constexpr Duration kCallLimit = std::chrono::seconds{60};
constexpr Duration kStopLimit = std::chrono::seconds{40};  // more than the default drain
constexpr std::string_view kListening = "listening on ";
constexpr std::size_t kLastLinesMax = 10;
constexpr Duration kAskAgain = std::chrono::milliseconds{20};

std::optional<std::uint16_t> port_of(std::string_view line) {
  const std::string_view address = line.substr(kListening.size());
  const std::size_t end = address.find(' ');
  const std::size_t colon = address.rfind(':', end);
  if (end == std::string_view::npos || colon == std::string_view::npos) return std::nullopt;
  return parse_number<std::uint16_t>(address.substr(colon + 1, end - colon - 1));
}

std::optional<InstanceEvent> parse_event(std::string_view line, std::string instance, Instant at) {
  std::optional<Error> problem;
  JsonObject json = open_json(line, 1 << 20, "an event", problem);
  InstanceEvent event{.at = at, .instance = std::move(instance)};
  json.string("event", kAnyText, event.kind);
  std::optional<std::string> lease;
  std::optional<std::string> request;
  std::optional<std::string> peer;
  std::optional<std::string> detail;
  json.string("lease", kAnyText, lease);
  json.string("request", kAnyText, request);
  json.string("peer", kAnyText, peer);
  json.string("detail", kAnyText, detail);
  std::optional<std::uint64_t> count;
  std::optional<double> length_seconds;
  json.integer("count", {}, count);
  json.number("length_s", length_seconds);
  if (problem) return std::nullopt;
  event.count = count.value_or(0);
  event.length_seconds = length_seconds.value_or(0);
  event.lease = lease.value_or("");
  event.request = request.value_or("");
  event.peer = peer.value_or("");
  event.detail = detail.value_or("");
  return event;
}

// An answer in one piece, or one piece of a stream.
void add_piece(std::string_view text, CompletionResult& result, std::optional<Error>& problem) {
  JsonObject json = open_json(text, 1 << 26, "the answer", problem);
  if (const auto it = json.rest().find("kv_transfer_params"); it != json.rest().end()) {
    result.kv_transfer_params = std::string(it->second);
  }
  const auto choices = json.array("choices", true, "one choice");
  if (!choices || choices->empty()) return;
  std::string piece;
  JsonObject(choices->front(), "choices[0]", problem).string("text", kAnyText, piece);
  result.text += piece;
}

Result<CompletionResult> parse_stream(std::string_view body) {
  constexpr std::string_view kData = "data: ";
  constexpr std::string_view kEnd = "\n\n";
  CompletionResult result;
  std::optional<Error> problem;
  while (body.starts_with(kData) && !problem) {
    const std::size_t end = body.find(kEnd);
    if (end == std::string_view::npos) break;
    const std::string_view piece = body.substr(kData.size(), end - kData.size());
    if (piece == "[DONE]") return result;
    add_piece(piece, result, problem);
    body.remove_prefix(end + kEnd.size());
  }
  if (problem) return std::unexpected(*problem);
  return error(ErrorCode::kUnavailable,
               "the stream ends before its end: \"" + std::string(body.substr(0, 200)) + '"');
}

Result<CompletionResult> parse_completion(const Result<HttpResponse>& response) {
  if (!response) return std::unexpected(response.error());
  if (response->status != 200) {
    return error(ErrorCode::kUnavailable,
                 "HTTP " + std::to_string(response->status) + ": " + response->body);
  }
  const std::string_view type = response->headers.find("Content-Type").value_or("");
  if (type.starts_with("text/event-stream")) return parse_stream(response->body);
  CompletionResult result;
  std::optional<Error> problem;
  add_piece(response->body, result, problem);
  if (problem) return std::unexpected(*problem);
  return result;
}

std::string completion_request(const Cluster::CompletionCall& call) {
  JsonWriter body;
  body.string("model", "synthetic");
  body.string("prompt", call.prompt);
  body.integer("max_tokens", call.max_tokens);
  if (!call.conversation_id.empty()) body.string("conversation_id", call.conversation_id);
  if (call.stream) body.boolean("stream", true);
  if (call.ignore_eos) body.boolean("ignore_eos", true);
  if (!call.kv_transfer_params.empty()) body.json("kv_transfer_params", call.kv_transfer_params);
  return body.take();
}

}  // namespace

Cluster::Cluster(Options options) : options_(std::move(options)) {}

Cluster::~Cluster() = default;

Cluster::Child& Cluster::child(const std::string& name) {
  const auto it = std::ranges::find(children_, name, &Child::name);
  KVL_CHECK(it != children_.end(), "an instance that was started");
  return *it;
}

Result<void> Cluster::start(const std::string& name, StartOptions options) {
  std::vector<std::pair<std::string, StartOptions>> one;
  one.emplace_back(name, std::move(options));
  return start_all(std::move(one));
}

Result<void> Cluster::start_all(std::vector<std::pair<std::string, StartOptions>> children) {
  const std::size_t first = children_.size();
  for (auto& [name, options] : children) {
    if (const auto spawned = spawn(name, std::move(options)); !spawned) return spawned;
  }
  const auto started = std::views::drop(children_, static_cast<std::ptrdiff_t>(first));
  wait_until(
      [&] {
        return std::ranges::all_of(
            started, [](const Child& child) { return child.port != 0 || child.exit.has_value(); });
      },
      kStartLimit);
  for (const Child& child : started) {
    if (const auto good = check_started(child); !good) return good;
  }
  return {};
}

Result<void> Cluster::spawn(const std::string& name, StartOptions options) {
  KVL_CHECK(std::ranges::find(children_, name, &Child::name) == children_.end(), "a new name");
  Child& child = children_.emplace_back();
  child.name = name;
  std::vector<std::string> argv{options_.binary, options.command, "--port",
                                std::to_string(options.port), "--log-events"};
  argv.insert(argv.end(), options.arguments.begin(), options.arguments.end());
  auto process = ChildProcess::spawn(
      loop_, {.argv = std::move(argv),
              .environment = std::move(options.environment),
              .on_line = [this, &child](OutputStream stream,
                                        std::string_view line) { on_line(child, stream, line); },
              .on_exit = [&child](ExitStatus status) { child.exit = status; }});
  if (!process) return std::unexpected(process.error());
  child.process.emplace(std::move(*process));
  return {};
}

Result<void> Cluster::check_started(const Child& child) const {
  if (child.port != 0) return {};
  std::string words;
  for (const std::string& line : child.last_lines) words += "\n  " + line;
  return error(ErrorCode::kUnavailable,
               child.name + " did not come up (" +
                   (child.exit ? to_string(*child.exit) : std::string("no answer in time")) +
                   "):" + words);
}

Result<void> Cluster::stop(const std::string& name) {
  Child& child = this->child(name);
  child.process->kill(SIGTERM);
  if (!wait_until([&] { return child.exit.has_value(); }, kStopLimit)) {
    return error(ErrorCode::kTimeout, name + " does not end after SIGTERM");
  }
  if (child.exit->success()) return {};
  return error(ErrorCode::kUnavailable, name + ": " + to_string(*child.exit));
}

void Cluster::signal(const std::string& name, int signal) { child(name).process->kill(signal); }

void Cluster::on_line(Child& child, OutputStream stream, std::string_view line) {
  if (stream == OutputStream::kStderr) {
    if (child.last_lines.size() == kLastLinesMax) child.last_lines.erase(child.last_lines.begin());
    child.last_lines.emplace_back(line);
  } else if (line.starts_with(kListening)) {
    child.port = port_of(line).value_or(0);
  } else if (!options_.on_event) {
    return;
  } else if (const auto event = parse_event(line, child.name, loop_.now())) {
    options_.on_event(*event);
  }
}

Result<HttpResponse> Cluster::call(const std::string& name, HttpCallOptions options) {
  options.host = "127.0.0.1";
  options.port = child(name).port;
  options.timeout = kCallLimit;
  std::optional<Result<HttpResponse>> answer;
  const HttpCall call = HttpCall::start(
      loop_, std::move(options), [&](Result<HttpResponse> result) { answer = std::move(result); });
  wait_until([&] { return answer.has_value(); }, kForever);  // the call has its own limit
  return *answer;
}

HttpCall Cluster::begin_call(const std::string& name, HttpCallOptions options) {
  options.host = "127.0.0.1";
  options.port = child(name).port;
  return HttpCall::start(loop_, std::move(options), [](const Result<HttpResponse>&) {});
}

std::unique_ptr<Cluster::PendingCompletion> Cluster::begin_completion(const std::string& name,
                                                                      const CompletionCall& call) {
  auto pending = std::make_unique<PendingCompletion>();
  pending->call = HttpCall::start(
      loop_,
      {.host = "127.0.0.1",
       .port = child(name).port,
       .method = "POST",
       .target = "/v1/completions",
       .headers = {{"Content-Type", "application/json"}, {"X-Request-Id", call.request_id}},
       .body = completion_request(call),
       .timeout = call.timeout},
      [raw = pending.get()](Result<HttpResponse> response) {
        raw->status = response ? response->status : 0;
        raw->has_retry_after = response && response->headers.find("Retry-After").has_value();
        raw->result = parse_completion(response);
      });
  return pending;
}

Result<CompletionResult> Cluster::complete(const std::string& name, const CompletionCall& call) {
  const auto pending = begin_completion(name, call);
  wait_until([&] { return pending->result.has_value(); }, kForever);
  return *pending->result;
}

Result<InstanceLedger> Cluster::ledger(const std::string& name) {
  const auto response = call(name, {.target = "/kvlease/v1/leases"});
  if (!response) return std::unexpected(response.error());
  std::optional<Error> problem;
  JsonObject json = open_json(response->body, 1 << 26, "the leases", problem);
  InstanceLedger result;
  if (auto ledger = json.object("ledger", true)) {
    ledger->integer("granted", {}, result.granted);
    ledger->integer("live", {}, result.live);
    ledger->boolean("balanced", result.balanced);
    if (auto ended = ledger->object("ended", true)) {
      for (const auto& [end, count] : ended->rest()) {
        result.ended.emplace_back(end, json_integer(count, {}).value_or(0));
      }
    }
  }
  if (auto blocks = json.object("blocks", true)) {
    blocks->integer("leased", {}, result.blocks_leased);
    blocks->integer("quarantined", {}, result.blocks_quarantined);
    blocks->integer("in_use", {}, result.blocks_in_use);
    std::uint64_t free = 0;
    std::uint64_t cached = 0;
    blocks->integer("free", {}, free);
    blocks->integer("cached", {}, cached);
    result.blocks_free = free + cached;
  }
  if (auto counters = json.object("counters", true)) {
    for (const auto& [counter, count] : counters->rest()) {
      result.counters.emplace(counter, json_integer(count, {}).value_or(0));
    }
  }
  if (problem) return std::unexpected(*problem);
  return result;
}

Result<InstanceLedger> Cluster::wait_for_ledger(
    const std::string& name, Duration limit,
    const std::function<bool(const InstanceLedger&)>& condition) {
  const Instant end = saturating_add(loop_.now(), limit);
  for (;;) {
    Result<InstanceLedger> seen = ledger(name);
    if (!seen || condition(*seen) || loop_.now() >= end) return seen;
    wait_until([] { return false; }, kAskAgain);
  }
}

bool Cluster::wait_until(const std::function<bool()>& condition, Duration limit) {
  const Instant end = saturating_add(loop_.now(), limit);
  bool holds = false;
  loop_.run([&](Instant now) {
    holds = condition();
    if (holds || now >= end) loop_.stop();
    return earlier(end, now + kLookAgain);
  });
  return holds;
}

}  // namespace kvlease
