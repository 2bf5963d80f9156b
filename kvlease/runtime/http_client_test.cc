// The client against servers that answer, hang, hang up, talk nonsense or are not there.
#include "kvlease/runtime/http_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "kvlease/runtime/http_server.h"
#include "kvlease/runtime/loop_testing.h"
#include "kvlease/runtime/socket_testing.h"

namespace kvlease {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

constexpr Duration kLimit = 20s;

class HttpClientTest : public testing::Test {
 protected:
  HttpCallOptions to(std::uint16_t port) { return {.host = "127.0.0.1", .port = port}; }

  void start(HttpCallOptions options) {
    call = HttpCall::start(loop, std::move(options), [this](Result<HttpResponse> response) {
      results.push_back(std::move(response));
    });
    EXPECT_TRUE(results.empty()) << "callbacks come from the loop";
  }

  bool wait_for(const std::function<bool()>& done) { return run_until(loop, done, kLimit); }

  // The raw server's side of the connection that a call makes.
  RawConnection accepted() {
    std::optional<RawConnection> connection;
    EXPECT_TRUE(wait_for([&] {
      if (auto next = listener.accept()) connection.emplace(std::move(*next));
      return connection.has_value();
    }));
    return std::move(*connection);
  }

  // Starts a call that is answered by `bytes`, then by the end of the connection; returns its
  // result.
  Result<HttpResponse> answered_by(std::string_view bytes, HttpCallOptions options) {
    results.clear();
    start(std::move(options));
    RawConnection server = accepted();
    EXPECT_TRUE(wait_for([&] { return server.received_contains("\r\n\r\n"); }));
    server.send(bytes);
    server.shutdown_send();
    EXPECT_TRUE(wait_for([&] { return !results.empty(); }));
    return std::move(results.at(0));
  }
  Result<HttpResponse> answered_by(std::string_view bytes) {
    return answered_by(bytes, to(listener.port()));
  }

  void expect_failure(ErrorCode code, std::string_view words) {
    ASSERT_TRUE(wait_for([&] { return !results.empty(); }));
    ASSERT_FALSE(results[0]);
    EXPECT_EQ(results[0].error().code, code);
    EXPECT_THAT(results[0].error().message, HasSubstr(words));
  }

  EventLoop loop;
  RawListener listener{16};
  std::vector<Result<HttpResponse>> results;
  HttpCall call;
};

TEST_F(HttpClientTest, WritesTheRequest) {
  HttpCallOptions options = to(listener.port());
  options.method = "POST";
  options.target = "/v1/completions?x";
  options.headers = {{"X-Request-Id", "a\r\nb"}, {"transfer-encoding", "chunked"}};
  options.body = "body";
  start(std::move(options));
  RawConnection server = accepted();
  EXPECT_TRUE(wait_for([&] { return server.received_contains("body"); }));
  EXPECT_EQ(server.received(), "POST /v1/completions?x HTTP/1.1\r\nHost: 127.0.0.1:" +
                                   std::to_string(listener.port()) +
                                   "\r\nX-Request-Id: a  b\r\nContent-Length: 4\r\n"
                                   "Connection: close\r\n\r\nbody");
}

TEST_F(HttpClientTest, ReadsEveryFormOfAnswer) {
  for (const std::string_view bytes : {
           "HTTP/1.1 404 Not Found\r\nX-A: 1\r\nContent-Length: 3\r\n\r\nabc",
           "HTTP/1.1 404 Not Found\r\nX-A: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
           "1\r\na\r\n2\r\nbc\r\n0\r\n\r\n",
           "HTTP/1.0 404 Not Found\r\nX-A: 1\r\n\r\nabc",
           "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
           "HTTP/1.1 404 Not Found\r\nX-A: 1\r\nContent-Length: 3\r\n\r\nabc",
       }) {
    const auto response = answered_by(bytes);
    ASSERT_TRUE(response) << response.error().message;
    EXPECT_EQ(response->status, 404);
    EXPECT_EQ(response->headers.find("x-a"), "1");
    EXPECT_EQ(response->body, "abc");
  }
  HttpCallOptions head = to(listener.port());
  head.method = "HEAD";
  const auto response =
      answered_by("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", std::move(head));
  ASSERT_TRUE(response);
  EXPECT_EQ(response->body, "");
}

TEST_F(HttpClientTest, TellsWhatIsWrongWithAnAnswer) {
  const struct {
    std::string_view bytes;
    ErrorCode code;
    std::string_view words;
  } kCases[] = {
      {"", ErrorCode::kUnavailable, "hung up without an answer"},
      {"HTTP/1.1 200 OK\r\nConte", ErrorCode::kUnavailable, "in the middle of its answer"},
      {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", ErrorCode::kUnavailable,
       "in the middle of its answer"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n", ErrorCode::kUnavailable,
       "in the middle of its answer"},
      {"SSH-2.0-OpenSSH_9.2\r\n\r\n", ErrorCode::kUnavailable, "does not speak HTTP"},
      {"HTTP/1.0 000 OK\r\n\r\n", ErrorCode::kUnavailable, "does not speak HTTP"},
      {"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n", ErrorCode::kResourceExhausted,
       "larger than 10 bytes"},
      {"HTTP/1.1 200 OK\r\n\r\n12345678901", ErrorCode::kResourceExhausted, "larger than 10 bytes"},
      {"HTTP/1.1 200 OK\r\nX: 0123456789012345678901234567890123456789012345\r\n\r\n",
       ErrorCode::kResourceExhausted, "its head: 50"},
  };
  for (const auto& expected : kCases) {
    HttpCallOptions options = to(listener.port());
    options.response_bytes_max = 10;
    options.header_bytes_max = 50;
    const auto response = answered_by(expected.bytes, std::move(options));
    ASSERT_FALSE(response) << expected.bytes;
    EXPECT_EQ(response.error().code, expected.code);
    EXPECT_THAT(
        response.error().message,
        testing::StartsWith("GET http://127.0.0.1:" + std::to_string(listener.port()) + "/: "));
    EXPECT_THAT(response.error().message, HasSubstr(expected.words));
  }
}

TEST_F(HttpClientTest, ARefusedConnectionIsUnavailable) {
  const std::uint16_t free_port = RawListener(1).port();
  start(to(free_port));
  expect_failure(ErrorCode::kUnavailable, "Connection refused");
}

TEST_F(HttpClientTest, AResetIsUnavailable) {
  start(to(listener.port()));
  accepted().reset();
  expect_failure(ErrorCode::kUnavailable, "Connection reset");
}

TEST_F(HttpClientTest, ASilentServerTimesOutAndNeverEarly) {
  const Instant before = loop.now();
  HttpCallOptions options = to(listener.port());
  options.timeout = 30ms;
  start(std::move(options));
  expect_failure(ErrorCode::kTimeout, "no answer within 30 ms");
  EXPECT_GE(loop.now() - before, 30ms);
}

TEST_F(HttpClientTest, AServerThatDoesNotAcceptTimesOutSooner) {
  RawListener full(0);
  const RawConnection takes_the_only_place = RawConnection::connect(full.port());
  HttpCallOptions options = to(full.port());
  options.connect_timeout = 30ms;
  start(std::move(options));
  expect_failure(ErrorCode::kTimeout, "no connection within 30 ms");
}

TEST_F(HttpClientTest, ResolvesNames) {
  HttpCallOptions options = to(listener.port());
  options.host = "localhost";
  EXPECT_TRUE(answered_by("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", std::move(options)));
}

TEST_F(HttpClientTest, ADestroyedCallIsCancelled) {
  start(to(listener.port()));
  RawConnection server = accepted();
  EXPECT_TRUE(wait_for([&] { return server.received_contains("\r\n\r\n"); }));
  call = HttpCall();
  EXPECT_TRUE(wait_for([&] { return server.ended(); }));
  EXPECT_TRUE(results.empty());

  start(to(listener.port()));
  call = HttpCall();  // before the connection is there
  start(to(listener.port()));
  EXPECT_TRUE(wait_for([&] { return listener.accept().has_value(); }));
  EXPECT_TRUE(results.empty() || results.size() == 1);
}

TEST_F(HttpClientTest, HandsOverThePiecesOfAStream) {
  std::vector<std::string> pieces;
  std::optional<int> status;
  HttpCallOptions options = to(listener.port());
  options.on_head = [&](const HttpResponse& head) { status = head.status; };
  options.on_body = [&](std::string_view piece) { pieces.emplace_back(piece); };
  start(std::move(options));
  RawConnection server = accepted();
  server.send("HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n");
  EXPECT_TRUE(wait_for([&] { return status.has_value(); }));
  EXPECT_EQ(status, 201);
  server.send("3\r\none\r\n");
  EXPECT_TRUE(wait_for([&] { return pieces.size() == 1; }));
  server.send("3\r\ntwo\r\n0\r\n\r\n");
  EXPECT_TRUE(wait_for([&] { return !results.empty(); }));
  EXPECT_EQ(pieces, (std::vector<std::string>{"one", "two"}));
  ASSERT_TRUE(results[0]);
  EXPECT_EQ(results[0]->status, 201);
  EXPECT_EQ(results[0]->body, "");
}

TEST_F(HttpClientTest, CanBeCancelledInItsOwnCallbacks) {
  for (const bool in_head : {true, false}) {
    int called = 0;
    HttpCallOptions options = to(listener.port());
    const auto cancel = [&] {
      ++called;
      call = HttpCall();
    };
    if (in_head) options.on_head = [&](const HttpResponse&) { cancel(); };
    options.on_body = [&](std::string_view) { cancel(); };
    start(std::move(options));
    RawConnection server = accepted();
    server.send("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc");
    EXPECT_TRUE(wait_for([&] { return server.ended(); }));
    EXPECT_EQ(called, 1);
    EXPECT_TRUE(results.empty());
  }
  bool done = false;
  call = HttpCall::start(loop, to(RawListener(1).port()), [&](Result<HttpResponse>) {
    done = true;
    call = HttpCall();
  });
  EXPECT_TRUE(wait_for([&] { return done; }));
}

TEST_F(HttpClientTest, HearsARefusalBeforeItHasSentEverything) {
  auto server =
      HttpServer::listen(loop, {.body_bytes_max = 1000}, [](HttpRequest, HttpResponder) {});
  ASSERT_TRUE(server);
  HttpCallOptions options = to(server->port());
  options.method = "POST";
  options.body = std::string(32 << 20, 'x');
  start(std::move(options));
  ASSERT_TRUE(wait_for([&] { return !results.empty(); }));
  ASSERT_TRUE(results[0]) << results[0].error().message;
  EXPECT_EQ(results[0]->status, 413);
}

// D09: a call never rides on a connection that an earlier one opened.
TEST_F(HttpClientTest, D09_EachCallHasAFreshConnection) {
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(
        answered_by("HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n"));
  }
}

}  // namespace
}  // namespace kvlease
