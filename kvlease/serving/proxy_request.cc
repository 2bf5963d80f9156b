// One routed request: its legs, and what the table of kvlease/route says to do about them.
#include <algorithm>
#include <utility>

#include "kvlease/base/check.h"
#include "kvlease/base/hex.h"
#include "kvlease/base/text.h"
#include "kvlease/serving/access.h"
#include "kvlease/serving/answers.h"
#include "kvlease/serving/proxy.h"

namespace kvlease {
namespace {

constexpr std::string_view kRequestIdHeader = "X-Request-Id";
constexpr std::string_view kPrefillerHeader = "x-prefiller-host-port";
constexpr std::size_t kRequestIdBytesMax = 256;

// What belongs to one connection, to the router, or is made anew for each leg.
constexpr std::string_view kNotForwarded[] = {
    "Host",         "Connection",     "Keep-Alive",          "Proxy-Connection",
    "TE",           "Trailer",        "Transfer-Encoding",   "Upgrade",
    "Expect",       "Content-Length", "Proxy-Authorization", "Proxy-Authenticate",
    kPeerKeyHeader, kPrefillerHeader, kRequestIdHeader};

// The elements of a list header, without the blanks around them.
std::vector<std::string_view> list_elements(std::string_view value) {
  std::vector<std::string_view> elements;
  while (!value.empty()) {
    const std::size_t comma = std::min(value.find(','), value.size());
    std::string_view element = value.substr(0, comma);
    while (element.starts_with(' ') || element.starts_with('\t')) element.remove_prefix(1);
    while (element.ends_with(' ') || element.ends_with('\t')) element.remove_suffix(1);
    if (!element.empty()) elements.push_back(element);
    value.remove_prefix(std::min(comma + 1, value.size()));
  }
  return elements;
}

HttpHeaders end_to_end(const HttpHeaders& headers) {
  std::vector<std::string_view> dropped(std::begin(kNotForwarded), std::end(kNotForwarded));
  for (const std::string_view connection : headers.find_all("Connection")) {
    for (const std::string_view name : list_elements(connection)) dropped.push_back(name);
  }
  HttpHeaders kept;
  for (const HttpHeader& header : headers) {
    const bool drop = std::ranges::any_of(
        dropped, [&](std::string_view name) { return same_header_name(name, header.name); });
    if (!drop) kept.add(header.name, header.value);
  }
  return kept;
}

}  // namespace

// The first instance that the client's header names and that it may name: one of ours, or on a host
// that the operator allows. The router must not be a way to call anybody else.
Result<std::optional<Proxy::Target>> Proxy::chosen_prefill(const HttpRequest& request) const {
  const auto header = request.headers.find(kPrefillerHeader);
  if (!header) return std::nullopt;
  for (const std::string_view element : list_elements(*header)) {
    const auto url = parse_http_url("http://" + std::string(element));
    if (!url || url->target != "/") continue;
    const auto found = std::ranges::find_if(options_.prefill, [&](const HttpUrl& ours) {
      return ours.host == url->host && ours.port == url->port;
    });
    if (found != options_.prefill.end()) {
      return Target{*found, static_cast<std::size_t>(found - options_.prefill.begin())};
    }
    if (std::ranges::count(options_.allow_peers, url->host) > 0) return Target{*url, {}};
  }
  return error(ErrorCode::kInvalidArgument,
               std::string(kPrefillerHeader) + " is " + std::string(*header) +
                   ": it names no --prefill instance and no --allow-peer host");
}

void Proxy::route(HttpRequest request, HttpResponder responder) {
  if (draining_until_) {
    return responder.respond(error_response({ErrorCode::kUnavailable, "this router is draining"}));
  }
  if (routed_.size() >= options_.requests_max) {  // L43
    return responder.respond(error_response(
        {ErrorCode::kResourceExhausted, std::to_string(routed_.size()) +
                                            " requests are under way (--max-requests): try again "
                                            "later"}));
  }
  auto chosen = chosen_prefill(request);
  if (!chosen) return responder.respond(error_response(chosen.error()));
  auto body = ClientBody::parse(std::move(request.body));
  if (!body) return responder.respond(error_response(body.error()));
  std::string request_id(request.headers.find(kRequestIdHeader).value_or(""));
  if (request_id.empty() || request_id.size() > kRequestIdBytesMax ||
      !is_printable_ascii(request_id)) {
    request_id = to_hex(ids_.next()) + to_hex(ids_.next());
  }
  const std::uint64_t number = next_number_++;
  auto routed = std::make_unique<Routed>(Routed{.number = number,
                                                .request_id = request_id,
                                                .path = request.path,
                                                .headers = end_to_end(request.headers),
                                                .conversation = body->conversation(),
                                                .body = *std::move(body),
                                                .chosen_prefill = *std::move(chosen),
                                                .responder = std::move(responder),
                                                .arrived_at = loop_.now()});
  routed->headers.add(std::string(kRequestIdHeader), request_id);
  routed->held_params = routed->body->held_params();
  if (!routed->conversation.empty()) {
    auto kept = conversations_.take(routed->conversation, loop_.now());
    if (!routed->held_params) routed->held_params = std::move(kept);
  }
  routed->responder.on_disconnect([this, number] { apply(number, RoutedEvent::kClientGone); });
  metrics_.on_request_begun();
  Routed& added = *routed_.emplace(number, std::move(routed)).first->second;
  start_prefill(added);
}

void Proxy::apply(std::uint64_t number, RoutedEvent event) {
  Routed& routed = *routed_.at(number);
  const RoutedTransition* row = find_routed_transition(routed.state, event);
  KVL_CHECK(row != nullptr, "an event that this state of a routed request does not know");
  routed.state = row->to;
  end_lease(routed, row->lease);
  act(routed, row->action);
}

void Proxy::end_lease(Routed& routed, LeaseAction action) {
  const bool due = action == LeaseAction::kRelease ||
                   (action == LeaseAction::kReleaseIfRouter && routed.handoff &&
                    routed.handoff->release_by == ReleaseBy::kRouter);
  if (due && routed.handoff && routed.handoff->lease) {
    release(*routed.prefill, *routed.handoff->lease, false);
  }
}

void Proxy::act(Routed& routed, RoutedAction action) {
  switch (action) {
    case RoutedAction::kStartPrefill:
      metrics_.on_retried();
      tell("retried", routed.request_id, routed.failure.message);
      warn("retried", routed.failure.message);
      return start_prefill(routed);
    case RoutedAction::kStartDecode:
      metrics_.on_prefilled();
      return start_decode(routed, routed.body->decode_body(routed.handoff->kv_transfer_params));
    case RoutedAction::kStartDecodeAlone:
      tell("decode_alone", routed.request_id, routed.failure.message);
      warn("decode_alone", routed.failure.message);
      return start_decode(routed, routed.body->alone_body());
    case RoutedAction::kAnswerRefusal:
      routed.responder.respond(with_request_id(*std::move(routed.reply), routed));
      return finish(routed, RouteOutcome::kClientError);
    case RoutedAction::kPassHead:
      metrics_.on_first_byte(loop_.now() - routed.arrived_at);
      tell("first_byte", routed.request_id, routed.decode->text());
      routed.body.reset();  // nothing is tried again from here on
      routed.responder.start_stream(routed.reply->status,
                                    with_request_id(*routed.reply, routed).headers);
      return;
    case RoutedAction::kFinish:
      routed.responder.finish();
      keep_for_next_turn(routed);
      return finish(routed, routed.reply->status < 400 ? RouteOutcome::kCompleted
                                                       : RouteOutcome::kClientError);
    case RoutedAction::kCut:
      return finish(routed, RouteOutcome::kCutShort);
    case RoutedAction::kFail:
      routed.responder.respond(
          with_request_id(error_response(routed.failure, routed.failure_status), routed));
      return finish(routed, RouteOutcome::kUnavailable);
    case RoutedAction::kCancel:
      tell("client_gone", routed.request_id, "");
      return finish(routed, RouteOutcome::kClientGone);
  }
}

void Proxy::keep_for_next_turn(const Routed& routed) {
  if (routed.conversation.empty()) return;
  if (auto params = routed.watch.params()) {
    conversations_.put(routed.conversation, *std::move(params), loop_.now());
  }
}

// An instance's answer as the client gets it.
HttpResponse Proxy::with_request_id(HttpResponse answer, const Routed& routed) {
  answer.headers = end_to_end(answer.headers);
  answer.headers.add(std::string(kRequestIdHeader), routed.request_id);
  return answer;
}

// Dropping the request cancels its leg, and cuts an answer that is not whole.
void Proxy::finish(Routed& routed, RouteOutcome outcome) {
  metrics_.on_request_ended(outcome);
  tell("done", routed.request_id, route_outcome_name(outcome));
  routed_.erase(routed.number);
}

HttpCallOptions Proxy::leg(const Routed& routed, const Target& target, std::string body,
                           Duration timeout) const {
  return {.host = target.url.host,
          .port = target.url.port,
          .method = "POST",
          .target = routed.path,
          .headers = routed.headers,
          .body = std::move(body),
          .connect_timeout = options_.connect_timeout,
          .timeout = timeout};
}

void Proxy::start_prefill(Routed& routed) {
  const auto before = routed.prefill ? routed.prefill->backend : std::nullopt;
  if (routed.chosen_prefill) {  // for the first attempt
    routed.prefill = std::exchange(routed.chosen_prefill, std::nullopt);
  } else {
    const std::size_t backend = prefill_.pick(before);
    routed.prefill = Target{options_.prefill[backend], backend};
  }
  routed.handoff.reset();
  const auto chosen = routed.prefill->backend;
  if (chosen && prefill_.state(*chosen) == BackendState::kDown) {  // all are: D can do without
    routed.failure = {ErrorCode::kUnavailable, "no prefill instance can be reached"};
    metrics_.on_decoded_alone(DecodeAloneCause::kPrefillUnreachable);
    return apply(routed.number, RoutedEvent::kPrefillFailed);
  }
  tell("prefilling", routed.request_id, routed.prefill->text());
  HttpCallOptions call =
      leg(routed, *routed.prefill,
          routed.body->prefill_body(std::exchange(routed.held_params, std::nullopt)),
          options_.prefill_timeout);
  call.headers.remove("Accept-Encoding");  // we read this answer ourselves
  routed.call = HttpCall::start(
      loop_, std::move(call), [this, number = routed.number](const Result<HttpResponse>& response) {
        on_prefill_done(number, response);
      });
}

void Proxy::on_prefill_done(std::uint64_t number, const Result<HttpResponse>& response) {
  Routed& routed = *routed_.at(number);
  if (response && response->status / 100 == 2) {
    routed.handoff = take_handoff(response->body, options_.release_by);
    if (routed.handoff) return apply(number, RoutedEvent::kPrefilled);
    routed.failure = {ErrorCode::kUnavailable,
                      routed.prefill->text() + " answered without kv_transfer_params"};
    metrics_.on_decoded_alone(DecodeAloneCause::kNoParams);
    return apply(number, RoutedEvent::kPrefilledWithoutHandoff);
  }
  if (response && response->status / 100 == 4) {
    routed.reply = *response;
    return apply(number, RoutedEvent::kPrefillRefused);
  }
  note_failure(routed, *routed.prefill, response);
  if (!response) on_call_died(BackendRole::kPrefill, routed.prefill, response.error());
  metrics_.on_decoded_alone(response ? DecodeAloneCause::kPrefillError
                            : response.error().code == ErrorCode::kTimeout
                                ? DecodeAloneCause::kPrefillTimeout
                                : DecodeAloneCause::kPrefillUnreachable);
  apply(number, RoutedEvent::kPrefillFailed);
}

void Proxy::start_decode(Routed& routed, std::string body) {
  const auto before = routed.decode ? routed.decode->backend : std::nullopt;
  const std::size_t backend = decode_.pick(before);
  routed.decode = Target{options_.decode[backend], backend};
  tell("decoding", routed.request_id, routed.decode->text());
  const std::uint64_t number = routed.number;
  HttpCallOptions call = leg(routed, *routed.decode, std::move(body), options_.decode_timeout);
  call.response_bytes_max = SIZE_MAX;  // it is passed on, not kept
  call.on_head = [this, number](const HttpResponse& head) { on_decode_head(number, head); };
  call.on_body = [this, number](std::string_view piece) {
    Routed& passed = *routed_.at(number);
    passed.responder.write(piece);
    if (!passed.conversation.empty()) passed.watch.feed(piece);
  };
  routed.call = HttpCall::start(
      loop_, std::move(call),
      [this, number](const Result<HttpResponse>& response) { on_decode_done(number, response); });
}

void Proxy::on_decode_head(std::uint64_t number, const HttpResponse& head) {
  Routed& routed = *routed_.at(number);
  if (head.status >= 500) {
    note_failure(routed, *routed.decode, head);
    return apply(number, RoutedEvent::kDecodeFailed);
  }
  routed.reply = head;
  apply(number, head.status < 400 ? RoutedEvent::kDecodeAnswered : RoutedEvent::kDecodeRefused);
}

void Proxy::on_decode_done(std::uint64_t number, const Result<HttpResponse>& response) {
  if (response) return apply(number, RoutedEvent::kDecodeEnded);
  Routed& routed = *routed_.at(number);
  note_failure(routed, *routed.decode, response);
  const bool too_long = routed.reply && response.error().code == ErrorCode::kTimeout;
  if (!too_long) on_call_died(BackendRole::kDecode, routed.decode, response.error());
  apply(number, RoutedEvent::kDecodeFailed);
}

// What the client is told when no attempt is left.
void Proxy::note_failure(Routed& routed, const Target& target,
                         const Result<HttpResponse>& response) {
  if (!response) {
    routed.failure = response.error();
    routed.failure_status = response.error().code == ErrorCode::kTimeout ? 504 : 502;
    return;
  }
  routed.failure = {ErrorCode::kUnavailable,
                    target.text() + " answered with HTTP " + std::to_string(response->status)};
  routed.failure_status =
      response->status == 503 || response->status == 504 ? response->status : 502;
}

}  // namespace kvlease
