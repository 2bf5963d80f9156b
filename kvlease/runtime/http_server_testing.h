// A server for tests of the HTTP server, and raw connections to it. Real sockets, port 0.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvlease/runtime/http_server.h"
#include "kvlease/runtime/loop_testing.h"
#include "kvlease/runtime/socket_testing.h"

namespace kvlease {

inline constexpr std::string_view kGet = "GET /v1/models?a=b%20c&d HTTP/1.1\r\nHost: h\r\n\r\n";

// A server that keeps what arrives for the test to answer, unless `answer_at_once` is set.
class HttpServerTest : public testing::Test {
 protected:
  struct Pending {
    HttpRequest request;
    HttpResponder responder;
  };

  void serve(HttpServerOptions options) {
    auto listening = HttpServer::listen(
        loop, std::move(options), [this](HttpRequest request, HttpResponder responder) {
          if (answer_at_once) {
            responder.respond({.body = request.method + " " + request.path + "?" + request.query +
                                       "|" + request.body});
          } else {
            pending.push_back({std::move(request), std::move(responder)});
          }
        });
    ASSERT_TRUE(listening) << listening.error().message;
    server.emplace(std::move(*listening));
  }

  RawConnection connect() { return RawConnection::connect(server->port()); }
  bool wait_for(const std::function<bool()>& done) {
    return run_until(loop, done, std::chrono::seconds(20));
  }

  // The whole answer to raw bytes that end the connection.
  std::string answer_to(std::string_view bytes) {
    RawConnection client = connect();
    EXPECT_EQ(client.send(bytes), bytes.size());
    EXPECT_TRUE(wait_for([&] { return client.ended(); }));
    return client.received();
  }

  // Sends `bytes` and waits until the request that they make is pending.
  RawConnection request(std::string_view bytes) {
    RawConnection client = connect();
    client.send(bytes);
    EXPECT_TRUE(wait_for([&] { return pending.size() == 1; }));
    return client;
  }

  void expect_still_serving() {
    answer_at_once = true;
    EXPECT_THAT(answer_to("GET /alive HTTP/1.1\r\nConnection: close\r\n\r\n"),
                testing::EndsWith("\r\n\r\nGET /alive?|"));
  }

  EventLoop loop;
  std::vector<Pending> pending;
  bool answer_at_once = false;
  std::optional<HttpServer> server;
};

}  // namespace kvlease
