// The router as a server: takes clients' requests, has them prefilled on one instance and decoded
// on another, passes the answer on byte for byte, keeps leases alive until D has begun, and gives
// back those that nobody will read. What happens when is the table of kvlease/route; this does it.
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
#include "kvlease/obs/route_metrics.h"
#include "kvlease/route/backends.h"
#include "kvlease/route/bodies.h"
#include "kvlease/route/conversations.h"
#include "kvlease/route/lease_bridge.h"
#include "kvlease/route/pinned_blocks.h"
#include "kvlease/route/routed_request.h"
#include "kvlease/runtime/http_client.h"
#include "kvlease/runtime/http_server.h"
#include "kvlease/runtime/loop.h"
#include "kvlease/serving/overview.h"
#include "kvlease/serving/rare_warnings.h"
#include "kvlease/serving/tracer.h"

namespace kvlease {

struct ProxyOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  std::vector<HttpUrl> prefill;  // at least one of each; targets are not used
  std::vector<HttpUrl> decode;
  std::vector<std::string> allow_peers;  // other hosts that x-prefiller-host-port may name
  std::string api_key;                   // guards /v1/; empty: none
  std::string peer_key;                  // shown when a lease is given back (L51)
  ReleaseBy release_by = ReleaseBy::kDecoder;
  Duration connect_timeout = std::chrono::seconds{2};
  Duration prefill_timeout = std::chrono::seconds{120};  // of a whole leg
  Duration decode_timeout = std::chrono::seconds{600};
  Duration drain_timeout = std::chrono::seconds{30};
  std::size_t requests_max = 4096;  // under way; more get 503 (L43)
  std::size_t conversations_max = 65'536;
  RoutePolicy prefill_policy = RoutePolicy::kLeastOutstanding;
  RoutePolicy decode_policy = RoutePolicy::kLeastOutstanding;
  // Of a P's budget of leased blocks, what requests for one D may pin (F14); 1 with a single D.
  double decode_share = 0.7;
  std::uint64_t seed = 0;  // of the probes' jitter and of request ids
  // Called with every event as one JSON object; empty: nobody listens.
  std::function<void(std::string_view json)> on_event;
  // Called with every span of a request as one line of OTLP-JSON, when it ends; empty: none is
  // recorded, and a client's `traceparent` goes to the instances as it came.
  std::function<void(std::string_view json)> on_span;
  // Called with what an operator should know, at most once a minute of each kind (H07); empty:
  // nobody listens.
  std::function<void(const std::string& text)> on_warning;
};

class Proxy {
 public:
  // Errors: the server's. `loop` outlives this.
  static Result<std::unique_ptr<Proxy>> start(EventLoop& loop, ProxyOptions options);
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;
  ~Proxy();

  std::uint16_t port() const { return server_->port(); }

  // One turn of the process's loop: probes what is due. Returns when the next is.
  Instant turn(Instant now);

  // Refuses new requests from now on; those under way go on for drain_timeout at most.
  void drain(Instant now);
  // True when draining and nothing is under way any more, or after the limit.
  bool drained(Instant now) const;

 private:
  // One instance, or a host that a client has named.
  struct Target {
    HttpUrl url;
    std::optional<std::size_t> backend;  // in its role's pool; none: named by the client

    std::string text() const { return "http://" + host_and_port(url.host, url.port); }
  };
  // One client's request.
  struct Routed {
    std::uint64_t number = 0;
    std::string request_id;
    std::string path;
    HttpHeaders headers;                   // as both legs get them
    std::string conversation;              // empty: none
    std::optional<ClientBody> body;        // until the answer begins
    std::optional<Target> chosen_prefill;  // by the client, for the first attempt
    HttpResponder responder;
    Instant arrived_at{};
    RoutedState state = RoutedState::kPrefilling;
    std::optional<Target> prefill;           // of the present attempt
    std::vector<std::size_t> busy_prefills;  // that have said so
    std::optional<Target> decode;            // reserved before the prefill
    std::optional<std::size_t> lost_decode;
    BackendPool::Use prefill_use;
    BackendPool::Use decode_use;
    PinnedBlocks::Pin pin;
    std::optional<std::string> held_params;  // of the turn before, for one attempt (L39)
    std::optional<Handoff> handoff;
    ParamsWatch watch;  // of a conversation's answer
    HttpCall call;      // the leg under way
    ActiveSpan span;
    ActiveSpan leg_span;
    std::optional<HttpResponse> reply;           // a refusal, or the head of D's answer
    Error failure{ErrorCode::kUnavailable, ""};  // why the last leg failed
    int failure_status = 502;
  };
  Proxy(EventLoop& loop, ProxyOptions options);

  // proxy.cc
  void handle(HttpRequest request, HttpResponder responder);
  void answer_ready(HttpResponder responder) const;
  void pass_models(const HttpRequest& request, HttpResponder responder);
  void probe(BackendRole role, Instant now);
  void on_call_died(BackendRole role, const std::optional<Target>& target, const Error& why);
  void tell_backend(BackendRole role, std::size_t backend, BackendState before);
  BackendPool& pool(BackendRole role);
  const std::vector<HttpUrl>& urls(BackendRole role) const;
  void tell(std::string_view event, std::string_view request, std::string_view detail);
  void warn(std::string_view kind, std::string_view text);
  std::string scrape();

  // proxy_leases.cc
  void send_bridge_calls(Instant now);
  void on_bridge_done(const LeaseBridge::Call& call, const Result<HttpResponse>& response);
  void check_lease(Routed& routed);
  HttpCallOptions lease_call(const std::string& prefill, BridgeCall what,
                             const std::vector<LeaseId>& leases) const;
  void end_lease(Routed& routed, LeaseAction action);

  // proxy_view.cc
  void open_overview();
  RouterView router_view();

  // proxy_request.cc
  void route(HttpRequest request, HttpResponder responder);
  Result<std::optional<Target>> chosen_prefill(const HttpRequest& request) const;
  void apply(std::uint64_t number, RoutedEvent event);
  void act(Routed& routed, RoutedAction action);
  void keep_for_next_turn(const Routed& routed);
  void refuse(HttpResponder responder, RefusalCause cause, const HttpResponse& response);
  bool choose_pair(Routed& routed);
  bool may_decode(std::size_t prefill, std::size_t decode, std::size_t blocks) const;
  std::optional<std::size_t> decode_for(std::optional<std::size_t> prefill, std::size_t blocks,
                                        const Routed& routed);
  void reserve(Routed& routed, std::size_t decode, std::size_t blocks);
  void start_prefill(Routed& routed);
  void on_prefill_done(std::uint64_t number, const Result<HttpResponse>& response);
  void on_handoff(Routed& routed);
  void start_decode(Routed& routed, std::string body);
  void on_decode_piece(std::uint64_t number, std::string_view piece);
  void on_decode_head(std::uint64_t number, const HttpResponse& head);
  void on_decode_done(std::uint64_t number, const Result<HttpResponse>& response);
  void give_up_legs(BackendRole role, std::size_t backend);
  void note_failure(Routed& routed, const Target& target, const Result<HttpResponse>& response);
  static HttpResponse with_request_id(HttpResponse answer, const Routed& routed);
  void finish(Routed& routed, RouteOutcome outcome);
  HttpCallOptions leg(Routed& routed, std::string_view name, const Target& target, std::string body,
                      Duration timeout);

  EventLoop& loop_;
  ProxyOptions options_;
  Tracer tracer_;
  RouteMetrics metrics_;
  BackendPool prefill_;
  BackendPool decode_;
  PinnedBlocks pinned_;
  LeaseBridge bridge_;
  ConversationStore conversations_;
  Prng ids_;
  std::optional<HttpServer> server_;
  std::map<std::uint64_t, std::unique_ptr<Routed>> routed_;
  // Probes, calls about leases, and answers that are only passed on.
  std::map<std::uint64_t, HttpCall> calls_;
  std::uint64_t next_number_ = 1;
  RareWarnings warnings_;
  std::optional<Overview> overview_;
  std::optional<Instant> draining_until_;
};

}  // namespace kvlease
