// Implements instance.h: the routes, and how an output becomes an answer. Those who watch get
// theirs in instance_view.cc.
#include "kvlease/serving/instance.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "kvlease/runtime/random.h"
#include "kvlease/runtime/wall_clock.h"
#include "kvlease/serving/access.h"
#include "kvlease/serving/answers.h"
#include "kvlease/serving/view_json.h"
#include "kvlease/wire/json_fields.h"

namespace kvlease {
namespace {

// What a drain has for its last messages after the limit, when leases are cut and requests dropped.
constexpr Duration kCutGrace = std::chrono::seconds{1};

constexpr Duration kRetryAfter = std::chrono::seconds{1};  // as every 503 says

constexpr std::string_view kReady = "ready";
constexpr std::string_view kLeasePrefix = "/kvlease/v1/leases/";

// Of one call to renew or to release (L43).
constexpr std::size_t kRequestIdsMax = 65'536;
constexpr std::size_t kRequestIdsBytesMax = std::size_t{16} << 20;
constexpr std::string_view kRequestIdsAllowed = "an array of at most 65536 ids of leases";

// JSON, or what curl -d says of it unasked; as in vLLM anything else is refused.
Result<void> check_content_type(const HttpRequest& request) {
  const std::string_view type = request.headers.find("Content-Type").value_or("application/json");
  const std::string_view essence = type.substr(0, type.find(';'));
  if (essence == "application/json" || essence == "application/x-www-form-urlencoded") return {};
  return error(ErrorCode::kInvalidArgument,
               "Content-Type is " + std::string(type) + "; allowed: application/json");
}

// The `request_ids` of a call to renew or to release, each once.
std::vector<LeaseId> parse_request_ids(std::string_view text, std::optional<Error>& problem) {
  JsonObject body = open_json(text, kRequestIdsBytesMax, "the request body", problem);
  std::set<LeaseId> ids;
  if (const auto elements = body.array("request_ids", true, kRequestIdsAllowed)) {
    if (elements->size() > kRequestIdsMax) {
      body.refuse("request_ids", std::to_string(elements->size()) + " ids", kRequestIdsAllowed);
    }
    for (const std::string_view element : *elements) {
      auto id = json_string(element);
      if (!id) body.refuse("request_ids", element, kRequestIdsAllowed);
      ids.emplace(id.value_or(""));
    }
  }
  return {ids.begin(), ids.end()};
}

// How many were `done`, and which are not live.
std::string lease_count_json(std::string_view done, const std::vector<LeaseId>& ids,
                             const std::vector<LeaseId>& unknown) {
  JsonWriter json;
  json.integer(done, ids.size() - unknown.size());
  json.json("unknown", json_array_of(unknown, [](const LeaseId& id) { return quoted(id.str()); }));
  return json.take();
}

}  // namespace

Instance::Instance(EventLoop& loop, InstanceOptions options)
    : loop_(loop),
      options_(std::move(options)),
      tracer_(
          options_.engine.kv_transfer_config.engine_id.value_or(EngineId("kvlease")).str(),
          options_.on_span, [this] { return loop_.now(); }, unix_nanoseconds(), loop.now(),
          random_u64()),
      started_seconds_(unix_seconds()) {}

Instance::~Instance() = default;

Result<std::unique_ptr<Instance>> Instance::start(EventLoop& loop, InstanceOptions options) {
  std::unique_ptr<Instance> instance(new Instance(loop, std::move(options)));
  auto server = HttpServer::listen(
      loop,
      {.host = instance->options_.host, .port = instance->options_.port, .refusal = http_refusal},
      [self = instance.get()](HttpRequest request, HttpResponder responder) {
        self->handle(std::move(request), std::move(responder));
      });
  if (!server) return std::unexpected(server.error());
  instance->server_.emplace(std::move(*server));
  EngineHostOptions engine = instance->options_.engine;
  engine.advertise_port = instance->server_->port();
  auto host = EngineHost::start(
      loop, std::move(engine),
      {.on_output =
           [self = instance.get()](RequestOutput output) { self->on_output(std::move(output)); },
       .on_event = [self = instance.get()](const Event& event) { self->publish(event); }});
  if (!host) return std::unexpected(host.error());
  instance->engine_ = std::move(*host);
  const EngineHostOptions& running = instance->engine_->options();
  instance->metrics_.emplace(
      InstanceMetricsOptions{.model_name = running.model_name,
                             .engine = instance->engine_id().str(),
                             .tp_size = running.model.layout.tp,
                             .block_size = running.scheduler.block_size,
                             .num_blocks = running.scheduler.num_blocks,
                             .max_num_waiting = running.scheduler.max_num_waiting,
                             .enable_prefix_caching = running.scheduler.enable_prefix_caching});
  return instance;
}

Instant Instance::turn(Instant now) {
  const Instant next = engine_->turn(now);
  if (!draining_until_) return next;
  if (now >= *draining_until_) cut_leases_ += engine_->core().connector().cut_leases();
  if (pending_.empty() && !engine_->core().has_work()) server_->drain();  // no 503 is owed any more
  return earlier(next, saturating_add(*draining_until_,
                                      now < *draining_until_ ? Duration::zero() : kCutGrace));
}

void Instance::drain(Instant now) {
  if (draining_until_) return;
  draining_until_ = saturating_add(now, options_.drain_timeout);
  engine_->core().connector().begin_drain();
}

bool Instance::drained(Instant now) const {
  if (!draining_until_) return false;
  const bool quiet = pending_.empty() && !engine_->core().has_work();
  return (quiet && server_->open_connections() == 0) ||
         now >= saturating_add(*draining_until_, kCutGrace);
}

const Instance::Route Instance::kRoutes[] = {
    {"GET", "/health", &Instance::health},
    {"GET", "/health/ready", &Instance::ready},
    {"GET", "/metrics", &Instance::metrics},
    {"GET", "/v1/models", &Instance::list_models},
    {"POST", "/v1/completions", &Instance::complete_text},
    {"POST", "/v1/chat/completions", &Instance::complete_chat},
    {"POST", kHandshakePath, &Instance::handshake},
    {"GET", kLeasesPath, &Instance::list_leases},
    {"GET", kEventsPath, &Instance::list_events},
    {"POST", "/kvlease/v1/leases/renew", &Instance::renew_leases},
    {"POST", "/kvlease/v1/leases/release", &Instance::release_leases},
    {"DELETE", kLeasePrefix, &Instance::release_lease},
};

void Instance::handle(HttpRequest request, HttpResponder responder) {
  const std::string_view path = request.path;
  Result<void> allowed;
  if (path.starts_with("/v1/")) allowed = check_api_key(request, options_.api_key);
  if (path.starts_with("/kvlease/v1/")) {  // L51
    allowed = check_peer_key(request, options_.engine.peer_key);
  }
  if (!allowed) return responder.respond(error_response(allowed.error()));
  std::string methods;
  for (const Route& route : kRoutes) {
    const bool below = route.path.ends_with('/') && path.starts_with(route.path);
    if (path != route.path && !below) continue;
    if (request.method == route.method) {
      return (this->*route.handle)(request, std::move(responder));
    }
    methods += (methods.empty() ? "" : ", ") + std::string(route.method);
  }
  responder.respond(methods.empty() ? no_such_route(request) : no_such_method(request, methods));
}

void Instance::health(const HttpRequest&, HttpResponder responder) {
  responder.respond(health_response(draining_until_.has_value()));
}

// Whether the next request would be taken, in a word. A refusal of a lease counts for as long as
// its Retry-After says.
std::string_view Instance::status(const EngineStats& stats) const {
  const std::size_t waiting = stats.waiting + stats.waiting_for_remote_kvs + stats.loaded;
  if (draining_until_) return "draining";
  if (waiting >= engine_->options().scheduler.max_num_waiting) return "queue full";
  if (loop_.now() < not_ready_until_) return "budget of leased blocks full";
  return kReady;
}

// The status, and the numbers that say why.
void Instance::ready(const HttpRequest&, HttpResponder responder) {
  const EngineCore& core = engine_->core();
  const EngineStats stats = core.stats();
  const auto budget = static_cast<std::size_t>(core.connector().config().lease_max_blocks_fraction *
                                               static_cast<double>(core.pool().size()));
  JsonWriter json;
  json.string("status", status(stats));
  json.integer("waiting", stats.waiting + stats.waiting_for_remote_kvs + stats.loaded);
  json.integer("max_num_waiting", engine_->options().scheduler.max_num_waiting);
  json.integer("blocks_leased", stats.blocks.leased);
  json.integer("blocks_leased_max", budget);
  responder.respond(ready_response(status(stats) == kReady, json.take()));
}

void Instance::metrics(const HttpRequest&, HttpResponder responder) {
  const EngineCore& core = engine_->core();
  const SchedulerConnector& connector = core.connector();
  const EngineStats stats = core.stats();
  const EngineLeases& leases = connector.leases();
  InstanceSnapshot snapshot{.blocks_free = stats.blocks.free,
                            .blocks_cached = stats.blocks.cached,
                            .blocks_in_use = stats.blocks.in_use,
                            .blocks_quarantined = stats.blocks.quarantined,
                            .blocks_leased = stats.blocks.leased,
                            .requests_running = stats.running,
                            .requests_waiting = stats.waiting + stats.loaded,
                            .requests_waiting_for_remote_kvs = stats.waiting_for_remote_kvs,
                            .requests_tracked = connector.tracked_requests(),
                            .handshakes_in_flight = connector.handshakes_in_flight(),
                            .known_peers = connector.known_peers(),
                            .ledger = leases.ledger(),
                            .oldest_lease_age = {},
                            .lease_duration = connector.lease_duration(),
                            .counters = connector.counters(),
                            .preemptions = stats.preemptions,
                            .prompt_tokens = stats.prompt_tokens,
                            .cached_tokens = stats.cached_tokens,
                            .generated_tokens = stats.generated_tokens};
  if (leases.live() > 0) snapshot.oldest_lease_age = loop_.now() - leases.oldest_grant();  // L48
  responder.respond(metrics_response(metrics_->scrape(snapshot)));
}

void Instance::list_models(const HttpRequest&, HttpResponder responder) {
  responder.respond(json_response(200, models_body(options_.engine.model_name, started_seconds_,
                                                   engine_->core().max_model_len())));
}

void Instance::complete_text(const HttpRequest& request, HttpResponder responder) {
  complete(CompletionKind::kCompletion, request, std::move(responder));
}

void Instance::complete_chat(const HttpRequest& request, HttpResponder responder) {
  complete(CompletionKind::kChat, request, std::move(responder));
}

void Instance::complete(CompletionKind kind, const HttpRequest& request, HttpResponder responder) {
  if (draining_until_) {  // L36
    responder.respond(draining_response("instance"));
    return;
  }
  const auto json = check_content_type(request);
  std::optional<Error> problem;
  CompletionRequest parsed = parse_completion_request(kind, request.body, problem);
  for (const auto& good :
       {check_model(parsed.model), check_role(parsed.request.kv_transfer_params)}) {
    if (!problem && !good) problem = good.error();
  }
  if (!json || problem) {
    engine_->core().refuse_request(std::move(parsed.request), loop_.now());  // L33: P is told (B07)
    responder.respond(json ? error_response(*problem) : error_response(json.error(), 415));
    return;
  }
  const std::string request_id(request.headers.find("X-Request-Id").value_or(""));
  const std::string number = std::to_string(next_completion_++);
  const Instant now = loop_.now();
  Pending pending{
      .responder = std::move(responder),
      .answer = {.kind = kind,
                 .id = (kind == CompletionKind::kChat ? "chatcmpl-" : "cmpl-") +
                       (request_id.empty() ? number : request_id),
                 .model = options_.engine.model_name,
                 .created_seconds = unix_seconds(),
                 .include_usage = parsed.include_usage,
                 .num_prompt_tokens = parsed.request.prompt_token_ids.size()},
      .request_id = request_id,
      .stream = parsed.stream,
      .arrived_at = now,
      .last_token_at = now,
      .span = tracer_.begin("llm_request", SpanKind::kServer, request.headers.find("traceparent"))};
  // As vLLM names them.
  pending.span.attribute("gen_ai.request.id", pending.answer.id);
  pending.span.attribute("gen_ai.response.model", pending.answer.model);
  pending.span.attribute("gen_ai.request.max_tokens",
                         static_cast<std::int64_t>(parsed.request.sampling.max_tokens));
  parsed.request.client_id = pending.answer.id;
  const Counters& counters = engine_->core().connector().counters();
  const std::uint64_t refused_before = counters.value(Counter::kRefusedAdmissions);
  auto added = engine_->core().add_request(std::move(parsed.request), now);
  if (!added) {
    const bool lease_refused = counters.value(Counter::kRefusedAdmissions) > refused_before;
    if (lease_refused) not_ready_until_ = saturating_add(now, kRetryAfter);  // L43
    pending.span.fail(added.error().message);
    pending.responder.respond(error_response(added.error()));
    return;
  }
  const RequestId id = *added;
  pending.responder.on_disconnect([this, id] {
    const auto it = pending_.find(id);
    metrics_->on_request_finished(finish_reason_name(FinishReason::kAbort),
                                  loop_.now() - it->second.arrived_at);
    it->second.span.fail("the client is gone");
    pending_.erase(it);
    engine_->core().abort(id, loop_.now());
  });
  pending_.emplace(id, std::move(pending));
}

Result<void> Instance::check_model(const std::string& model) const {
  if (model.empty() || model == options_.engine.model_name) return {};
  return error(ErrorCode::kNotFound, "The model `" + model + "` does not exist; this is `" +
                                         options_.engine.model_name + "`");
}

// kv_role says what an instance may do; with bidirectional_kv_xfer a kv_producer reads, too (L39).
Result<void> Instance::check_role(const std::optional<KvTransferParams>& params) const {
  const KvTransferConfig& config = options_.engine.kv_transfer_config;
  const bool may_read = config.kv_role != KvRole::kProducer || config.lease.bidirectional;
  const bool may_grant = config.kv_role != KvRole::kConsumer;
  std::string_view refused;
  if (params && params->do_remote_prefill && !may_read) refused = "do_remote_prefill";
  if (params && params->do_remote_decode && !may_grant) refused = "do_remote_decode";
  if (refused.empty()) return {};
  return error(ErrorCode::kInvalidArgument,
               "kv_transfer_params: " + std::string(refused) + " is not for a " +
                   std::string(kv_role_name(config.kv_role)) + " instance");
}

void Instance::on_output(RequestOutput output) {
  const auto it = pending_.find(output.request);
  if (it == pending_.end()) {  // the client is gone: so is whoever would have read the lease (L34)
    if (output.kv_transfer_params && output.kv_transfer_params->remote_request_id) {
      engine_->core().release(*output.kv_transfer_params->remote_request_id);
    }
    return;
  }
  Pending& pending = it->second;
  note_tokens(pending, output);
  if (!output.finish_reason) {
    if (pending.stream) stream(pending, output);
    return;
  }
  Pending last = std::move(pending);
  pending_.erase(it);
  metrics_->on_request_finished(finish_reason_name(*output.finish_reason),
                                loop_.now() - last.arrived_at);
  if (output.finish_reason == FinishReason::kError) {
    last.span.fail(output.error_message);
    return fail(last, output.error_message);
  }
  CompletionAnswer& answer = last.answer;
  answer.finish_reason = output.finish_reason;
  answer.kv_transfer_params = std::move(output.kv_transfer_params);
  release_if_unwritten(last);
  end_span(last);
  if (last.stream) {
    stream(last, output);
    last.responder.write(stream_end(answer));
    last.responder.finish();
    return;
  }
  HttpResponse response = json_response(200, completion_body(answer));
  if (!last.request_id.empty()) response.headers.add("X-Request-Id", last.request_id);
  last.responder.respond(std::move(response));
}

void Instance::note_tokens(Pending& pending, const RequestOutput& output) {
  CompletionAnswer& answer = pending.answer;
  const Instant now = loop_.now();
  for (const TokenId token : output.new_token_ids) {
    if (answer.token_ids.empty()) {
      metrics_->on_first_token(now - pending.arrived_at);
      pending.span.event("first_token");
      pending.span.attribute("gen_ai.latency.time_to_first_token",
                             to_seconds(now - pending.arrived_at));
    } else {
      metrics_->on_next_token(now - pending.last_token_at);
    }
    pending.last_token_at = now;
    answer.token_ids.push_back(token);
  }
  answer.num_cached_tokens = output.num_cached_tokens;
}

// The head goes out with the first tokens, so that what fails before them has its own status, and
// whoever has asked can ask elsewhere.
void Instance::stream(Pending& pending, const RequestOutput& output) {
  const CompletionAnswer& answer = pending.answer;
  if (!std::exchange(pending.head_sent, true)) {
    HttpHeaders headers{{"Content-Type", "text/event-stream; charset=utf-8"},
                        {"Cache-Control", "no-cache"}};
    if (!pending.request_id.empty()) headers.add("X-Request-Id", pending.request_id);
    pending.responder.start_stream(200, std::move(headers));
    if (const std::string head = stream_head(answer); !head.empty()) pending.responder.write(head);
  }
  pending.responder.write(
      stream_chunk(answer, answer.token_ids.size() - output.new_token_ids.size()));
}

void Instance::fail(Pending& pending, const std::string& message) {
  const std::string body = error_body({ErrorCode::kUnavailable, message}, 500);
  if (!pending.head_sent) return pending.responder.respond(json_response(500, body));
  pending.responder.write(stream_event(body));
  pending.responder.finish();
}

// L34: an answer that nobody got names a lease that nobody reads.
void Instance::release_if_unwritten(Pending& pending) {
  const auto& params = pending.answer.kv_transfer_params;
  if (!params) return;
  pending.responder.on_written([this, lease = *params->remote_request_id](bool ok) {
    if (!ok) engine_->core().release(lease);
  });
}

void Instance::handshake(const HttpRequest& request, HttpResponder responder) {
  const auto& connector = engine_->core().connector();
  const HandshakeReply reply = connector.handshake_reply(loop_.now());
  const auto asked = parse_handshake_request(request.body);
  const Result<void> good =
      asked ? check_handshake_request(*asked, reply, connector.config().enforce_handshake_compat)
            : Result<void>(std::unexpected(asked.error()));
  responder.respond(good ? json_response(200, to_json(reply)) : error_response(good.error()));
}

void Instance::renew_leases(const HttpRequest& request, HttpResponder responder) {
  std::optional<Error> problem;
  const std::vector<LeaseId> ids = parse_request_ids(request.body, problem);
  if (problem) return responder.respond(error_response(*problem));
  const std::vector<LeaseId> unknown = engine_->core().connector().renew(ids);
  responder.respond(json_response(200, lease_count_json("renewed", ids, unknown)));
}

void Instance::release_leases(const HttpRequest& request, HttpResponder responder) {
  std::optional<Error> problem;
  const std::vector<LeaseId> ids = parse_request_ids(request.body, problem);
  if (problem) return responder.respond(error_response(*problem));
  std::vector<LeaseId> unknown;
  for (const LeaseId& id : ids) {  // L10
    if (!engine_->core().release(id)) unknown.push_back(id);
  }
  responder.respond(json_response(200, lease_count_json("released", ids, unknown)));
}

void Instance::release_lease(const HttpRequest& request, HttpResponder responder) {
  const LeaseId id(request.path.substr(kLeasePrefix.size()));
  responder.respond(engine_->core().release(id)  // L10
                        ? json_response(200, R"({"result":"released"})")
                        : json_response(404, R"({"result":"not found"})"));
}

void Instance::warn(const Event& event) {
  const bool matters = event.kind == EventKind::kHandshakeFailed ||
                       event.kind == EventKind::kPeerSuspect ||
                       event.kind == EventKind::kLoadFailed;
  if (!matters || !options_.on_warning) return;
  if (!warnings_.may_warn(event_kind_name(event.kind), loop_.now())) return;
  options_.on_warning(std::string(event_kind_name(event.kind)) + ": engine " + event.peer + ": " +
                      event.detail);
}

void Instance::end_span(Pending& pending) const {
  const CompletionAnswer& answer = pending.answer;
  const auto count = [](std::size_t n) { return static_cast<std::int64_t>(n); };
  pending.span.attribute("gen_ai.usage.prompt_tokens", count(answer.num_prompt_tokens));
  pending.span.attribute("gen_ai.usage.completion_tokens", count(answer.token_ids.size()));
  pending.span.attribute("gen_ai.latency.e2e", to_seconds(loop_.now() - pending.arrived_at));
  pending.span.attribute("kvlease.cached_tokens", count(answer.num_cached_tokens));
  pending.span.end();
}

// What the protocol did for a request stands in its span.
void Instance::trace(const Event& event) {
  const auto it = event.request.empty() ? pending_.end() : pending_.find(event.request);
  if (it == pending_.end() || !it->second.span.recorded()) return;
  std::vector<Attribute> attributes;
  if (!event.lease.empty()) attributes.push_back({"kvlease.lease", event.lease.str()});
  if (!event.peer.empty()) attributes.push_back({"kvlease.peer", event.peer});
  if (!event.detail.empty()) attributes.push_back({"kvlease.detail", event.detail});
  if (event.count > 0) {
    attributes.push_back({"kvlease.count", static_cast<std::int64_t>(event.count)});
  }
  it->second.span.event(event_kind_name(event.kind), std::move(attributes));
}

void Instance::publish(const Event& event) {
  metrics_->on_event(event);
  trace(event);
  events_.add(event, loop_.now());
  warn(event);
  if (!options_.on_event) return;
  JsonWriter json;
  json.number("t_s", to_seconds(loop_.now().time_since_epoch()));  // of this machine's uptime clock
  json.string("event", event_kind_name(event.kind));
  if (!event.request.empty()) json.string("request", event.request.str());
  if (!event.lease.empty()) json.string("lease", event.lease.str());
  if (!event.peer.empty()) json.string("peer", event.peer);
  if (!event.detail.empty()) json.string("detail", event.detail);
  json.integer("count", event.count);
  json.number("length_s", to_seconds(event.length));
  if (event.kind == EventKind::kLeaseEnded) {
    if (event.left != kForever) json.number("left_s", to_seconds(event.left));
    json.number("silent_s", to_seconds(event.silent));
  }
  options_.on_event(json.take());
}

}  // namespace kvlease
