// Implements instance.h: the routes, and how an output becomes an answer.
#include "kvlease/serving/instance.h"

#include <string_view>
#include <utility>

#include "kvlease/runtime/wall_clock.h"
#include "kvlease/serving/access.h"
#include "kvlease/serving/answers.h"
#include "kvlease/wire/json_fields.h"

namespace kvlease {
namespace {

// What a drain has for its last messages after the limit, when leases are cut and requests dropped.
constexpr Duration kCutGrace = std::chrono::seconds{1};

constexpr Duration kWarningInterval = std::chrono::minutes{1};

constexpr std::string_view kLeasesPath = "/kvlease/v1/leases";

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

Instance::Instance(EventLoop& loop, InstanceOptions options)
    : loop_(loop), options_(std::move(options)) {}

Instance::~Instance() = default;

Result<std::unique_ptr<Instance>> Instance::start(EventLoop& loop, InstanceOptions options) {
  std::unique_ptr<Instance> instance(new Instance(loop, std::move(options)));
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
       .on_event = [self = instance.get()](const Event& event) { self->publish(event); }});
  if (!host) return std::unexpected(host.error());
  instance->engine_ = std::move(*host);
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
  if (!draining_until_) draining_until_ = saturating_add(now, options_.drain_timeout);
}

bool Instance::drained(Instant now) const {
  if (!draining_until_) return false;
  const bool quiet = pending_.empty() && !engine_->core().has_work();
  return (quiet && server_->open_connections() == 0) ||
         now >= saturating_add(*draining_until_, kCutGrace);
}

void Instance::handle(HttpRequest request, HttpResponder responder) {
  const bool get = request.method == "GET";
  const bool post = request.method == "POST";
  const std::string_view path = request.path;
  if (get && path == "/health") {
    responder.respond(
        json_response(200, draining_until_ ? R"({"status":"draining"})" : R"({"status":"ok"})"));
  } else if (const auto known = check_api_key(request, options_.api_key);
             path.starts_with("/v1/") && !known) {
    responder.respond(error_response(known.error()));
  } else if (post && path == "/v1/completions") {
    complete(request, std::move(responder));
  } else if (const auto trusted = check_peer_key(request, options_.engine.peer_key);
             path.starts_with("/kvlease/v1/") && !trusted) {  // L51
    responder.respond(error_response(trusted.error()));
  } else if (post && path == kHandshakePath) {
    handshake(request, std::move(responder));
  } else if (get && path == kLeasesPath) {
    list_leases(std::move(responder));
  } else if (request.method == "DELETE" && path.starts_with(kLeasesPath)) {
    release_lease(request, std::move(responder));
  } else {
    responder.respond(no_such_route(request));
  }
}

void Instance::complete(const HttpRequest& request, HttpResponder responder) {
  if (draining_until_) {  // L36
    responder.respond(error_response({ErrorCode::kUnavailable, "this instance is draining"}));
    return;
  }
  std::optional<Error> problem;
  CompletionRequest parsed = parse_completion_request(request.body, problem);
  if (const auto fits = check_role(parsed.request.kv_transfer_params); !problem && !fits) {
    problem = fits.error();
  }
  if (problem) {
    engine_->core().refuse_request(std::move(parsed.request), loop_.now());  // L33: P is told (B07)
    responder.respond(error_response(*problem));
    return;
  }
  const std::string request_id(
      request.headers.find("X-Request-Id").value_or(std::to_string(next_completion_)));
  ++next_completion_;
  CompletionAnswer answer{.id = "cmpl-" + request_id,
                          .model = parsed.model.empty() ? options_.engine.model_name : parsed.model,
                          .num_prompt_tokens = parsed.request.prompt_token_ids.size()};
  parsed.request.client_id = answer.id;
  const Instant now = loop_.now();
  auto added = engine_->core().add_request(std::move(parsed.request), now);
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

// kv_role says what an instance may do.
Result<void> Instance::check_role(const std::optional<KvTransferParams>& params) const {
  const KvRole role = options_.engine.kv_transfer_config.kv_role;
  const bool asks_to_produce = params && params->do_remote_decode;
  const bool asks_to_consume = params && params->do_remote_prefill;
  if ((asks_to_produce && role == KvRole::kConsumer) ||
      (asks_to_consume && role == KvRole::kProducer)) {
    return error(ErrorCode::kInvalidArgument,
                 "kv_transfer_params: " +
                     std::string(asks_to_produce ? "do_remote_decode" : "do_remote_prefill") +
                     " is not for a " + std::string(kv_role_name(role)) + " instance");
  }
  return {};
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
  if (leases.live() > 0)
    json.number("oldest_age_s", to_seconds(now - leases.oldest_grant()));  // L48
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

void Instance::warn(const Event& event) {
  const bool matters = event.kind == EventKind::kHandshakeFailed ||
                       event.kind == EventKind::kPeerSuspect ||
                       event.kind == EventKind::kLoadFailed;
  Instant& next = next_warning_[event.kind];
  if (!matters || !options_.on_warning || loop_.now() < next) return;
  next = loop_.now() + kWarningInterval;
  options_.on_warning(std::string(event_kind_name(event.kind)) + ": engine " + event.peer + ": " +
                      event.detail);
}

void Instance::publish(const Event& event) {
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
  options_.on_event(json.take());
}

}  // namespace kvlease
