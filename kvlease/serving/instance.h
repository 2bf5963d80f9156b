// One instance (P, D or both) as a server: the OpenAI-style API, metrics, the handshake and the
// leases over HTTP, on top of an EngineHost.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvlease/base/result.h"
#include "kvlease/base/time.h"
#include "kvlease/obs/cluster_view.h"
#include "kvlease/obs/event_ring.h"
#include "kvlease/obs/instance_metrics.h"
#include "kvlease/runtime/http_server.h"
#include "kvlease/serving/completions_api.h"
#include "kvlease/serving/engine_host.h"
#include "kvlease/serving/rare_warnings.h"
#include "kvlease/serving/tracer.h"
#include "kvlease/serving/view_json.h"

namespace kvlease {

struct InstanceOptions {
  EngineHostOptions engine;
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  std::string api_key;                                // guards /v1/; empty: none
  Duration drain_timeout = std::chrono::seconds{30};  // L36
  // Called with every event of the protocol as one JSON object; empty: nobody listens.
  std::function<void(std::string_view json)> on_event;
  // Called with every request's span as one line of OTLP-JSON, when it ends; empty: none is
  // recorded.
  std::function<void(std::string_view json)> on_span;
  // Called with what an operator should know (hand-offs that fail and are computed here instead),
  // at most once a minute of each kind (H07); empty: nobody listens.
  std::function<void(const std::string& text)> on_warning;
};

class Instance {
 public:
  // Binds the port first, since peers are told it; then starts the engine.
  // Errors: the server's and the engine's.
  static Result<std::unique_ptr<Instance>> start(EventLoop& loop, InstanceOptions options);
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;
  ~Instance();

  std::uint16_t port() const { return server_->port(); }
  const EngineId& engine_id() const { return engine_->core().connector().facts().engine_id; }

  const LeaseConfig& lease_config() const { return engine_->core().connector().config(); }

  // One turn of the process's loop; returns when the next is due.
  Instant turn(Instant now);

  // Refuses new work from now on; leases live on until they end or drain_timeout has passed, when
  // the rest is cut (L36).
  void drain(Instant now);
  // True when draining and nothing is outstanding any more: no request, no lease, no answer on its
  // way; or a second after the limit, whatever is.
  bool drained(Instant now) const;
  std::size_t cut_leases() const { return cut_leases_; }

 private:
  // A completion that is being computed.
  struct Pending {
    HttpResponder responder;
    CompletionAnswer answer;
    std::string request_id;  // of the client, to be echoed; empty: it gave none
    bool stream = false;
    bool head_sent = false;
    Instant arrived_at{};
    Instant last_token_at{};
    ActiveSpan span;
  };
  using Handler = void (Instance::*)(const HttpRequest& request, HttpResponder responder);
  struct Route {
    std::string_view method;
    std::string_view path;  // one that ends with '/' stands for all below it
    Handler handle;
  };
  static const Route kRoutes[];

  Instance(EventLoop& loop, InstanceOptions options);
  void handle(HttpRequest request, HttpResponder responder);
  void health(const HttpRequest& request, HttpResponder responder);
  void ready(const HttpRequest& request, HttpResponder responder);
  void metrics(const HttpRequest& request, HttpResponder responder);
  void list_models(const HttpRequest& request, HttpResponder responder);
  void complete_text(const HttpRequest& request, HttpResponder responder);
  void complete_chat(const HttpRequest& request, HttpResponder responder);
  void complete(CompletionKind kind, const HttpRequest& request, HttpResponder responder);
  Result<void> check_model(const std::string& model) const;
  Result<void> check_role(const std::optional<KvTransferParams>& params) const;
  void handshake(const HttpRequest& request, HttpResponder responder);
  void renew_leases(const HttpRequest& request, HttpResponder responder);
  void release_leases(const HttpRequest& request, HttpResponder responder);
  void release_lease(const HttpRequest& request, HttpResponder responder);
  std::string_view status(const EngineStats& stats) const;
  void on_output(RequestOutput output);
  void note_tokens(Pending& pending, const RequestOutput& output);
  void stream(Pending& pending, const RequestOutput& output);
  void fail(Pending& pending, const std::string& message);
  void release_if_unwritten(Pending& pending);
  void end_span(Pending& pending) const;
  void trace(const Event& event);
  void publish(const Event& event);
  void warn(const Event& event);

  // instance_view.cc
  std::vector<LeaseView> oldest_leases(Instant now) const;
  void list_leases(const HttpRequest& request, HttpResponder responder);
  void list_events(const HttpRequest& request, HttpResponder responder);

  EventLoop& loop_;
  InstanceOptions options_;
  Tracer tracer_;
  std::optional<HttpServer> server_;
  std::unique_ptr<EngineHost> engine_;
  std::optional<InstanceMetrics> metrics_;
  std::map<RequestId, Pending> pending_;
  std::uint64_t next_completion_ = 1;
  std::int64_t started_seconds_;  // of the Unix epoch
  RareWarnings warnings_;
  EventRing events_{kEventsKept};
  Instant not_ready_until_ = kTimeZero;  // after the refusal of a lease (L43)
  std::optional<Instant> draining_until_;
  std::size_t cut_leases_ = 0;
};

}  // namespace kvlease
