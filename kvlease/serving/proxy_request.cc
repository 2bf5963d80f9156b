// One routed request: its legs, and what the table of kvlease/route says to do about them.
#include <algorithm>
#include <ranges>
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

// L43: it lives and says when to come again.
bool is_busy(const HttpResponse& response) {
  return response.status == 503 && response.headers.find("Retry-After").has_value();
}
bool is_busy(const Result<HttpResponse>& response) { return response && is_busy(*response); }

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
    return refuse(std::move(responder), RefusalCause::kDraining, draining_response("router"));
  }
  if (routed_.size() >= options_.requests_max) {  // L43
    return refuse(
        std::move(responder), RefusalCause::kMaxRequests,
        error_response({ErrorCode::kResourceExhausted,
                        std::to_string(routed_.size()) +
                            " requests are under way (--max-requests): try again later"}));
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
  routed->span = tracer_.begin("route", SpanKind::kServer, request.headers.find("traceparent"));
  routed->span.attribute("url.path", request.path);
  routed->span.attribute("kvlease.request_id", request_id);
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

void Proxy::refuse(HttpResponder responder, RefusalCause cause, const HttpResponse& response) {
  metrics_.on_refused(cause);
  responder.respond(response);
}

void Proxy::act(Routed& routed, RoutedAction action) {
  switch (action) {
    case RoutedAction::kStartPrefill:
      metrics_.on_retried(routed.lost_decode ? RetryKind::kNewPair : RetryKind::kOtherPrefill);
      tell("retried", routed.request_id, routed.failure.message);
      routed.span.event("retried");
      warn("retried", routed.failure.message);
      return start_prefill(routed);
    case RoutedAction::kStartDecode:
      return start_decode(routed, routed.body->decode_body(routed.handoff->kv_transfer_params));
    case RoutedAction::kCheckLease:
      return check_lease(routed);
    case RoutedAction::kStartDecodeAlone:
      tell("decode_alone", routed.request_id, routed.failure.message);
      routed.span.event("decode_alone");
      warn("decode_alone", routed.failure.message);
      return start_decode(routed, routed.body->alone_body());
    case RoutedAction::kAnswerRefusal:
      routed.responder.respond(with_request_id(*routed.reply, routed));
      return finish(routed, routed.reply->status < 500 ? RouteOutcome::kClientError
                                                       : RouteOutcome::kUnavailable);
    case RoutedAction::kPassHead:
      metrics_.on_first_byte(loop_.now() - routed.arrived_at);
      tell("first_byte", routed.request_id, routed.decode->text());
      routed.leg_span.event("first_byte");
      routed.body.reset();  // nothing is tried again from here on
      routed.pin = {};
      routed.responder.start_stream(routed.reply->status,
                                    with_request_id(*routed.reply, routed).headers);
      return;
    case RoutedAction::kFinish:
      routed.responder.finish();
      keep_for_next_turn(routed);
      return finish(routed, routed.reply->status < 400   ? RouteOutcome::kCompleted
                            : routed.reply->status < 500 ? RouteOutcome::kClientError
                                                         : RouteOutcome::kUnavailable);
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
  routed.leg_span.end();
  routed.span.attribute("kvlease.outcome", std::string(route_outcome_name(outcome)));
  if (outcome == RouteOutcome::kUnavailable || outcome == RouteOutcome::kCutShort) {
    routed.span.fail(routed.failure.message);
  }
  tell("done", routed.request_id, route_outcome_name(outcome));
  routed_.erase(routed.number);
}

HttpCallOptions Proxy::leg(Routed& routed, std::string_view name, const Target& target,
                           std::string body, Duration timeout) {
  routed.leg_span = tracer_.begin(std::string(name), SpanKind::kClient, routed.span);
  routed.leg_span.attribute("server.address", target.url.host);
  routed.leg_span.attribute("server.port", std::int64_t{target.url.port});
  HttpHeaders headers = routed.headers;
  if (auto traceparent = routed.leg_span.traceparent()) {
    headers.remove("traceparent");
    headers.add("traceparent", *std::move(traceparent));
  }
  return {.host = target.url.host,
          .port = target.url.port,
          .method = "POST",
          .target = routed.path,
          .headers = std::move(headers),
          .body = std::move(body),
          .connect_timeout = options_.connect_timeout,
          .timeout = timeout};
}

// A P, and before it computes anything a D that its work will be for.
bool Proxy::choose_pair(Routed& routed) {
  const auto before = routed.prefill ? routed.prefill->backend : std::nullopt;
  const std::size_t blocks = pinned_.estimate(routed.body->alone_body().size());
  if (routed.chosen_prefill) {  // for the first attempt
    routed.prefill = std::exchange(routed.chosen_prefill, std::nullopt);
  } else {
    const auto may_take = [&](std::size_t p) {
      return !std::ranges::count(routed.busy_prefills, p) &&
             std::ranges::any_of(std::views::iota(std::size_t{0}, options_.decode.size()),
                                 [&](std::size_t d) { return may_decode(p, d, blocks); });
    };
    const auto backend = prefill_.pick({.avoid = before,
                                        .prefix = routed.body->prefix_hash(),
                                        .blocks = blocks,
                                        .may_take = may_take});
    if (!backend) return false;
    routed.prefill = Target{options_.prefill[*backend], backend};
  }
  if (routed.prefill->backend) {
    routed.prefill_use = BackendPool::Use(prefill_, *routed.prefill->backend);
  }
  const auto decode = decode_for(routed.prefill->backend, blocks, routed);
  if (decode) reserve(routed, *decode, blocks);
  return decode.has_value();
}

// Whether D's share of a P has room for so many blocks. While no D is up, each may be tried.
bool Proxy::may_decode(std::size_t prefill, std::size_t decode, std::size_t blocks) const {
  if (!decode_.any_up()) return true;
  return decode_.state(decode) != BackendState::kDown && pinned_.fits(prefill, decode, blocks);
}

std::optional<std::size_t> Proxy::decode_for(std::optional<std::size_t> prefill, std::size_t blocks,
                                             const Routed& routed) {
  BackendPool::Wish wish{.avoid = routed.lost_decode, .prefix = routed.body->prefix_hash()};
  if (prefill) wish.may_take = [&](std::size_t d) { return may_decode(*prefill, d, blocks); };
  return decode_.pick(wish);
}

void Proxy::reserve(Routed& routed, std::size_t decode, std::size_t blocks) {
  routed.decode = Target{options_.decode[decode], decode};
  routed.decode_use = BackendPool::Use(decode_, decode);
  const auto p = routed.prefill->backend;
  routed.pin = p ? PinnedBlocks::Pin(pinned_, *p, decode, blocks) : PinnedBlocks::Pin();
}

void Proxy::start_prefill(Routed& routed) {
  routed.handoff.reset();
  routed.pin = {};
  if (!choose_pair(routed)) {  // F14: not prefilled in vain, and not at the others' cost
    metrics_.on_refused(RefusalCause::kDecodeShare);
    routed.reply = error_response(
        {ErrorCode::kResourceExhausted,
         "every decode instance has its share of leased blocks (--decode-share): try again later"});
    return apply(routed.number, RoutedEvent::kPrefillRefused);
  }
  const auto chosen = routed.prefill->backend;
  if (chosen && prefill_.state(*chosen) == BackendState::kDown) {  // all are: D can do without
    routed.failure = {ErrorCode::kUnavailable, "no prefill instance can be reached"};
    metrics_.on_decoded_alone(DecodeAloneCause::kPrefillUnreachable);
    return apply(routed.number, RoutedEvent::kPrefillFailed);
  }
  tell("prefilling", routed.request_id, routed.prefill->text());
  HttpCallOptions call =
      leg(routed, "prefill", *routed.prefill,
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
  routed.prefill_use = {};
  if (response && response->status / 100 == 2) {
    routed.handoff = take_handoff(response->body, options_.release_by);
    if (routed.handoff) return on_handoff(routed);
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
  if (is_busy(response)) {  // L43: its queue or its budget is full; D must not do its work as well
    if (routed.prefill->backend) routed.busy_prefills.push_back(*routed.prefill->backend);
    if (routed.busy_prefills.size() < options_.prefill.size()) {
      return apply(number, RoutedEvent::kPrefillBusy);
    }
    routed.reply = *response;
    return apply(number, RoutedEvent::kPrefillRefused);
  }
  if (!response) on_call_died(BackendRole::kPrefill, routed.prefill, response.error());
  metrics_.on_decoded_alone(response ? DecodeAloneCause::kPrefillError
                            : response.error().code == ErrorCode::kTimeout
                                ? DecodeAloneCause::kPrefillTimeout
                                : DecodeAloneCause::kPrefillUnreachable);
  apply(number, RoutedEvent::kPrefillFailed);
}

void Proxy::on_handoff(Routed& routed) {
  const Handoff& handoff = *routed.handoff;
  metrics_.on_prefilled();
  if (handoff.blocks > 0) pinned_.learn(routed.body->alone_body().size(), handoff.blocks);
  if (const auto p = routed.prefill->backend) {
    routed.pin = PinnedBlocks::Pin(pinned_, *p, *routed.decode->backend, handoff.blocks);
  }
  if (handoff.lease) {
    bridge_.track(routed.prefill->text(), *handoff.lease, handoff.renew_interval, loop_.now());
  }
  apply(routed.number, RoutedEvent::kPrefilled);
}

void Proxy::start_decode(Routed& routed, std::string body) {
  const bool lost = routed.lost_decode && routed.decode->backend == routed.lost_decode;
  if (lost || decode_.state(*routed.decode->backend) == BackendState::kDown) {
    // Its blocks are pinned already, whoever reads them: no share holds it up.
    reserve(routed, *decode_for({}, 0, routed), routed.handoff ? routed.handoff->blocks : 0);
  }
  if (!routed.handoff) routed.pin = {};
  routed.reply.reset();
  tell("decoding", routed.request_id, routed.decode->text());
  const std::uint64_t number = routed.number;
  HttpCallOptions call =
      leg(routed, "decode", *routed.decode, std::move(body), options_.decode_timeout);
  call.response_bytes_max = SIZE_MAX;  // it is passed on, not kept
  call.on_head = [this, number](const HttpResponse& head) { on_decode_head(number, head); };
  call.on_body = [this, number](std::string_view piece) { on_decode_piece(number, piece); };
  routed.call = HttpCall::start(
      loop_, std::move(call),
      [this, number](const Result<HttpResponse>& response) { on_decode_done(number, response); });
}

// The head of a good answer waits for the first bytes: until then another D can give them, and the
// lease is needed.
void Proxy::on_decode_head(std::uint64_t number, const HttpResponse& head) {
  Routed& routed = *routed_.at(number);
  const bool refused =
      head.status / 100 == 4 || (is_busy(head) && !decode_.any_ready(*routed.decode->backend));
  if (head.status >= 500 && !refused) {
    note_failure(routed, *routed.decode, head);
    routed.lost_decode = routed.decode->backend;
    return apply(number, RoutedEvent::kDecodeFailed);
  }
  routed.reply = head;
  if (refused) apply(number, RoutedEvent::kDecodeRefused);
}

void Proxy::on_decode_piece(std::uint64_t number, std::string_view piece) {
  Routed& routed = *routed_.at(number);
  if (routed.state != RoutedState::kPassing) apply(number, RoutedEvent::kDecodeAnswered);
  routed.responder.write(piece);
  if (!routed.conversation.empty()) routed.watch.feed(piece);
}

void Proxy::on_decode_done(std::uint64_t number, const Result<HttpResponse>& response) {
  Routed& routed = *routed_.at(number);
  if (response) {
    if (routed.state != RoutedState::kPassing) apply(number, RoutedEvent::kDecodeAnswered);
    return apply(number, RoutedEvent::kDecodeEnded);
  }
  note_failure(routed, *routed.decode, response);
  const bool too_long = routed.reply && response.error().code == ErrorCode::kTimeout;
  if (!too_long) on_call_died(BackendRole::kDecode, routed.decode, response.error());
  routed.lost_decode = routed.decode->backend;
  apply(number, RoutedEvent::kDecodeFailed);
}

// An instance that answers no probe may have lost its machine, which no connection tells: what the
// clients have seen nothing of goes another way.
void Proxy::give_up_legs(BackendRole role, std::size_t backend) {
  const bool prefill = role == BackendRole::kPrefill;
  std::vector<std::uint64_t> lost;
  for (const auto& [number, routed] : routed_) {
    const auto& target = prefill ? routed->prefill : routed->decode;
    const bool waits = prefill ? routed->state == RoutedState::kPrefilling ||
                                     routed->state == RoutedState::kPrefillingAgain
                               : routed->state == RoutedState::kDecoding ||
                                     routed->state == RoutedState::kDecodingAgain ||
                                     routed->state == RoutedState::kDecodingAlone ||
                                     routed->state == RoutedState::kDecodingAloneAgain;
    if (waits && target->backend == backend) lost.push_back(number);
  }
  for (const std::uint64_t number : lost) {
    Routed& routed = *routed_.at(number);
    const Target& target = prefill ? *routed.prefill : *routed.decode;
    routed.call = {};
    note_failure(routed, target,
                 error(ErrorCode::kTimeout, target.text() + " does not answer any more"));
    if (prefill) {
      routed.prefill_use = {};
      metrics_.on_decoded_alone(DecodeAloneCause::kPrefillTimeout);
    } else {
      routed.lost_decode = backend;
    }
    apply(number, prefill ? RoutedEvent::kPrefillFailed : RoutedEvent::kDecodeFailed);
  }
}

// What the client is told when no attempt is left.
void Proxy::note_failure(Routed& routed, const Target& target,
                         const Result<HttpResponse>& response) {
  if (!response) {
    routed.failure = response.error();
    routed.failure_status = response.error().code == ErrorCode::kTimeout ? 504 : 502;
    routed.leg_span.fail(routed.failure.message);
    return;
  }
  routed.failure = {ErrorCode::kUnavailable,
                    target.text() + " answered with HTTP " + std::to_string(response->status)};
  routed.leg_span.fail(routed.failure.message);
  routed.failure_status =
      response->status == 503 || response->status == 504 ? response->status : 502;
}

}  // namespace kvlease
