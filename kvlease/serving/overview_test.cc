// Tests of overview.h and cluster_watch.h before instances that are made of a few lines, and of the
// page itself.
#include "kvlease/serving/overview.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>

#include "kvlease/runtime/loop_testing.h"
#include "kvlease/serving/access.h"
#include "kvlease/serving/answers.h"
#include "kvlease/serving/ui_page.h"
#include "kvlease/serving/view_json.h"
#include "kvlease/wire/json_fields.h"

namespace kvlease {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

EventView numbered(std::uint64_t number, double age_s, const std::string& name) {
  EventView event;
  event.number = number;
  event.age_s = age_s;
  event.event = name;
  return event;
}

constexpr Duration kLimit = std::chrono::seconds{20};

InstanceView instance_view(std::string engine) {
  return {.engine = std::move(engine),
          .role = "kv_producer",
          .status = "ready",
          .blocks = {.free = 10, .cached = 20, .in_use = 70, .leased = 50}};
}

// An instance that says what the test wants.
struct FakeInstance {
  InstanceView view;
  EventsView events{.incarnation = "a"};
  std::string broken_body;  // instead of the view; empty: none
  int status = 200;
  bool hangs = false;
  std::map<std::string, int> asked;  // by target
  std::vector<std::string> keys;
  std::vector<HttpResponder> held;
  std::optional<HttpServer> server;

  void handle(const HttpRequest& request, HttpResponder responder) {
    ++asked[request.path + (request.query.empty() ? "" : "?" + request.query)];
    keys.emplace_back(request.headers.find(kPeerKeyHeader).value_or(""));
    if (hangs) return held.push_back(std::move(responder));
    if (status != 200) {
      return responder.respond(
          error_response({ErrorCode::kPermissionDenied, "show <b>a key</b>\x1b"}, status));
    }
    responder.respond(json_response(200, request.path == kEventsPath ? to_json(events)
                                         : broken_body.empty()       ? to_json(view)
                                                                     : broken_body));
  }
};

class OverviewTest : public ::testing::Test {
 protected:
  OverviewTest() {
    p_.view = instance_view("P1");
    d_.view = instance_view("D1");
    for (FakeInstance* instance : {&p_, &d_}) {
      auto server = HttpServer::listen(
          loop_, {}, [instance](const HttpRequest& request, HttpResponder responder) {
            instance->handle(request, std::move(responder));
          });
      EXPECT_TRUE(server) << server.error().message;
      instance->server.emplace(std::move(*server));
    }
  }

  WatchedInstance watched(const FakeInstance& instance, std::string role) const {
    return {.url = {.host = "127.0.0.1", .port = instance.server->port()}, .role = std::move(role)};
  }

  void start(std::string api_key, std::string peer_key) {
    overview_.emplace(loop_,
                      OverviewOptions{.instances = {watched(p_, "prefill"), watched(d_, "decode")},
                                      .api_key = std::move(api_key),
                                      .peer_key = std::move(peer_key)},
                      [this] { return router_; });
    auto server =
        HttpServer::listen(loop_, {}, [this](const HttpRequest& request, HttpResponder responder) {
          if (overview_->handle(request, responder)) return;
          responder.respond(json_response(404, "not the page's"));
        });
    ASSERT_TRUE(server) << server.error().message;
    server_.emplace(std::move(*server));
  }

  struct Pending {
    std::optional<Result<HttpResponse>> answer;
    HttpCall call;
  };
  std::unique_ptr<Pending> begin(HttpHeaders headers = {},
                                 std::string target = std::string(kOverviewPath),
                                 std::string method = "GET") {
    auto pending = std::make_unique<Pending>();
    pending->call = HttpCall::start(
        loop_,
        {.host = "127.0.0.1",
         .port = server_->port(),
         .method = std::move(method),
         .target = std::move(target),
         .headers = std::move(headers)},
        [to = pending.get()](Result<HttpResponse> got) { to->answer = std::move(got); });
    return pending;
  }
  HttpResponse ask(HttpHeaders headers = {}, std::string target = std::string(kOverviewPath),
                   std::string method = "GET") {
    const auto pending = begin(std::move(headers), std::move(target), std::move(method));
    EXPECT_TRUE(run_until(loop_, [&] { return pending->answer.has_value(); }, kLimit));
    if (!pending->answer || !*pending->answer) {
      ADD_FAILURE() << "no answer";
      return {};
    }
    return **pending->answer;
  }
  // One round of a watch.
  ClusterView look(ClusterWatch& watch) {
    bool done = false;
    watch.ask([&] { done = true; });
    EXPECT_TRUE(run_until(loop_, [&] { return done; }, kLimit));
    return watch.view(loop_.now());
  }

  EventLoop loop_;
  FakeInstance p_;
  FakeInstance d_;
  RouterView router_{.status = "ready", .requests_under_way = 1};
  std::optional<Overview> overview_;
  std::optional<HttpServer> server_;
};

TEST_F(OverviewTest, OneAnswerHoldsAllInstancesAndTheRouter) {
  p_.view.leases_live = 2;
  p_.view.leases = {{.id = "late", .slack_s = 9, .duration_s = 30, .reader = "D1"},
                    {.id = "soon", .slack_s = 1, .duration_s = 30}};
  p_.events.last = 2;
  p_.events.events = {{.number = 1, .age_s = 5, .event = "lease_granted", .lease = "soon"},
                      {.number = 2, .age_s = 1, .event = "leases_renewed", .peer = "D1"}};
  d_.events.last = 7;
  d_.events.events = {{.number = 7, .age_s = 2, .event = "handshake_done", .peer = "P1"}};
  router_.requests = {{.request = "r1", .state = "decoding", .age_s = 2, .prefill = "http://p"}};
  router_.backend_states = {"ready", "busy"};
  router_.counters = {{.name = "requests", .label = "completed", .value = 3}};
  start("", "");
  const HttpResponse answer = ask();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.find("Cache-Control"), "no-store");
  const std::string& body = answer.body;
  EXPECT_THAT(body,
              HasSubstr(R"("router":{"status":"ready","requests_under_way":1,"requests":[{)"
                        R"("request":"r1","state":"decoding","age_s":2,"prefill":"http://p")"));
  EXPECT_THAT(body, HasSubstr(R"({"name":"requests","label":"completed","value":3})"));
  EXPECT_THAT(body, HasSubstr(R"("role":"decode","state":"busy","engine":"D1")"));
  EXPECT_THAT(body, HasSubstr(R"("leases_live":2,"leases":[{"instance":"P1","id":"soon")"));
  EXPECT_LT(body.find(R"("id":"soon")"), body.find(R"("id":"late")"));
  // The newest first, without heartbeats.
  EXPECT_LT(body.find(R"("instance":"D1","number":7)"), body.find(R"("instance":"P1","number":1)"));
  EXPECT_THAT(body, Not(HasSubstr("leases_renewed")));
}

TEST_F(OverviewTest, AllViewersOfASecondCostOneRound) {
  start("", "");
  std::vector<std::unique_ptr<Pending>> viewers;
  for (int i = 0; i < 20; ++i) viewers.push_back(begin());
  ASSERT_TRUE(run_until(
      loop_,
      [&] {
        return std::ranges::all_of(viewers,
                                   [](const auto& viewer) { return viewer->answer.has_value(); });
      },
      kLimit));
  ask();
  EXPECT_EQ(p_.asked[std::string(kLeasesPath)], 1);
  EXPECT_EQ(d_.asked[std::string(kLeasesPath)], 1);
  const Instant end = loop_.now() + kLimit;
  while (p_.asked[std::string(kLeasesPath)] == 1 && loop_.now() < end) ask();
  EXPECT_EQ(p_.asked[std::string(kLeasesPath)], 2);
}

TEST_F(OverviewTest, AnInstanceThatIsGoneOrHangsOrTalksNonsenseStopsNobody) {
  start("", "");
  d_.server.reset();
  EXPECT_THAT(ask().body, HasSubstr("Connection refused"));
  EXPECT_THAT(ask().body, HasSubstr(R"("engine":"P1")"));

  ClusterWatch watch(loop_, "");
  watch.set_instances({watched(p_, "prefill")});
  p_.hangs = true;
  EXPECT_THAT(look(watch).instances[0].problem, HasSubstr("no answer within 1000 ms"));
  p_.hangs = false;
  p_.broken_body = "<html>";
  EXPECT_THAT(look(watch).instances[0].problem, HasSubstr("JSON"));
  p_.broken_body = std::string(kViewBytesMax + 1, ' ');
  EXPECT_THAT(look(watch).instances[0].problem, HasSubstr("larger than"));
  p_.broken_body.clear();
  p_.status = 401;
  EXPECT_EQ(look(watch).instances[0].problem, "HTTP 401: show <b>a key</b>?");
  EXPECT_EQ(shown_name(look(watch).instances[0]), shown_url(look(watch).instances[0]));
  p_.status = 200;
  const InstanceRow row = look(watch).instances[0];
  EXPECT_EQ(row.problem, "");
  EXPECT_EQ(row.view, p_.view);
  p_.server.reset();
  EXPECT_EQ(shown_name(look(watch).instances[0]), "P1");  // it is still known by its name
}

TEST_F(OverviewTest, EachEventIsTakenOnceAndARestartBeginsAnew) {
  ClusterWatch watch(loop_, "");
  watch.set_instances({watched(p_, "")});
  const auto numbers = [](const ClusterView& view) {
    std::vector<std::string> texts;
    for (const EventView& event : view.instances[0].events) {
      texts.push_back(event.event + " " + std::to_string(event.number + event.count));
    }
    return texts;
  };
  p_.events = {.incarnation = "a", .last = 41, .missed = 40, .events = {numbered(41, 3, "e")}};
  EXPECT_THAT(numbers(look(watch)), ElementsAre("e 41"));  // what was before is nobody's loss
  p_.events = {.incarnation = "a", .last = 41, .missed = 0, .events = {}};
  EXPECT_THAT(numbers(look(watch)), ElementsAre("e 41"));
  p_.events = {.incarnation = "a", .last = 50, .missed = 8, .events = {numbered(50, 0, "e")}};
  EXPECT_THAT(numbers(look(watch)), ElementsAre("e 50", "events_missed 8", "e 41"));
  EXPECT_EQ(p_.asked[std::string(kEventsPath) + "?after=41"], 2);
  p_.events = {.incarnation = "b", .last = 60, .missed = 0, .events = {numbered(60, 0, "other")}};
  look(watch);  // asked after 50: it may lack the first ones
  p_.events = {.incarnation = "b",
               .last = 60,
               .missed = 58,
               .events = {numbered(59, 1, "o"), numbered(60, 0, "o")}};
  EXPECT_THAT(numbers(look(watch)), ElementsAre("o 60", "o 59", "e 50", "events_missed 8", "e 41"));
  EXPECT_EQ(p_.asked[std::string(kEventsPath) + "?after=0"], 2);
}

TEST_F(OverviewTest, WhoStaysKeepsItsEvents) {
  ClusterWatch watch(loop_, "");
  watch.set_instances({watched(p_, "prefill"), watched(d_, "decode")});
  p_.events = {.incarnation = "a", .last = 1, .missed = 0, .events = {numbered(1, 3, "e")}};
  look(watch);
  watch.set_instances({watched(p_, "prefill")});
  p_.events = {.incarnation = "a", .last = 1, .missed = 0, .events = {}};
  const ClusterView view = look(watch);
  ASSERT_EQ(view.instances.size(), 1u);
  ASSERT_EQ(view.instances[0].events.size(), 1u);
  EXPECT_GE(view.instances[0].events[0].age_s, 3);
}

TEST_F(OverviewTest, TheApiKeyGuardsIt) {
  start("api", "peer");
  EXPECT_EQ(ask().status, 401);
  EXPECT_EQ(ask({{"Authorization", "Bearer apj"}}).status, 401);
  EXPECT_EQ(ask({{std::string(kPeerKeyHeader), "peer"}}).status, 401);
  EXPECT_TRUE(p_.asked.empty());
  EXPECT_EQ(ask({{"Authorization", "Bearer api"}}).status, 200);
  EXPECT_THAT(p_.keys, ElementsAre("peer", "peer"));     // L51: the router's own
  EXPECT_EQ(ask({}, std::string(kUiPath)).status, 200);  // it holds nothing yet
}

TEST_F(OverviewTest, WithoutAnApiKeyThePeerKeyGuardsIt) {  // L51
  start("", "peer");
  EXPECT_EQ(ask().status, 401);
  EXPECT_EQ(ask({{std::string(kPeerKeyHeader), "peer"}}).status, 200);
}

TEST_F(OverviewTest, OtherMethodsAndPathsAreNotItsOwn) {
  start("", "");
  for (const std::string_view path : {kUiPath, kOverviewPath}) {
    const HttpResponse answer = ask({}, std::string(path), "POST");
    EXPECT_EQ(answer.status, 405);
    EXPECT_EQ(answer.headers.find("Allow"), "GET");
  }
  EXPECT_EQ(ask({}, "/kvlease/ui/").status, 404);
  EXPECT_EQ(ask({}, "/kvlease/v1/overview/x").status, 404);
}

TEST_F(OverviewTest, ItHasABoundHoweverMuchThereIs) {  // L43
  for (FakeInstance* instance : {&p_, &d_}) {
    const std::string id(512, 'x');
    instance->view.leases_live = 1'000'000;
    instance->view.leases.assign(kLeasesListedMax, {.id = id, .reader = id});
    instance->events.last = kEventsKept;
    instance->events.events.assign(kEventsKept, {.number = 1, .event = "e", .detail = id});
  }
  router_.requests.assign(5000, {.request = "r"});
  start("", "");
  const std::string body = ask().body;
  std::optional<Error> problem;
  JsonObject json = open_json(body, body.size(), "the overview", problem);
  ASSERT_FALSE(problem) << problem->message;
  EXPECT_EQ(json.array("leases", true, "")->size(), kOverviewLeasesMax);
  EXPECT_EQ(json.array("events", true, "")->size(), kOverviewEventsMax);
  EXPECT_EQ(json.object("router", true)->array("requests", true, "")->size(), kOverviewRequestsMax);
}

TEST_F(OverviewTest, HostileTextsStayTexts) {  // L44
  const std::string bad = "</script><img src=x onerror=alert(1)>\"\x1b\x7f\n";
  d_.view.engine = bad;
  d_.view.leases_live = 1;
  d_.view.leases = {{.id = bad, .reader = bad}};
  d_.events.last = 1;
  d_.events.events = {{.number = 1, .event = "e", .peer = bad, .detail = bad}};
  start("", "");
  const std::string body = ask().body;
  std::optional<Error> problem;
  JsonObject json = open_json(body, body.size(), "the overview", problem);
  ASSERT_FALSE(problem) << problem->message;
  for (const char c : body) EXPECT_TRUE(c >= ' ' && c <= '~');
  EXPECT_THAT(body, HasSubstr(R"(onerror=alert(1)>\"???")"));
}

TEST_F(OverviewTest, ThePageBringsEverythingAndAllowsNothingElse) {
  start("", "");
  const HttpResponse first = ask({}, std::string(kUiPath));
  const HttpResponse second = ask({}, std::string(kUiPath));
  EXPECT_EQ(first.headers.find("Content-Type"), "text/html; charset=utf-8");
  const std::string policy(first.headers.find("Content-Security-Policy").value_or(""));
  EXPECT_TRUE(policy.starts_with("default-src 'none'; script-src 'nonce-")) << policy;
  EXPECT_THAT(policy, HasSubstr("frame-ancestors 'none'"));
  EXPECT_THAT(policy, Not(HasSubstr("unsafe")));
  const std::size_t at = policy.find("nonce-") + 6;
  const std::string nonce = policy.substr(at, policy.find('\'', at) - at);
  EXPECT_EQ(nonce.size(), 32u);
  EXPECT_THAT(first.body, HasSubstr("<script nonce=\"" + nonce + "\">"));
  EXPECT_THAT(first.body, HasSubstr("<style nonce=\"" + nonce + "\">"));
  EXPECT_THAT(first.body, Not(HasSubstr(std::string(kUiNonce))));
  EXPECT_NE(second.headers.find("Content-Security-Policy"), policy);  // each its own
}

TEST(UiPage, HasNothingFromElsewhereAndNoWayForTextToBecomeCode) {
  const std::string page(ui_page());
  EXPECT_TRUE(page.starts_with("<!doctype html>"));
  EXPECT_TRUE(page.ends_with("</html>\n"));
  for (const char* part :
       {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(",
        "https:", "src=", "@import", "url(", " onclick", " onerror", " style=\"", "localStorage"}) {
    EXPECT_THAT(page, Not(HasSubstr(part)));
  }
}

TEST(RouterAnswer, NamesItsInstances) {
  const auto router = instances_of_router(
      R"({"status":"ready","instances":[{"url":"http://h:1","role":"prefill","state":"ready"},)"
      R"({"url":"http://[::1]:2","role":"\u001bx","failures":3}]})");
  ASSERT_TRUE(router && *router);
  EXPECT_THAT(**router, ElementsAre(WatchedInstance{{.host = "h", .port = 1}, "prefill"},
                                    WatchedInstance{{.host = "::1", .port = 2}, "?x"}));
  for (const char* instance : {R"({"status":"ready","waiting":0})", "", "<html>", "[]", "{}"}) {
    const auto none = instances_of_router(instance);
    ASSERT_TRUE(none) << instance;
    EXPECT_FALSE(*none) << instance;
  }
  for (const char* broken : {R"({"instances":7})", R"({"instances":[7]})", R"({"instances":[{}]})",
                             R"({"instances":[{"url":"ftp://h","role":"a"}]})"}) {
    EXPECT_FALSE(instances_of_router(broken)) << broken;
  }
  std::string many = R"({"instances":[)";
  for (int i = 0; i < 300; ++i) many += R"({"url":"http://h:1","role":"decode"},)";
  many.back() = ']';
  EXPECT_EQ((*instances_of_router(many + "}"))->size(), 256u);  // L43
}

}  // namespace
}  // namespace kvlease
