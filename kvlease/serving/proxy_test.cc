// Tests of proxy.h before instances that are made of a few lines: what each leg gets, byte for
// byte, and what the client gets when an instance refuses, fails, hangs or dies.
#include "kvlease/serving/proxy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "kvlease/serving/access.h"
#include "kvlease/serving/answers.h"

namespace kvlease {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr Duration kLimit = seconds{20};
constexpr std::string_view kParams =
    R"({"do_remote_prefill":true, "remote_request_id":"lease-1","x":9007199254740993,)"
    R"("remote_block_ids":[[1,2,3]],)"
    R"("kvlease":{"v":1,"incarnation":"0000000000000001","slot":1,"word":"0000000100000000",)"
    R"("digest":"00000000000000000000000000000000","digest_tokens":3,)"
    R"("seal":"00000000000000000000000000000000","lease_duration_ms":600,)"
    R"("heartbeat_interval_ms":100,"release_by":"decoder"}})";

// An instance that answers by a script, and remembers what it was asked.
struct FakeInstance {
  std::vector<HttpRequest> asked;     // completions
  std::vector<std::string> released;  // bodies and peer keys of calls about leases
  std::vector<std::string> renewed;
  bool has_lease = true;  // what it says of them
  int status = 200;
  int ready_status = 200;
  std::string ready_body;
  int probes = 0;
  bool busy = false;  // 503 with Retry-After
  std::string body;
  bool hangs = false;              // never answers
  std::deque<std::string> pieces;  // of a stream; empty: one body
  bool cuts = false;               // after the pieces
  std::vector<HttpResponder> held;
  std::optional<HttpServer> server;
};

class ProxyTest : public ::testing::Test {
 protected:
  ProxyTest() {
    for (FakeInstance* instance : {&p1_, &p2_, &d1_, &d2_}) listen(*instance, 0);
    for (FakeInstance* p : {&p1_, &p2_}) {
      p->body = R"({"id":"p","kv_transfer_params":)" + std::string(kParams) + "}";
    }
    for (FakeInstance* d : {&d1_, &d2_}) d->body = R"({"text":"decoded"})";
  }

  void listen(FakeInstance& instance, std::uint16_t port) {
    auto server = HttpServer::listen(loop_, {.port = port},
                                     [&instance](HttpRequest request, HttpResponder responder) {
                                       handle(instance, std::move(request), std::move(responder));
                                     });
    ASSERT_TRUE(server) << server.error().message;
    instance.server.emplace(std::move(*server));
  }

  static void handle(FakeInstance& instance, HttpRequest request, HttpResponder responder) {
    if (request.path.starts_with("/health")) {
      ++instance.probes;
      return responder.respond(
          {.status = instance.ready_status, .headers = {}, .body = instance.ready_body});
    }
    if (request.path.starts_with("/kvlease/v1/leases/")) {
      const bool renews = request.path.ends_with("/renew");
      (renews ? instance.renewed : instance.released)
          .push_back(request.body + ' ' +
                     std::string(request.headers.find(kPeerKeyHeader).value_or("")));
      return responder.respond(json_response(
          200, instance.has_lease ? R"({"unknown":[]})" : R"({"unknown":["lease-1"]})"));
    }
    instance.asked.push_back(std::move(request));
    if (instance.busy) {
      return responder.respond(error_response({ErrorCode::kResourceExhausted, "full"}));
    }
    if (instance.hangs) return instance.held.push_back(std::move(responder));
    if (instance.pieces.empty()) {
      return responder.respond(json_response(instance.status, instance.body));
    }
    responder.start_stream(instance.status, {{"Content-Type", "text/event-stream"}});
    for (const std::string& piece : instance.pieces) responder.write(piece);
    if (!instance.cuts) return responder.finish();
    instance.held.push_back(std::move(responder));
  }

  static HttpUrl url(const FakeInstance& instance) {
    return {.host = "127.0.0.1", .port = instance.server->port()};
  }

  void start(ProxyOptions options) {
    options.prefill = {url(p1_), url(p2_)};
    options.decode = {url(d1_), url(d2_)};
    options.connect_timeout = seconds{1};
    options.on_event = [this](std::string_view event) { events_ += std::string(event) + '\n'; };
    auto proxy = Proxy::start(loop_, std::move(options));
    ASSERT_TRUE(proxy) << proxy.error().message;
    proxy_ = std::move(*proxy);
  }

  bool run_until(const std::function<bool()>& condition) {
    const Instant end = loop_.now() + kLimit;
    bool holds = false;
    loop_.run([&](Instant now) {
      const Instant next = proxy_->turn(now);
      holds = condition();
      if (holds || now >= end) loop_.stop();
      return earlier(next, end);
    });
    return holds;
  }

  HttpCallOptions completion(std::string body) {
    return {.host = "127.0.0.1",
            .port = proxy_->port(),
            .method = "POST",
            .target = "/v1/completions",
            .headers = {{"Content-Type", "application/json"}},
            .body = std::move(body)};
  }
  Result<HttpResponse> ask(HttpCallOptions options) {
    std::optional<Result<HttpResponse>> answer;
    const HttpCall call = HttpCall::start(
        loop_, std::move(options), [&](Result<HttpResponse> got) { answer = std::move(got); });
    EXPECT_TRUE(run_until([&] { return answer.has_value(); }));
    return answer ? *answer : error(ErrorCode::kTimeout, "no answer");
  }
  Result<HttpResponse> ask(std::string body) { return ask(completion(std::move(body))); }
  std::string scrape() {
    const auto answer = ask({.host = "127.0.0.1", .port = proxy_->port(), .target = "/metrics"});
    return answer ? answer->body : answer.error().message;
  }
  std::size_t asked_of_decode() const { return d1_.asked.size() + d2_.asked.size(); }

  EventLoop loop_;
  FakeInstance p1_;
  FakeInstance p2_;
  FakeInstance d1_;
  FakeInstance d2_;
  std::string events_;
  std::unique_ptr<Proxy> proxy_;
};

constexpr std::string_view kBody = R"({"prompt":"a", "max_tokens":7, "unknown" : 1.50})";

TEST_F(ProxyTest, C06_EachLegGetsItsBodyAndTheParamsComeVerbatim) {
  start({});
  HttpCallOptions call = completion(std::string(kBody));
  call.headers.add("X-Request-Id", "my-id");
  call.headers.add("Authorization", "Bearer secret");
  call.headers.add("traceparent", "00-1");
  call.headers.add("X-Kvlease-Peer-Key", "not-for-others");
  call.headers.add("Accept-Encoding", "gzip");
  const auto answer = ask(std::move(call));
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->body, d1_.body);
  EXPECT_THAT(answer->headers.find_all("X-Request-Id"), ElementsAre("my-id"));
  ASSERT_EQ(p1_.asked.size(), 1u);
  ASSERT_EQ(d1_.asked.size(), 1u);
  EXPECT_THAT(p1_.asked[0].body, HasSubstr(R"("max_tokens":1)"));
  EXPECT_THAT(p1_.asked[0].body, HasSubstr(R"("do_remote_decode":true)"));
  EXPECT_THAT(p1_.asked[0].body, HasSubstr(R"("unknown" : 1.50)"));
  EXPECT_THAT(d1_.asked[0].body, HasSubstr(R"("kv_transfer_params":)" + std::string(kParams)));
  EXPECT_THAT(d1_.asked[0].body, HasSubstr(R"("max_tokens":7)"));
  for (const HttpRequest* leg : {&p1_.asked[0], &d1_.asked[0]}) {
    EXPECT_THAT(leg->headers.find_all("X-Request-Id"), ElementsAre("my-id"));
    EXPECT_EQ(leg->headers.find("Authorization"), "Bearer secret");
    EXPECT_EQ(leg->headers.find("traceparent"), "00-1");
    EXPECT_EQ(leg->headers.find(kPeerKeyHeader), std::nullopt);
  }
  EXPECT_EQ(p1_.asked[0].headers.find("Accept-Encoding"), std::nullopt);
  EXPECT_EQ(d1_.asked[0].headers.find("Accept-Encoding"), "gzip");
}

TEST_F(ProxyTest, AnAnswerOfAnySizeIsPassedOn) {
  d1_.body = std::string(40u << 20, 'x');
  start({});
  HttpCallOptions call = completion(std::string(kBody));
  std::size_t got = 0;
  call.response_bytes_max = SIZE_MAX;
  call.on_body = [&](std::string_view piece) { got += piece.size(); };
  const auto answer = ask(std::move(call));
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(got, d1_.body.size());
  EXPECT_EQ(events_.find("backend_down"), std::string::npos);
}

TEST_F(ProxyTest, AStreamIsPassedOnByteForByte) {
  d1_.pieces = {"data: {\"a\":1}\n\n", ": comment\n", "data: [DONE]\n\n"};
  start({});
  const auto answer = ask(std::string(kBody));
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->body, "data: {\"a\":1}\n\n: comment\ndata: [DONE]\n\n");
  EXPECT_EQ(answer->headers.find("Content-Type"), "text/event-stream");
}

TEST_F(ProxyTest, ARefusalOfThePrefillIsTheClientsAnswer) {
  p1_.status = 400;
  p1_.body = R"({"error":{"message":"too long"}})";
  start({});
  const auto answer = ask(std::string(kBody));
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->status, 400);
  EXPECT_EQ(answer->body, p1_.body);
  EXPECT_EQ(asked_of_decode(), 0u);
}

TEST_F(ProxyTest, H07_WithoutAHandoffTheDecoderGetsTheOriginalBody) {
  for (const auto& [status, body] :
       std::vector<std::pair<int, std::string>>{{503, "{}"},
                                                {500, "x"},
                                                {302, ""},
                                                {200, "{}"},
                                                {200, "no JSON"},
                                                {200, R"({"kv_transfer_params":null})"}}) {
    for (FakeInstance* p : {&p1_, &p2_}) {
      p->status = status;
      p->body = body;
    }
    d1_.asked.clear();
    d2_.asked.clear();
    start({});
    const auto answer = ask(std::string(kBody));
    ASSERT_TRUE(answer) << answer.error().message;
    EXPECT_EQ(answer->status, 200) << status << body;
    ASSERT_EQ(d1_.asked.size(), 1u);
    EXPECT_EQ(d1_.asked[0].body, kBody);
    EXPECT_THAT(events_, HasSubstr("decode_alone"));
  }
}

TEST_F(ProxyTest, APrefillThatHangsIsDoneWithout) {
  p1_.hangs = true;
  start({.prefill_timeout = milliseconds{200}});
  const auto answer = ask(std::string(kBody));
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(d1_.asked.at(0).body, kBody);
  EXPECT_THAT(events_, HasSubstr("backend_down"));
}

TEST_F(ProxyTest, WhileNoPrefillCanBeReachedNobodyWaitsForOne) {
  p1_.hangs = p2_.hangs = true;
  start({.prefill_timeout = milliseconds{200}});
  for (int request = 0; request < 2; ++request) {  // each takes one of them down
    ASSERT_TRUE(ask(std::string(kBody)));
  }
  const std::size_t asked = p1_.asked.size() + p2_.asked.size();
  EXPECT_EQ(asked, 2u);
  const auto answer = ask(std::string(kBody));
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(p1_.asked.size() + p2_.asked.size(), asked);
}

TEST_F(ProxyTest, H12_ADecoderThatFailsBeforeAByteIsReplacedByOneWithTheSameLease) {
  d1_.status = 500;
  start({.peer_key = "the-key", .release_by = ReleaseBy::kRouter});
  const auto answer = ask(std::string(kBody));
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->body, d2_.body);
  EXPECT_EQ(p1_.asked.size() + p2_.asked.size(), 1u);  // no second prefill
  EXPECT_EQ(d2_.asked.at(0).body, d1_.asked.at(0).body);
  EXPECT_THAT(p1_.renewed, ElementsAre(R"({"request_ids":["lease-1"]} the-key)"));  // L2, L51
  EXPECT_TRUE(run_until([&] { return !p1_.released.empty(); }));
  EXPECT_THAT(p1_.released, ElementsAre(R"({"request_ids":["lease-1"]} the-key)"));  // L10, once
}

TEST_F(ProxyTest, H12_WithoutALeaseAnotherPairBeginsAgain) {
  d1_.status = 500;
  p1_.has_lease = false;
  start({});
  const auto answer = ask(std::string(kBody));
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->body, d2_.body);
  EXPECT_EQ(p1_.asked.size(), 1u);
  EXPECT_EQ(p2_.asked.size(), 1u);
  EXPECT_THAT(p1_.released, testing::IsEmpty());
}

// L2: nobody names the lease yet, or D waits: the router does, once an interval for all together.
TEST_F(ProxyTest, LeasesAreRenewedUntilTheDecoderHasBegun) {
  d1_.hangs = true;
  d2_.hangs = true;
  start({.prefill_policy = RoutePolicy::kRoundRobin});
  std::optional<Result<HttpResponse>> answer;
  const HttpCall pending =
      HttpCall::start(loop_, completion(std::string(kBody)),
                      [&](Result<HttpResponse> got) { answer = std::move(got); });
  ASSERT_TRUE(run_until([&] { return p1_.renewed.size() >= 3; }));
  EXPECT_THAT(scrape(), HasSubstr("kvlease_route_leases_bridged 1"));
  EXPECT_THAT(scrape(), HasSubstr("kvlease_route_pinned_blocks{prefill=\"http://127.0.0.1:" +
                                  std::to_string(p1_.server->port())));
  d1_.held.at(0).respond(json_response(200, "{}"));
  ASSERT_TRUE(run_until([&] { return answer.has_value(); }));
  EXPECT_THAT(scrape(), HasSubstr("kvlease_route_leases_bridged 0"));
  const std::size_t renewed = p1_.renewed.size();
  const Instant later = loop_.now() + milliseconds{300};  // three intervals
  run_until([&] { return loop_.now() >= later; });
  EXPECT_EQ(p1_.renewed.size(), renewed);
  EXPECT_THAT(p1_.released, testing::IsEmpty());  // D has told P (L33)
}

// The head alone is no sign of life: until the first byte another decoder can answer.
TEST_F(ProxyTest, ADecoderThatIsLostAfterItsHeadIsReplaced) {
  d1_.pieces = {""};
  d1_.cuts = true;
  start({});
  std::optional<Result<HttpResponse>> answer;
  const HttpCall pending =
      HttpCall::start(loop_, completion(std::string(kBody)),
                      [&](Result<HttpResponse> got) { answer = std::move(got); });
  ASSERT_TRUE(run_until([&] { return !d1_.held.empty(); }));
  d1_.held.clear();
  ASSERT_TRUE(run_until([&] { return answer.has_value(); }));
  ASSERT_TRUE(*answer) << answer->error().message;
  EXPECT_EQ((*answer)->body, d2_.body);
}

// L43: a P that is full is not done without; the next one is asked, or the client comes again.
TEST_F(ProxyTest, ABusyPrefillIsNotReplacedByADecoder) {
  p1_.busy = true;
  start({});
  const auto second = ask(std::string(kBody));
  ASSERT_TRUE(second) << second.error().message;
  EXPECT_EQ(second->status, 200);
  EXPECT_EQ(p2_.asked.size(), 1u);
  p2_.busy = true;
  const auto full = ask(std::string(kBody));
  ASSERT_TRUE(full) << full.error().message;
  EXPECT_EQ(full->status, 503);
  EXPECT_EQ(full->headers.find("Retry-After"), "1");
  EXPECT_EQ(asked_of_decode(), 1u);
}

// F14: when every decoder has its share of P's blocks, P does not work in vain.
TEST_F(ProxyTest, F14_ADecoderPinsNoMoreThanItsShare) {
  d1_.hangs = d2_.hangs = true;
  for (FakeInstance* p : {&p1_, &p2_}) {
    p->ready_body = R"({"waiting":0,"max_num_waiting":9,"blocks_leased":0,"blocks_leased_max":10})";
  }
  start({.decode_share = 0.7});
  ASSERT_TRUE(run_until([&] { return p1_.probes > 0 && p2_.probes > 0; }));
  scrape();  // their answers are here before this one
  std::vector<HttpCall> waiting;
  std::optional<int> refused;
  // 3 blocks each: two fit into 7, on each of four pairs.
  for (std::size_t request = 1; request <= 9; ++request) {
    waiting.push_back(
        HttpCall::start(loop_, completion(std::string(kBody)),
                        [&](const Result<HttpResponse>& got) { refused = got ? got->status : 0; }));
    ASSERT_TRUE(run_until([&] { return asked_of_decode() >= request || refused; }));
  }
  EXPECT_EQ(refused, 503);
  EXPECT_EQ(asked_of_decode(), 8u);
  EXPECT_EQ(p1_.asked.size() + p2_.asked.size(), 8u);
  EXPECT_THAT(scrape(), HasSubstr(R"(kvlease_route_refusals_total{cause="decode_share"} 1)"));
  d1_.held.at(0).respond(json_response(200, "{}"));  // its blocks are free again
  refused.reset();
  ASSERT_TRUE(run_until([&] { return refused.has_value(); }));
  EXPECT_EQ(refused, 200);
  waiting.push_back(
      HttpCall::start(loop_, completion(std::string(kBody)), [](const Result<HttpResponse>&) {}));
  EXPECT_TRUE(run_until([&] { return asked_of_decode() == 9; }));
}

TEST_F(ProxyTest, WhenBothDecodersFailTheClientIsToldInWords) {
  for (const auto& [theirs, ours] : std::vector<std::pair<int, int>>{{500, 502}, {503, 503}}) {
    d1_.status = d2_.status = theirs;
    start({});
    const auto answer = ask(std::string(kBody));
    ASSERT_TRUE(answer) << answer.error().message;
    EXPECT_EQ(answer->status, ours);
    EXPECT_THAT(answer->body, HasSubstr("HTTP " + std::to_string(theirs)));
    EXPECT_EQ(answer->headers.find("Retry-After").has_value(), ours == 503);
  }
}

TEST_F(ProxyTest, DecodersThatAreGoneGiveA502AndOneThatHangsA504) {
  d1_.hangs = d2_.hangs = true;
  start({.decode_timeout = milliseconds{200}});
  const auto hung = ask(std::string(kBody));
  ASSERT_TRUE(hung) << hung.error().message;
  EXPECT_EQ(hung->status, 504);
  d1_.server.reset();
  d2_.server.reset();
  const auto gone = ask(std::string(kBody));
  ASSERT_TRUE(gone) << gone.error().message;
  EXPECT_EQ(gone->status, 502);
}

TEST_F(ProxyTest, ADecoderThatIsLostInMidStreamLeavesAnIncompleteAnswer) {
  d1_.pieces = {"data: 1\n\n"};
  d1_.cuts = true;
  start({});
  bool begun = false;
  std::optional<Result<HttpResponse>> answer;
  HttpCallOptions call = completion(std::string(kBody));
  call.on_body = [&](std::string_view) { begun = true; };
  const HttpCall pending = HttpCall::start(
      loop_, std::move(call), [&](Result<HttpResponse> got) { answer = std::move(got); });
  ASSERT_TRUE(run_until([&] { return begun; }));
  d1_.held.clear();  // the connection is cut
  ASSERT_TRUE(run_until([&] { return answer.has_value(); }));
  EXPECT_FALSE(*answer);
  EXPECT_EQ(d2_.asked.size(), 0u);
}

TEST_F(ProxyTest, AClientThatLeavesCancelsTheLegAndGivesTheLeaseBack) {
  d1_.hangs = true;
  start({});
  {
    const HttpCall pending =
        HttpCall::start(loop_, completion(std::string(kBody)), [](const Result<HttpResponse>&) {});
    ASSERT_TRUE(run_until([&] { return !d1_.asked.empty(); }));
  }
  bool cancelled = false;
  d1_.held.at(0).on_disconnect([&] { cancelled = true; });
  EXPECT_TRUE(run_until([&] { return cancelled && !p1_.released.empty(); }));
}

TEST_F(ProxyTest, AReleaseThatMeetsNobodyIsTriedOnceMore) {  // L10
  d1_.hangs = true;
  start({});
  {
    const HttpCall pending =
        HttpCall::start(loop_, completion(std::string(kBody)), [](const Result<HttpResponse>&) {});
    ASSERT_TRUE(run_until([&] { return !d1_.asked.empty(); }));
    p1_.server.reset();
  }
  EXPECT_TRUE(run_until([&] { return events_.find("release_failed") != std::string::npos; }))
      << events_;
  EXPECT_THAT(scrape(), HasSubstr(R"(kvlease_route_releases_total{result="failed"} 1)"));
}

// L33: with release_by router, D ends only what it has read; the rest is the router's.
TEST_F(ProxyTest, AsItsReleaserTheRouterEndsEveryLeaseItself) {
  start({.release_by = ReleaseBy::kRouter});
  const auto answer = ask(std::string(kBody));
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_THAT(d1_.asked.at(0).body, HasSubstr(R"("release_by":"router")"));
  EXPECT_THAT(d1_.asked.at(0).body, HasSubstr("9007199254740993"));
  EXPECT_TRUE(run_until([&] { return !p1_.released.empty(); }));
}

TEST_F(ProxyTest, APrefillNamedByTheClientMustBeOneOfOurs) {
  start({.allow_peers = {"127.0.0.2"}});
  HttpCallOptions call = completion(std::string(kBody));
  call.headers.add("x-prefiller-host-port",
                   "other:1, 127.0.0.1:" + std::to_string(p2_.server->port()) + ",x");
  const auto answer = ask(std::move(call));
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->status, 200);
  ASSERT_EQ(p2_.asked.size(), 1u);
  EXPECT_EQ(p2_.asked[0].headers.find("x-prefiller-host-port"), std::nullopt);
  for (const char* other : {"evil:80", "127.0.0.1:1", "http://127.0.0.1:1", "", "a b"}) {
    HttpCallOptions refused = completion(std::string(kBody));
    refused.headers.add("x-prefiller-host-port", other);
    const auto no = ask(std::move(refused));
    ASSERT_TRUE(no) << no.error().message;
    EXPECT_EQ(no->status, 400) << other;
  }
}

TEST_F(ProxyTest, WhatIsNoRequestHasItsAnswer) {
  start({.api_key = "k"});
  const struct {
    std::string method;
    std::string target;
    std::string body;
    std::string key;
    int status;
  } rows[] = {{"POST", "/v1/completions", "", "Bearer k", 400},
              {"POST", "/v1/completions", "[]", "Bearer k", 400},
              {"POST", "/v1/completions", R"({"a":1,"a":2})", "Bearer k", 400},
              {"POST", "/v1/completions", R"({"kv_transfer_params":{"x":1}})", "Bearer k", 400},
              {"POST", "/v1/completions", std::string(100, '['), "Bearer k", 400},
              {"POST", "/v1/completions", std::string(kBody), "Bearer x", 401},
              {"POST", "/v1/chat/completions", std::string(kBody), "", 401},
              {"GET", "/v1/models", "", "", 401},
              {"GET", "/v1/completions", "", "Bearer k", 405},
              {"POST", "/health", "", "", 405},
              {"GET", "/v1/embeddings", "", "Bearer k", 404},
              {"GET", "/", "", "", 404},
              {"GET", "/health", "", "", 200},
              {"GET", "/metrics", "", "", 200}};
  for (const auto& row : rows) {
    HttpCallOptions call{.host = "127.0.0.1",
                         .port = proxy_->port(),
                         .method = row.method,
                         .target = row.target,
                         .body = row.body};
    if (!row.key.empty()) call.headers.add("Authorization", row.key);
    const auto answer = ask(std::move(call));
    ASSERT_TRUE(answer) << answer.error().message;
    EXPECT_EQ(answer->status, row.status) << row.method << row.target << row.body << answer->body;
  }
  EXPECT_EQ(p1_.asked.size() + p2_.asked.size() + asked_of_decode(), 0u);
}

TEST_F(ProxyTest, BeyondItsBoundItSaysWhenToComeAgain) {  // L43
  p1_.hangs = p2_.hangs = true;
  start({.requests_max = 1});
  const HttpCall first =
      HttpCall::start(loop_, completion(std::string(kBody)), [](const Result<HttpResponse>&) {});
  ASSERT_TRUE(run_until([&] { return !p1_.asked.empty(); }));
  const auto second = ask(std::string(kBody));
  ASSERT_TRUE(second) << second.error().message;
  EXPECT_EQ(second->status, 503);
  EXPECT_EQ(second->headers.find("Retry-After"), "1");
}

TEST_F(ProxyTest, ItIsReadyWhenADecoderIs) {
  d1_.ready_status = d2_.ready_status = 503;
  start({});
  const auto ready = [&] {
    return ask({.host = "127.0.0.1", .port = proxy_->port(), .target = "/health/ready"});
  };
  EXPECT_TRUE(run_until([&] { return events_.find("backend_busy") != std::string::npos; }));
  const auto busy = ready();
  ASSERT_TRUE(busy);
  EXPECT_EQ(busy->status, 503);
  EXPECT_THAT(busy->body, HasSubstr(R"("role":"decode","state":"busy")"));
  d2_.ready_status = 200;
  EXPECT_TRUE(run_until([&] { return events_.find("backend_up") != std::string::npos; }));
  const auto up = ready();
  ASSERT_TRUE(up);
  EXPECT_EQ(up->status, 200) << up->body;
}

TEST_F(ProxyTest, ItDrainsWhatIsUnderWayAndRefusesMore) {  // L36
  d1_.hangs = true;
  start({});
  std::optional<Result<HttpResponse>> answer;
  const HttpCall pending =
      HttpCall::start(loop_, completion(std::string(kBody)),
                      [&](Result<HttpResponse> got) { answer = std::move(got); });
  ASSERT_TRUE(run_until([&] { return !d1_.asked.empty(); }));
  proxy_->drain(loop_.now());
  const auto refused = ask(std::string(kBody));
  ASSERT_TRUE(refused) << refused.error().message;
  EXPECT_EQ(refused->status, 503);
  EXPECT_FALSE(proxy_->drained(loop_.now()));
  d1_.held.at(0).respond(json_response(200, "{}"));
  ASSERT_TRUE(run_until([&] { return answer.has_value(); }));
  EXPECT_EQ((*answer)->status, 200);
  EXPECT_TRUE(run_until([&] { return proxy_->drained(loop_.now()); }));
}

// L39: the next turn's prefill gets what D held, once; D is never told of the conversation.
TEST_F(ProxyTest, AConversationsNextTurnFindsWhatItsDecoderHolds) {
  const std::string held = R"({"do_remote_decode":true,"remote_engine_id":"d"})";
  for (FakeInstance* d : {&d1_, &d2_})
    d->body = R"({"text":"x","kv_transfer_params":)" + held + "}";
  start({});
  const std::string body = R"({"prompt":"a","conversation_id":"c1"})";
  for (int turn = 0; turn < 3; ++turn) {
    if (turn == 1) {  // this turn's answer holds nothing
      for (FakeInstance* d : {&d1_, &d2_}) d->body = R"({"text":"x"})";
    }
    const auto answer = ask(body);
    ASSERT_TRUE(answer) << answer.error().message;
    const FakeInstance& p = turn % 2 == 0 ? p1_ : p2_;
    const std::string& asked = p.asked.back().body;
    EXPECT_EQ(asked.find(held) != std::string::npos, turn == 1) << turn << asked;
    EXPECT_EQ(asked.find("conversation_id"), std::string::npos);
  }
  for (const FakeInstance* d : {&d1_, &d2_}) {
    for (const HttpRequest& request : d->asked) {
      EXPECT_EQ(request.body.find("conversation_id"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace kvlease
