// What the router tells P of leases: renewals until D has begun, releases of what nobody will read,
// and the question whether a lease still lives when D was lost (L2, L10; scenario H12).
#include <algorithm>
#include <string>
#include <utility>

#include "kvlease/serving/access.h"
#include "kvlease/serving/proxy.h"
#include "kvlease/wire/json_fields.h"

namespace kvlease {
namespace {

constexpr Duration kLeaseCallTimeout = std::chrono::seconds{5};
constexpr std::size_t kAnswerBytesMax = std::size_t{4} << 20;

// The ids that P does not know; nullopt for what is no answer to such a call.
std::optional<std::vector<LeaseId>> unknown_leases(const Result<HttpResponse>& response) {
  if (!response || response->status != 200) return std::nullopt;
  std::optional<Error> problem;
  JsonObject body = open_json(response->body, kAnswerBytesMax, "the answer", problem);
  const auto elements = body.array("unknown", true, "an array of ids");
  if (problem || !elements) return std::nullopt;
  std::vector<LeaseId> ids;
  for (const std::string_view element : *elements) {
    if (auto id = json_string(element)) ids.emplace_back(*std::move(id));
  }
  return ids;
}

}  // namespace

HttpCallOptions Proxy::lease_call(const std::string& prefill, BridgeCall what,
                                  const std::vector<LeaseId>& leases) const {
  const HttpUrl url = *parse_http_url(prefill);  // a Target's text
  JsonWriter body;
  body.json("request_ids",
            json_array_of(leases, [](const LeaseId& id) { return quoted(id.str()); }));
  HttpCallOptions call{.host = url.host,
                       .port = url.port,
                       .method = "POST",
                       .target = std::string("/kvlease/v1/leases/") +
                                 (what == BridgeCall::kRenew ? "renew" : "release"),
                       .headers = {{"Content-Type", "application/json"}},
                       .body = body.take(),
                       .connect_timeout = options_.connect_timeout,
                       .timeout = kLeaseCallTimeout};
  // L51: not to a host that a client has named, whatever listens on that port.
  const bool ours = std::ranges::any_of(options_.prefill, [&](const HttpUrl& known) {
    return known.host == url.host && known.port == url.port;
  });
  if (!options_.peer_key.empty() && ours) {
    call.headers.add(std::string(kPeerKeyHeader), options_.peer_key);
  }
  return call;
}

void Proxy::send_bridge_calls(Instant now) {
  for (LeaseBridge::Call& call : bridge_.take_calls(now)) {
    const std::uint64_t number = next_number_++;
    HttpCallOptions options = lease_call(call.prefill, call.what, call.leases);
    calls_[number] = HttpCall::start(
        loop_, std::move(options),
        [this, number, call = std::move(call)](const Result<HttpResponse>& response) {
          on_bridge_done(call, response);
          calls_.erase(number);
        });
  }
}

void Proxy::on_bridge_done(const LeaseBridge::Call& call, const Result<HttpResponse>& response) {
  const bool renews = call.what == BridgeCall::kRenew;
  const auto unknown = unknown_leases(response);
  if (!unknown) {
    const std::size_t given_up = bridge_.on_failed(call);
    if (renews) metrics_.on_renewed(RenewResult::kFailed, call.leases.size());
    if (given_up > 0) metrics_.on_released(ReleaseResult::kFailed, given_up);
    if (given_up > 0) tell("release_failed", "", call.prefill);
    return;
  }
  const std::size_t known = bridge_.on_answered(call, *unknown);
  if (renews) {
    metrics_.on_renewed(RenewResult::kRenewed, known);
    metrics_.on_renewed(RenewResult::kUnknown, call.leases.size() - known);
    return;
  }
  metrics_.on_released(ReleaseResult::kReleased, known);
  metrics_.on_released(ReleaseResult::kNotFound, call.leases.size() - known);
  for (const LeaseId& lease : call.leases) {
    const bool found = std::ranges::find(*unknown, lease) == unknown->end();
    tell("released", "",
         lease.str() + ": " +
             std::string(
                 release_result_name(found ? ReleaseResult::kReleased : ReleaseResult::kNotFound)));
  }
}

// By a renewal of this one alone, so that the next D has the time of an extension (L2).
void Proxy::check_lease(Routed& routed) {
  tell("checking", routed.request_id, routed.failure.message);
  routed.leg_span.end();
  routed.span.event("checking_lease");
  const std::uint64_t number = routed.number;
  if (!routed.handoff->lease) return apply(number, RoutedEvent::kLeaseGone);
  routed.call = HttpCall::start(
      loop_, lease_call(routed.prefill->text(), BridgeCall::kRenew, {*routed.handoff->lease}),
      [this, number](const Result<HttpResponse>& response) {
        const auto unknown = unknown_leases(response);
        if (!unknown || !unknown->empty()) return apply(number, RoutedEvent::kLeaseGone);
        Routed& checked = *routed_.at(number);
        metrics_.on_retried(RetryKind::kOtherDecode);
        tell("decoding_elsewhere", checked.request_id, checked.failure.message);
        warn("decoding_elsewhere", checked.failure.message);
        checked.span.event("decoding_elsewhere");
        apply(number, RoutedEvent::kLeaseLive);
      });
}

void Proxy::end_lease(Routed& routed, LeaseAction action) {
  if (action == LeaseAction::kNone || !routed.handoff || !routed.handoff->lease) return;
  const std::string prefill = routed.prefill->text();
  const bool release =
      action == LeaseAction::kRelease ||
      (action == LeaseAction::kReleaseIfRouter && routed.handoff->release_by == ReleaseBy::kRouter);
  if (release) return bridge_.release(prefill, *routed.handoff->lease);
  bridge_.forget(prefill, *routed.handoff->lease);
}

}  // namespace kvlease
