// Implements instance.h: the routes, and how an output becomes an answer.
#include "kvlease/serving/instance.h"

#include <string_view>
#include <utility>

#include "kvlease/runtime/wall_clock.h"
#include "kvlease/wire/json_fields.h"
#include "kvlease/wire/secret.h"

namespace kvlease {
namespace {

constexpr std::string_view kLeasesPath = "/kvlease/v1/leases";

HttpResponse json_response(int status, std::string body) {
  return {
      .status = status, .headers = {{"Content-Type", "application/json"}}, .body = std::move(body)};
}

HttpResponse error_response(const Error& error) {
  const int status = http_status(error.code);
  HttpResponse response = json_response(status, error_body(error, status));
  if (status == 503) response.headers.add("Retry-After", "1");  // L43
  return response;
}

std::string block_counts_json(const BlockCounts& blocks) {
  JsonWriter json;
  json.integer("free", blocks.free);
  json.integer("cached", blocks.cached);
  json.integer("in_use", blocks.in_use);
  json.integer("running", blocks.running);
  json.integer("leased", blocks.leased);
  json.integer("quarantined", blocks.quarantined);
  return json.take();
}

std::string ledger_json(const LeaseLedger& ledger) {
  JsonWriter ended;
  for (int end = 0; end < kLeaseEndCount; ++end) {
    ended.integer(lease_end_name(static_cast<LeaseEnd>(end)),
                  ledger.ended[static_cast<std::size_t>(end)]);
  }
  JsonWriter json;
  json.integer("granted", ledger.granted);
  json.integer("live", ledger.live);
  json.json("ended", ended.take());
  json.boolean("balanced", ledger.balanced());
  return json.take();
}

std::string counters_json(const Counters& counters) {
  JsonWriter json;
  for (std::size_t i = 0; i < kCounterCount; ++i) {
    const auto counter = static_cast<Counter>(i);
    json.integer(counter_name(counter), counters.value(counter));
  }
  return json.take();
}

std::string lease_json(const LeaseId& id, const EngineLeases::LiveLease& lease, Instant now) {
  JsonWriter json;
  json.string("id", id.str());
  json.integer("slot", lease.slot.value());
  json.integer("blocks", lease.blocks.size());
  json.number("age_s", to_seconds(now - lease.granted_at));
  return json.take();
}

}  // namespace

Instance::Instance(EventLoop& loop, InstanceOptions options, Logger log)
    : loop_(loop), options_(std::move(options)), log_(std::move(log)) {}

Instance::~Instance() = default;

Result<std::unique_ptr<Instance>> Instance::start(EventLoop& loop, InstanceOptions options,
                                                  Logger log) {
  std::unique_ptr<Instance> instance(new Instance(loop, std::move(options), log));
  auto server =
      HttpServer::listen(loop, {.host = instance->options_.host, .port = instance->options_.port},
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
       .on_event = [self = instance.get()](const Event& event) { self->publish(event); }},
      std::move(log));
  if (!host) return std::unexpected(host.error());
  instance->engine_ = std::move(*host);
  return instance;
}

Instant Instance::turn(Instant now) {
  const Instant next = engine_->turn(now);
  if (!draining_until_) return next;
  if (now >= *draining_until_) cut_leases_ += engine_->core().connector().cut_leases();
  return earlier(next, now < *draining_until_ ? *draining_until_ : kNever);
}

void Instance::drain(Instant now) {
  if (!draining_until_) draining_until_ = saturating_add(now, options_.drain_timeout);
}

bool Instance::drained() const { return draining_until_ && !engine_->core().has_work(); }

void Instance::handle(HttpRequest request, HttpResponder responder) {
  const bool get = request.method == "GET";
  const bool post = request.method == "POST";
  const std::string_view path = request.path;
  if (!engine_) {
    responder.respond(error_response({ErrorCode::kUnavailable, "the engine is starting"}));
  } else if (get && path == "/health") {
    responder.respond(
        json_response(200, draining_until_ ? R"({"status":"draining"})" : R"({"status":"ok"})"));
  } else if (post && path == "/v1/completions") {
    complete(request, std::move(responder));
  } else if (path.starts_with("/kvlease/v1/") && !has_peer_key(request)) {  // L51
    responder.respond(
        error_response({ErrorCode::kPermissionDenied, "the header " + std::string(kPeerKeyHeader) +
                                                          " is missing or wrong (--peer-key)"}));
  } else if (post && path == kHandshakePath) {
    handshake(request, std::move(responder));
  } else if (get && path == kLeasesPath) {
    list_leases(std::move(responder));
  } else if (request.method == "DELETE" && path.starts_with(kLeasesPath)) {
    release_lease(request, std::move(responder));
  } else {
    responder.respond(error_response(
        {ErrorCode::kNotFound, "no such route: " + request.method + ' ' + request.path}));
  }
}

bool Instance::has_peer_key(const HttpRequest& request) const {
  const std::string& key = options_.engine.peer_key;
  return key.empty() || secret_matches(request.headers.find(kPeerKeyHeader).value_or(""), key);
}

void Instance::complete(const HttpRequest& request, HttpResponder responder) {
  if (draining_until_) {  // L36
    responder.respond(error_response({ErrorCode::kUnavailable, "this instance is draining"}));
    return;
  }
  auto parsed = parse_completion_request(request.body);
  if (!parsed) {
    responder.respond(error_response(parsed.error()));
    return;
  }
  const std::string request_id(
      request.headers.find("X-Request-Id").value_or(std::to_string(next_completion_)));
  ++next_completion_;
  CompletionAnswer answer{
      .id = "cmpl-" + request_id,
      .model = parsed->model.empty() ? options_.engine.model_name : parsed->model,
      .num_prompt_tokens = parsed->request.prompt_token_ids.size()};
  parsed->request.client_id = answer.id;
  const Instant now = loop_.now();
  auto added = engine_->core().add_request(std::move(parsed->request), now);
  if (!added) {
    responder.respond(error_response(added.error()));
    return;
  }
  const RequestId id = *added;
  responder.on_disconnect([this, id] {
    pending_.erase(id);
    engine_->core().abort(id, loop_.now());
  });
  pending_.emplace(id, Pending{std::move(responder), std::move(answer)});
}

void Instance::on_output(RequestOutput output) {
  const auto it = pending_.find(output.request);
  if (it == pending_.end()) {  // the client is gone: so is whoever would have read the lease (L34)
    if (output.kv_transfer_params && output.kv_transfer_params->remote_request_id) {
      engine_->core().release(*output.kv_transfer_params->remote_request_id);
    }
    return;
  }
  CompletionAnswer& so_far = it->second.answer;
  so_far.token_ids.insert(so_far.token_ids.end(), output.new_token_ids.begin(),
                          output.new_token_ids.end());
  if (!output.finish_reason) return;
  Pending pending = std::move(it->second);
  pending_.erase(it);
  answer(std::move(pending), std::move(output));
}

void Instance::answer(Pending pending, RequestOutput output) {
  if (output.finish_reason == FinishReason::kError) {
    const Error failure{ErrorCode::kUnavailable, output.error_message};
    pending.responder.respond(json_response(500, error_body(failure, 500)));
    return;
  }
  CompletionAnswer& answer = pending.answer;
  answer.created_seconds = unix_seconds();
  answer.finish_reason = *output.finish_reason;
  answer.num_cached_tokens = output.num_cached_tokens;
  answer.kv_transfer_params = std::move(output.kv_transfer_params);
  if (answer
          .kv_transfer_params) {  // L34: an answer that nobody got names a lease that nobody reads
    pending.responder.on_written(
        [this, lease = *answer.kv_transfer_params->remote_request_id](bool ok) {
          if (!ok) engine_->core().release(lease);
        });
  }
  pending.responder.respond(json_response(200, completion_body(answer)));
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

void Instance::list_leases(HttpResponder responder) const {
  const EngineCore& core = engine_->core();
  const Instant now = loop_.now();
  const auto& leases = core.connector().leases();
  JsonWriter json;
  json.json("leases", json_array_of(leases.live_leases(), [now](const auto& entry) {
              return lease_json(entry.first, entry.second, now);
            }));
  json.json("ledger", ledger_json(leases.ledger()));
  json.json("blocks", block_counts_json(core.stats().blocks));
  json.json("counters", counters_json(core.connector().counters()));
  responder.respond(json_response(200, json.take()));
}

void Instance::release_lease(const HttpRequest& request, HttpResponder responder) {
  const std::string_view id = std::string_view(request.path).substr(kLeasesPath.size());
  const bool released =
      id.starts_with('/') && engine_->core().release(LeaseId(std::string(id.substr(1))));  // L10
  responder.respond(released ? json_response(200, R"({"result":"released"})")
                             : json_response(404, R"({"result":"not found"})"));
}

void Instance::publish(const Event& event) const {
  if (!options_.on_event) return;
  JsonWriter json;
  json.string("event", event_kind_name(event.kind));
  if (!event.request.empty()) json.string("request", event.request.str());
  if (!event.lease.empty()) json.string("lease", event.lease.str());
  if (!event.peer.empty()) json.string("peer", event.peer);
  if (!event.detail.empty()) json.string("detail", event.detail);
  json.integer("count", event.count);
  json.number("length_s", to_seconds(event.length));
  options_.on_event(json.take());
}

}  // namespace kvlease
