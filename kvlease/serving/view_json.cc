// Implements view_json.h.
#include "kvlease/serving/view_json.h"

#include <utility>

#include "kvlease/obs/printable.h"
#include "kvlease/wire/json_fields.h"

namespace kvlease {
namespace {

constexpr std::size_t kTextBytesMax = 512;

void take_text(JsonObject& json, std::string_view name, std::string& out) {
  std::optional<std::string> text;
  json.string(name, kAnyText, text);
  if (text) out = printable(*text, kTextBytesMax);
}

void take_count(JsonObject& json, std::string_view name, std::uint64_t& out) {
  json.integer(name, {}, out);
}

void take_flag(JsonObject& json, std::string_view name, bool& out) {
  std::optional<bool> flag;
  json.boolean(name, flag);
  out = flag.value_or(false);
}

// Of the objects in an array field the first `count_max`, each as `take` reads it.
template <typename View, typename Take>
std::vector<View> take_list(JsonObject& json, std::string_view name, std::size_t count_max,
                            std::optional<Error>& problem, Take take) {
  std::vector<View> views;
  const auto elements = json.array(name, true, "an array of objects");
  if (!elements) return views;
  for (const std::string_view element : *elements) {
    if (views.size() == count_max) break;
    JsonObject object(element, std::string(name) + "[" + std::to_string(views.size()) + "]",
                      problem);
    take(object, views.emplace_back());
  }
  return views;
}

void take_lease(JsonObject& json, LeaseView& lease) {
  take_text(json, "id", lease.id);
  take_count(json, "slot", lease.slot);
  take_count(json, "blocks", lease.blocks);
  json.number("age_s", lease.age_s);
  json.number("slack_s", lease.slack_s);
  json.number("duration_s", lease.duration_s);
  take_text(json, "reader", lease.reader);
  take_flag(json, "hold", lease.hold);
}

void take_event(JsonObject& json, EventView& event) {
  take_count(json, "number", event.number);
  json.number("age_s", event.age_s);
  take_text(json, "event", event.event);
  take_text(json, "request", event.request);
  take_text(json, "lease", event.lease);
  take_text(json, "peer", event.peer);
  take_text(json, "detail", event.detail);
  take_count(json, "count", event.count);
  json.number("length_s", event.length_s);
}

std::string blocks_json(const BlocksView& blocks) {
  JsonWriter json;
  json.integer("free", blocks.free);
  json.integer("cached", blocks.cached);
  json.integer("in_use", blocks.in_use);
  json.integer("running", blocks.running);
  json.integer("leased", blocks.leased);
  json.integer("quarantined", blocks.quarantined);
  return json.take();
}

void take_blocks(JsonObject& json, BlocksView& blocks) {
  take_count(json, "free", blocks.free);
  take_count(json, "cached", blocks.cached);
  take_count(json, "in_use", blocks.in_use);
  take_count(json, "running", blocks.running);
  take_count(json, "leased", blocks.leased);
  take_count(json, "quarantined", blocks.quarantined);
}

std::string requests_json(const InstanceView& view) {
  JsonWriter json;
  json.integer("running", view.running);
  json.integer("waiting", view.waiting);
  json.integer("waiting_for_remote_kvs", view.waiting_for_remote_kvs);
  return json.take();
}

std::string tokens_json(const InstanceView& view) {
  JsonWriter json;
  json.integer("prompt", view.prompt_tokens);
  json.integer("cached", view.cached_tokens);
  json.integer("generated", view.generated_tokens);
  return json.take();
}

}  // namespace

std::string to_json(const LeaseView& lease) {
  JsonWriter json;
  json.string("id", lease.id);
  json.integer("slot", lease.slot);
  json.integer("blocks", lease.blocks);
  json.number("age_s", lease.age_s);
  json.number("slack_s", lease.slack_s);
  json.number("duration_s", lease.duration_s);
  if (lease.reader.empty()) {
    json.null("reader");
  } else {
    json.string("reader", lease.reader);
  }
  if (lease.hold) json.boolean("hold", true);
  return json.take();
}

std::string to_json(const EventView& event) {
  const auto text = [](JsonWriter& json, std::string_view name, const std::string& value) {
    if (!value.empty()) json.string(name, value);
  };
  JsonWriter json;
  json.integer("number", event.number);
  json.number("age_s", event.age_s);
  json.string("event", event.event);
  text(json, "request", event.request);
  text(json, "lease", event.lease);
  text(json, "peer", event.peer);
  text(json, "detail", event.detail);
  json.integer("count", event.count);
  json.number("length_s", event.length_s);
  return json.take();
}

std::string to_json(const InstanceView& view) {
  JsonWriter json;
  json.string("engine", view.engine);
  json.string("kv_role", view.role);
  json.string("status", view.status);
  json.json("blocks", blocks_json(view.blocks));
  json.json("requests", requests_json(view));
  json.integer("known_peers", view.known_peers);
  json.json("tokens", tokens_json(view));
  json.integer("leases_live", view.leases_live);
  json.json("leases",
            json_array_of(view.leases, [](const LeaseView& lease) { return to_json(lease); }));
  return json.take();
}

std::string to_json(const EventsView& view) {
  JsonWriter json;
  json.string("incarnation", view.incarnation);
  json.integer("last", view.last);
  json.integer("missed", view.missed);
  json.json("events",
            json_array_of(view.events, [](const EventView& event) { return to_json(event); }));
  return json.take();
}

Result<InstanceView> parse_instance_view(std::string_view json) {
  std::optional<Error> problem;
  JsonObject body = open_json(json, kViewBytesMax, "the answer", problem);
  InstanceView view;
  take_text(body, "engine", view.engine);
  take_text(body, "kv_role", view.role);
  take_text(body, "status", view.status);
  if (auto blocks = body.object("blocks", true)) take_blocks(*blocks, view.blocks);
  if (auto requests = body.object("requests", true)) {
    take_count(*requests, "running", view.running);
    take_count(*requests, "waiting", view.waiting);
    take_count(*requests, "waiting_for_remote_kvs", view.waiting_for_remote_kvs);
  }
  take_count(body, "known_peers", view.known_peers);
  if (auto tokens = body.object("tokens", true)) {
    take_count(*tokens, "prompt", view.prompt_tokens);
    take_count(*tokens, "cached", view.cached_tokens);
    take_count(*tokens, "generated", view.generated_tokens);
  }
  take_count(body, "leases_live", view.leases_live);
  view.leases = take_list<LeaseView>(body, "leases", kLeasesListedMax, problem, take_lease);
  if (problem) return std::unexpected(*std::move(problem));
  return view;
}

Result<EventsView> parse_events_view(std::string_view json) {
  std::optional<Error> problem;
  JsonObject body = open_json(json, kViewBytesMax, "the answer", problem);
  EventsView view;
  take_text(body, "incarnation", view.incarnation);
  take_count(body, "last", view.last);
  take_count(body, "missed", view.missed);
  view.events = take_list<EventView>(body, "events", kEventsKept, problem, take_event);
  if (problem) return std::unexpected(*std::move(problem));
  return view;
}

}  // namespace kvlease
