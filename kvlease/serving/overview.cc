// Implements overview.h.
#include "kvlease/serving/overview.h"

#include <algorithm>
#include <utility>

#include "kvlease/base/hex.h"
#include "kvlease/runtime/random.h"
#include "kvlease/serving/access.h"
#include "kvlease/serving/answers.h"
#include "kvlease/serving/ui_page.h"
#include "kvlease/serving/view_json.h"
#include "kvlease/wire/json_fields.h"

namespace kvlease {
namespace {

template <typename Range>
auto first_of(const Range& range, std::size_t count_max) {
  return std::span(range).first(std::min(range.size(), count_max));
}

// The instance's state without its leases, which stand in one list of all.
std::string instance_json(const InstanceRow& row) {
  JsonWriter json;
  json.string("name", shown_name(row));
  json.string("url", row.url);
  json.string("role", row.role);
  json.string("state", row.state);
  if (!row.view) {
    json.string("problem", row.problem);
    return json.take();
  }
  InstanceView view = *row.view;
  view.leases.clear();
  json.fields_of(to_json(view));
  return json.take();
}

template <typename Element>
std::string placed_json(const Placed<Element>& placed) {
  JsonWriter json;
  json.string("instance", shown_name(*placed.instance));
  json.fields_of(to_json(*placed.element));
  return json.take();
}

std::string routed_json(const RoutedView& routed) {
  JsonWriter json;
  json.string("request", routed.request);
  json.string("state", routed.state);
  json.number("age_s", routed.age_s);
  json.string("prefill", routed.prefill);
  json.string("decode", routed.decode);
  return json.take();
}

std::string counter_json(const RouteCounterView& counter) {
  JsonWriter json;
  json.string("name", counter.name);
  json.string("label", counter.label);
  json.number("value", counter.value);
  return json.take();
}

std::string router_json(const RouterView& router) {
  JsonWriter json;
  json.string("status", router.status);
  json.integer("requests_under_way", router.requests_under_way);
  json.json("requests",
            json_array_of(first_of(router.requests, kOverviewRequestsMax), routed_json));
  json.json("counters", json_array_of(router.counters, counter_json));
  return json.take();
}

HttpResponse page_response() {
  const std::string nonce = to_hex(random_u64()) + to_hex(random_u64());
  std::string page(ui_page());
  for (std::size_t at = 0; (at = page.find(kUiNonce, at)) != std::string::npos;) {
    page.replace(at, kUiNonce.size(), nonce);
  }
  const std::string from = "'nonce-" + nonce + "'";
  return {.status = 200,
          .headers = {{"Content-Type", "text/html; charset=utf-8"},
                      {"Content-Security-Policy",
                       "default-src 'none'; script-src " + from + "; style-src " + from +
                           "; connect-src 'self'; img-src data:; base-uri 'none'; "
                           "form-action 'none'; frame-ancestors 'none'"},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cache-Control", "no-store"}},
          .body = std::move(page)};
}

}  // namespace

std::string overview_json(const ClusterView& instances, const RouterView& router, Instant now) {
  JsonWriter json;
  json.number("at_s", to_seconds(now.time_since_epoch()));
  json.json("router", router_json(router));
  json.json("instances", json_array_of(instances.instances, instance_json));
  json.integer("leases_live", leases_live(instances));
  json.json("leases", json_array_of(first_of(leases_by_slack(instances), kOverviewLeasesMax),
                                    placed_json<LeaseView>));
  json.json("events", json_array_of(first_of(newest_events(instances), kOverviewEventsMax),
                                    placed_json<EventView>));
  return json.take();
}

Overview::Overview(EventLoop& loop, OverviewOptions options, std::function<RouterView()> router)
    : loop_(loop),
      options_(std::move(options)),
      router_(std::move(router)),
      watch_(loop, options_.peer_key) {
  watch_.set_instances(options_.instances);
}

bool Overview::handle(const HttpRequest& request, HttpResponder& responder) {
  const bool page = request.path == kUiPath;
  if (!page && request.path != kOverviewPath) return false;
  if (request.method != "GET") {
    responder.respond(no_such_method(request, "GET"));
    return true;
  }
  if (page) {
    responder.respond(page_response());
    return true;
  }
  const auto allowed = options_.api_key.empty() ? check_peer_key(request, options_.peer_key)
                                                : check_api_key(request, options_.api_key);
  if (!allowed) {
    responder.respond(error_response(allowed.error()));
  } else if (!watch_.asking() && !body_.empty() && loop_.now() < asked_at_ + kOverviewFresh) {
    answer(std::move(responder));
  } else {
    waiting_.push_back(std::move(responder));
    if (watch_.asking()) return true;
    asked_at_ = loop_.now();
    watch_.ask([this] { on_asked(); });
  }
  return true;
}

void Overview::answer(HttpResponder responder) {
  HttpResponse response = json_response(200, body_);
  response.headers.add("Cache-Control", "no-store");
  responder.respond(std::move(response));
}

void Overview::on_asked() {
  const RouterView router = router_();
  ClusterView instances = watch_.view(loop_.now());
  for (std::size_t i = 0; i < instances.instances.size(); ++i) {
    if (i < router.backend_states.size()) instances.instances[i].state = router.backend_states[i];
  }
  body_ = overview_json(instances, router, loop_.now());
  for (HttpResponder& responder : std::exchange(waiting_, {})) answer(std::move(responder));
}

}  // namespace kvlease
