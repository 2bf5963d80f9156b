// Implements proxy.h: its routes and the instances' health. The life of a routed request is in
// proxy_request.cc, what P is told of leases in proxy_leases.cc.
#include "kvlease/serving/proxy.h"

#include <algorithm>
#include <utility>

#include "kvlease/runtime/wall_clock.h"
#include "kvlease/serving/access.h"
#include "kvlease/serving/answers.h"
#include "kvlease/wire/json_fields.h"

namespace kvlease {
namespace {

constexpr Duration kProbeTimeout = std::chrono::seconds{1};
// Of probes in a row; then what waits for the instance goes another way.
constexpr std::uint32_t kLostAfter = 3;

}  // namespace

Proxy::Proxy(EventLoop& loop, ProxyOptions options)
    : loop_(loop),
      options_(std::move(options)),
      tracer_(
          "kvlease route", options_.on_span, [this] { return loop_.now(); }, unix_nanoseconds(),
          loop.now(), options_.seed + 3),
      prefill_(options_.prefill.size(), options_.prefill_policy, options_.seed + 1),
      decode_(options_.decode.size(), options_.decode_policy, options_.seed + 2),
      pinned_(options_.prefill.size(), options_.decode.size(),
              options_.decode.size() == 1 ? 1 : options_.decode_share),
      conversations_(options_.conversations_max),
      ids_(options_.seed) {}

Proxy::~Proxy() = default;

Result<std::unique_ptr<Proxy>> Proxy::start(EventLoop& loop, ProxyOptions options) {
  std::unique_ptr<Proxy> proxy(new Proxy(loop, std::move(options)));
  auto server =
      HttpServer::listen(loop,
                         {.host = proxy->options_.host,
                          .port = proxy->options_.port,
                          .body_bytes_max = kRoutedBodyBytesMax,
                          .refusal = http_refusal},
                         [self = proxy.get()](HttpRequest request, HttpResponder responder) {
                           self->handle(std::move(request), std::move(responder));
                         });
  if (!server) return std::unexpected(server.error());
  proxy->server_.emplace(std::move(*server));
  proxy->open_overview();
  for (const BackendRole role : {BackendRole::kPrefill, BackendRole::kDecode}) {
    for (std::size_t i = 0; i < proxy->urls(role).size(); ++i) {
      proxy->tell_backend(role, i, BackendState::kUnprobed);
    }
  }
  return proxy;
}

BackendPool& Proxy::pool(BackendRole role) {
  return role == BackendRole::kPrefill ? prefill_ : decode_;
}

const std::vector<HttpUrl>& Proxy::urls(BackendRole role) const {
  return role == BackendRole::kPrefill ? options_.prefill : options_.decode;
}

Instant Proxy::turn(Instant now) {
  send_bridge_calls(now);
  if (draining_until_) {
    if (routed_.empty()) server_->drain();
    return earlier(*draining_until_, bridge_.next_deadline());
  }
  probe(BackendRole::kPrefill, now);
  probe(BackendRole::kDecode, now);
  return earlier(bridge_.next_deadline(),
                 earlier(prefill_.next_deadline(), decode_.next_deadline()));
}

void Proxy::drain(Instant now) {
  if (!draining_until_) draining_until_ = saturating_add(now, options_.drain_timeout);
}

bool Proxy::drained(Instant now) const {
  if (!draining_until_) return false;
  const bool quiet = routed_.empty() && bridge_.quiet() && server_->open_connections() == 0;
  return quiet || now >= *draining_until_;
}

void Proxy::handle(HttpRequest request, HttpResponder responder) {
  if (overview_->handle(request, responder)) return;
  const std::string_view path = request.path;
  const bool completions = path == "/v1/completions" || path == "/v1/chat/completions";
  const bool known = completions || path == "/v1/models" || path == "/health" ||
                     path == "/health/ready" || path == "/metrics";
  const std::string_view method = completions ? "POST" : "GET";
  if (path.starts_with("/v1/")) {
    if (const auto allowed = check_api_key(request, options_.api_key); !allowed) {
      return responder.respond(error_response(allowed.error()));
    }
  }
  if (!known) return responder.respond(no_such_route(request));
  if (request.method != method) return responder.respond(no_such_method(request, method));
  if (completions) {
    route(std::move(request), std::move(responder));
  } else if (path == "/v1/models") {
    pass_models(request, std::move(responder));
  } else if (path == "/health") {
    responder.respond(health_response(draining_until_.has_value()));
  } else if (path == "/health/ready") {
    answer_ready(std::move(responder));
  } else {
    responder.respond(metrics_response(scrape()));
  }
}

std::string Proxy::scrape() {
  for (const BackendRole role : {BackendRole::kPrefill, BackendRole::kDecode}) {
    for (std::size_t i = 0; i < urls(role).size(); ++i) {
      metrics_.set_outstanding(Target{urls(role)[i], i}.text(), role, pool(role).outstanding(i));
    }
  }
  for (std::size_t p = 0; p < options_.prefill.size(); ++p) {
    for (std::size_t d = 0; d < options_.decode.size(); ++d) {
      metrics_.set_pinned(Target{options_.prefill[p], p}.text(),
                          Target{options_.decode[d], d}.text(), pinned_.pinned(p, d));
    }
  }
  metrics_.set_bridged(bridge_.tracked());
  return metrics_.scrape();
}

void Proxy::answer_ready(HttpResponder responder) const {
  std::vector<std::string> instances;
  const auto list = [&](const BackendPool& pool, const std::vector<HttpUrl>& urls,
                        BackendRole role) {
    for (std::size_t i = 0; i < urls.size(); ++i) {
      JsonWriter json;
      json.string("url", Target{urls[i], i}.text());
      json.string("role", backend_role_name(role));
      json.string("state", backend_state_name(pool.state(i)));
      json.integer("failures", pool.failures(i));
      json.integer("outstanding", pool.outstanding(i));
      if (const auto& room = pool.headroom(i)) {
        json.integer("waiting", room->waiting);
        json.integer("max_num_waiting", room->waiting_max);
        json.integer("blocks_leased", room->blocks_leased);
        json.integer("blocks_leased_max", room->blocks_leased_max);
      }
      instances.push_back(json.take());
    }
  };
  list(prefill_, options_.prefill, BackendRole::kPrefill);
  list(decode_, options_.decode, BackendRole::kDecode);
  const bool ready = !draining_until_ && decode_.any_ready();
  JsonWriter json;
  json.string("status", draining_until_ ? "draining" : ready ? "ready" : "no decode instance");
  json.json("instances", json_array_of(instances, [](const std::string& text) { return text; }));
  responder.respond(ready_response(ready, json.take()));
}

// What a decode instance says of its models is what the router says.
void Proxy::pass_models(const HttpRequest& request, HttpResponder responder) {
  const std::uint64_t number = next_number_++;
  const HttpUrl& url = options_.decode[*decode_.pick({})];
  HttpCallOptions call{.host = url.host,
                       .port = url.port,
                       .target = "/v1/models",
                       .connect_timeout = options_.connect_timeout};
  if (const auto key = request.headers.find("Authorization")) {
    call.headers.add("Authorization", std::string(*key));
  }
  responder.on_disconnect([this, number] { calls_.erase(number); });
  const auto done = [this, number,
                     responder = std::make_shared<HttpResponder>(std::move(responder))](
                        Result<HttpResponse> response) {
    responder->respond(response ? json_response(response->status, response->body)
                                : error_response(response.error(), 502));
    calls_.erase(number);
  };
  calls_[number] = HttpCall::start(loop_, std::move(call), done);
}

void Proxy::probe(BackendRole role, Instant now) {
  for (const BackendPool::Probe& due : pool(role).take_probes(now)) {
    const HttpUrl& url = urls(role)[due.backend];
    const std::uint64_t number = next_number_++;
    calls_[number] = HttpCall::start(
        loop_,
        {.host = url.host,
         .port = url.port,
         .target = std::string(due.target),
         .connect_timeout = kProbeTimeout,
         .timeout = kProbeTimeout},
        [this, number, role, backend = due.backend](const Result<HttpResponse>& response) {
          const BackendState before = pool(role).state(backend);
          const auto status = response ? std::optional<int>(response->status) : std::nullopt;
          const auto headroom = response ? parse_headroom(response->body) : std::nullopt;
          if (pool(role).on_probe(backend, status, headroom, loop_.now())) {
            tell_backend(role, backend, before);
          }
          if (role == BackendRole::kPrefill && headroom) {
            pinned_.set_budget(backend, headroom->blocks_leased_max);
          }
          calls_.erase(number);
          if (pool(role).failures(backend) >= kLostAfter) give_up_legs(role, backend);
        });
  }
}

void Proxy::on_call_died(BackendRole role, const std::optional<Target>& target, const Error& why) {
  const bool died = why.code == ErrorCode::kUnavailable || why.code == ErrorCode::kTimeout;
  if (!died || !target || !target->backend) return;
  const BackendState before = pool(role).state(*target->backend);
  if (pool(role).on_call_died(*target->backend)) tell_backend(role, *target->backend, before);
}

void Proxy::tell_backend(BackendRole role, std::size_t backend, BackendState before) {
  const BackendState state = pool(role).state(backend);
  const std::string url = Target{urls(role)[backend], backend}.text();
  metrics_.set_backend({.url = url, .role = role, .is_up = state == BackendState::kReady});
  const bool was_known = before == BackendState::kBusy || before == BackendState::kDown;
  if (state == BackendState::kDown) {
    tell("backend_down", "", url);
    warn("backend_down " + url, "cannot be reached");
  }
  if (state == BackendState::kBusy) tell("backend_busy", "", url);
  if (state == BackendState::kReady && was_known) {
    tell("backend_up", "", url);
    warn("backend_up " + url, "takes new requests again");
  }
}

void Proxy::warn(std::string_view kind, std::string_view text) {
  if (!options_.on_warning || !warnings_.may_warn(kind, loop_.now())) return;
  options_.on_warning(std::string(kind) + ": " + std::string(text));
}

void Proxy::tell(std::string_view event, std::string_view request, std::string_view detail) {
  if (!options_.on_event) return;
  JsonWriter json;
  json.number("t_s", to_seconds(loop_.now().time_since_epoch()));
  json.string("event", event);
  if (!request.empty()) json.string("request", request);
  if (!detail.empty()) json.string("detail", detail);
  options_.on_event(json.take());
}

}  // namespace kvlease
