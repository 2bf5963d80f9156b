// Implements cluster_watch.h.
#include "kvlease/serving/cluster_watch.h"

#include <algorithm>
#include <utility>

#include "kvlease/base/check.h"
#include "kvlease/obs/printable.h"
#include "kvlease/serving/access.h"
#include "kvlease/serving/view_json.h"
#include "kvlease/wire/json_fields.h"

namespace kvlease {
namespace {

constexpr std::size_t kInstancesMax = 256;
constexpr std::size_t kProblemBytesMax = 200;
constexpr std::size_t kBodyBytesMax = std::size_t{1} << 20;

std::string text_of(const HttpUrl& url) { return "http://" + host_and_port(url.host, url.port); }

// What an error's body says, or its beginning.
std::string refusal(const HttpResponse& response) {
  std::optional<Error> problem;
  std::string message;
  JsonObject body = open_json(response.body, kBodyBytesMax, "the answer", problem);
  if (auto inner = body.object("error", true)) inner->string("message", kAnyText, message);
  return "HTTP " + std::to_string(response.status) + ": " + (problem ? response.body : message);
}

template <typename View>
Result<View> read_answer(const Result<HttpResponse>& response,
                         Result<View> (*parse)(std::string_view json)) {
  if (!response) return std::unexpected(response.error());
  if (response->status != 200) return error(ErrorCode::kUnavailable, refusal(*response));
  return parse(response->body);
}

}  // namespace

Result<std::optional<std::vector<WatchedInstance>>> instances_of_router(std::string_view json) {
  std::optional<Error> problem;
  JsonObject body = open_json(json, kBodyBytesMax, "the answer", problem);
  if (problem || !body.rest().contains("instances")) return std::nullopt;
  std::vector<WatchedInstance> instances;
  const auto elements = body.array("instances", true, "an array of instances");
  for (const std::string_view element : elements.value_or(std::vector<std::string_view>{})) {
    if (instances.size() == kInstancesMax) break;
    JsonObject instance(element, "instances[" + std::to_string(instances.size()) + "]", problem);
    std::string url_text;
    std::string role;
    instance.string("url", kAnyText, url_text);
    instance.string("role", kAnyText, role);
    if (problem) break;
    const auto url = parse_http_url(url_text);
    if (!url) return std::unexpected(url.error());
    instances.push_back({.url = *url, .role = printable(role, kProblemBytesMax)});
  }
  if (problem) return std::unexpected(*problem);
  return instances;
}

ClusterWatch::ClusterWatch(EventLoop& loop, std::string peer_key)
    : loop_(loop), peer_key_(std::move(peer_key)) {}

void ClusterWatch::set_instances(const std::vector<WatchedInstance>& instances) {
  KVL_CHECK(!asking(), "a round is over before the next one's instances are named");
  std::deque<Instance> next;
  for (const WatchedInstance& who : instances) {
    const auto known =
        std::ranges::find(instances_, who, [](const Instance& instance) { return instance.who; });
    if (known != instances_.end()) {
      next.push_back(std::move(*known));
      instances_.erase(known);
    } else {
      next.emplace_back().who = who;
    }
  }
  instances_ = std::move(next);
}

void ClusterWatch::ask(std::move_only_function<void()> done) {
  KVL_CHECK(!asking() && !instances_.empty(), "there is somebody to ask, and no round under way");
  done_ = std::move(done);
  open_calls_ = 2 * instances_.size();
  for (Instance& instance : instances_) {
    instance.leases_call = HttpCall::start(
        loop_, call(instance, std::string(kLeasesPath)),
        [this, &instance](const Result<HttpResponse>& response) { on_leases(instance, response); });
    const std::string after = "?after=" + std::to_string(instance.last_event);
    instance.events_call = HttpCall::start(
        loop_, call(instance, std::string(kEventsPath) + after),
        [this, &instance](const Result<HttpResponse>& response) { on_events(instance, response); });
  }
}

HttpCallOptions ClusterWatch::call(const Instance& instance, std::string target) const {
  HttpCallOptions call{.host = instance.who.url.host,
                       .port = instance.who.url.port,
                       .target = std::move(target),
                       .connect_timeout = kAnswerTimeout,
                       .timeout = kAnswerTimeout,
                       .response_bytes_max = kViewBytesMax};
  if (!peer_key_.empty()) call.headers.add(std::string(kPeerKeyHeader), peer_key_);
  return call;
}

void ClusterWatch::on_leases(Instance& instance, const Result<HttpResponse>& response) {
  Result<InstanceView> view = read_answer(response, parse_instance_view);
  instance.problem = view ? "" : printable(view.error().message, kProblemBytesMax);
  instance.view.reset();
  if (view) instance.engine = view->engine;
  if (view) instance.view = *std::move(view);
  on_answered();
}

void ClusterWatch::on_events(Instance& instance, const Result<HttpResponse>& response) {
  const Result<EventsView> answer = read_answer(response, parse_events_view);
  if (answer && answer->incarnation != instance.incarnation) {
    // Another start counts anew: what this answer lacks comes with the next.
    const bool first = instance.last_event == 0;
    instance.incarnation = answer->incarnation;
    instance.last_event = 0;
    if (!first) return on_answered();
  }
  if (answer) {
    const bool is_gap = answer->missed > 0 && instance.last_event > 0;
    if (is_gap) {
      instance.events.push_back(
          {.event = {.event = "events_missed", .count = answer->missed}, .at = loop_.now()});
    }
    for (const EventView& event : answer->events) {
      const double age_s = std::clamp(event.age_s, 0.0, 1e9);
      instance.events.push_back({.event = event, .at = loop_.now() - from_seconds(age_s)});
    }
    instance.last_event = answer->last;
    while (instance.events.size() > kEventsKept) instance.events.pop_front();
  }
  on_answered();
}

void ClusterWatch::on_answered() {
  if (--open_calls_ > 0) return;
  std::exchange(done_, nullptr)();
}

ClusterView ClusterWatch::view(Instant now) const {
  ClusterView view;
  for (const Instance& instance : instances_) {
    InstanceRow& row = view.instances.emplace_back(InstanceRow{.url = text_of(instance.who.url),
                                                               .role = instance.who.role,
                                                               .engine = instance.engine,
                                                               .problem = instance.problem,
                                                               .view = instance.view,
                                                               .events = {}});
    for (auto seen = instance.events.rbegin(); seen != instance.events.rend(); ++seen) {
      row.events.push_back(seen->event);
      row.events.back().age_s = to_seconds(now - seen->at);
    }
  }
  return view;
}

}  // namespace kvlease
