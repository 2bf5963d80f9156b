// What must hold for every stream of bytes that a server or a client of ours reads: no crash, an
// end, and the same outcome in whatever pieces they come. Real sockets on loopback. The fuzzers run
// this on new inputs, corpus_test.cc on the committed ones.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvlease/base/bytes.h"
#include "kvlease/base/check.h"
#include "kvlease/base/prng.h"
#include "kvlease/runtime/http_client.h"
#include "kvlease/runtime/http_server.h"
#include "kvlease/runtime/loop_testing.h"
#include "kvlease/runtime/socket_testing.h"

namespace kvlease {

inline constexpr Duration kFuzzLimit = std::chrono::seconds(5);

// Sends all of it, at once or in pieces of a few bytes with turns of the loop between them.
inline void send_to(RawConnection& connection, EventLoop& loop, std::string_view bytes,
                    bool in_pieces) {
  Prng prng(bytes.size());
  while (!bytes.empty() && !connection.ended()) {
    const std::size_t most = in_pieces ? 1 + prng.below(16) : bytes.size();
    bytes.remove_prefix(connection.send(bytes.substr(0, most)));
    run_until(loop, [turns = 0]() mutable { return ++turns == 2; }, kFuzzLimit);
  }
}

// What a server made of a client's bytes.
struct ServedBytes {
  std::vector<HttpRequest> requests;
  std::string answers;
};

inline ServedBytes serve_bytes(std::string_view bytes, bool in_pieces) {
  static EventLoop loop;
  ServedBytes served;
  auto server = HttpServer::listen(
      loop, {.header_bytes_max = 4096, .body_bytes_max = 4096, .idle_timeout = kFuzzLimit},
      [&](HttpRequest request, HttpResponder responder) {
        served.requests.push_back(std::move(request));
        responder.respond({.body = "answered"});
      });
  KVL_CHECK(server.has_value(), "a port is free");
  RawConnection client = RawConnection::connect(server->port());
  send_to(client, loop, bytes, in_pieces);
  client.shutdown_send();
  KVL_CHECK(run_until(loop, [&] { return client.ended(); }, kFuzzLimit), "a connection ends");
  served.answers = client.received();
  client.reset();
  KVL_CHECK(run_until(
                loop, [&] { return server->open_connections() == 0; }, kFuzzLimit),
            "and is forgotten");
  return served;
}

inline bool same_request(const HttpRequest& a, const HttpRequest& b) {
  return a.method == b.method && a.path == b.path && a.query == b.query && a.headers == b.headers &&
         a.body == b.body;
}

// A status line is the version and a number; what a refusal says of HTTP/1.1 is none.
inline std::size_t count_answers(std::string_view answers) {
  constexpr std::string_view kVersion = "HTTP/1.1 ";
  std::size_t count = 0;
  for (std::size_t at = answers.find(kVersion); at != std::string_view::npos;
       at = answers.find(kVersion, at + 1)) {
    const std::string_view status = answers.substr(at + kVersion.size(), 3);
    if (!status.empty() && status[0] >= '2' && status[0] <= '5') ++count;  // 100 is no answer
  }
  return count;
}

inline void check_http_server(std::string_view bytes) {
  const ServedBytes whole = serve_bytes(bytes, false);
  const ServedBytes pieces = serve_bytes(bytes, true);
  KVL_CHECK(std::ranges::equal(whole.requests, pieces.requests, same_request),
            "pieces make the same requests");
  for (const HttpRequest& request : whole.requests) {
    KVL_CHECK(request.body.size() <= 4096, "L43");
    KVL_CHECK(request.path.find('?') == std::string::npos, "the query is apart");
    for (const HttpHeader& header : request.headers) {
      KVL_CHECK(header.value.find('\n') == std::string::npos, "a header is one line");
    }
  }
  // Every request has its answer, and what is no request at most one.
  const std::size_t answers = count_answers(whole.answers);
  KVL_CHECK(answers >= whole.requests.size() && answers <= whole.requests.size() + 1,
            "a request is answered once");
}

// What a client made of a server's bytes.
inline Result<HttpResponse> call_answered_by(std::string_view bytes, bool in_pieces) {
  static EventLoop loop;
  RawListener listener(1);
  std::optional<Result<HttpResponse>> result;
  const HttpCall call = HttpCall::start(loop,
                                        {.host = "127.0.0.1",
                                         .port = listener.port(),
                                         .timeout = kFuzzLimit,
                                         .response_bytes_max = 4096,
                                         .header_bytes_max = 4096},
                                        [&](Result<HttpResponse> answer) { result = answer; });
  std::optional<RawConnection> server;
  KVL_CHECK(run_until(
                loop,
                [&] {
                  if (!server) {
                    if (auto accepted = listener.accept()) server.emplace(std::move(*accepted));
                  }
                  return server && server->received_contains("\r\n\r\n");
                },
                kFuzzLimit),
            "the client asks");
  send_to(*server, loop, bytes, in_pieces);
  server->shutdown_send();
  KVL_CHECK(run_until(loop, [&] { return result.has_value(); }, kFuzzLimit), "a call ends");
  server->reset();
  return *std::move(result);
}

inline void check_http_client(std::string_view bytes) {
  const Result<HttpResponse> whole = call_answered_by(bytes, false);
  const Result<HttpResponse> pieces = call_answered_by(bytes, true);
  KVL_CHECK(whole.has_value() == pieces.has_value(), "pieces make the same answer");
  if (!whole) {
    KVL_CHECK(whole.error().code == pieces.error().code, "or the same error");
    KVL_CHECK(whole.error().code != ErrorCode::kTimeout, "the end of the bytes is an end");
    return;
  }
  KVL_CHECK(whole->status == pieces->status && whole->headers == pieces->headers &&
                whole->body == pieces->body,
            "pieces make the same answer");
  KVL_CHECK(whole->status >= 200 && whole->body.size() <= 4096, "L43");
}

}  // namespace kvlease
