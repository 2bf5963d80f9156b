// An HTTP/1.1 server on the loop. A handler gets whole requests and answers now or later, with one
// body or a stream of pieces; it learns when the client went away before that, and whether the
// answer was written in full (L34). Whatever a client sends ends at worst its own connection.
//
// Requests of one connection are served one after the other (pipelined ones wait). A client that
// closes its sending side while it waits is answered all the same; one that is gone altogether is
// told from it within a round trip (session: on_half_close).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "kvlease/base/result.h"
#include "kvlease/base/time.h"
#include "kvlease/runtime/http.h"
#include "kvlease/runtime/loop.h"

namespace kvlease {

// An answer that the server gives of itself, in plain text.
HttpResponse plain_refusal(int status, std::string_view message);

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // an address of this machine, or a name of one
  std::uint16_t port = 0;          // 0: any free one

  // The bounds of L43, each with what happens at it.
  std::size_t header_bytes_max = 32 * 1024;       // 431, connection closed
  std::size_t body_bytes_max = 32 * 1024 * 1024;  // 413, connection closed
  // Half of what the process may open, if that is less. Beyond it the connection that has been idle
  // for longest is closed; if none is idle, the new one gets 503 with Retry-After.
  std::size_t connections_max = 4096;
  std::size_t unsent_bytes_max = 16 * 1024 * 1024;  // of a stream: taken as a disconnect

  // How long a connection may lie idle, a request may take from its first byte to its last (408),
  // and a client may take nothing of an answer (taken as a disconnect); not how long the handler
  // may take.
  Duration idle_timeout = std::chrono::seconds(75);
  Duration request_timeout = std::chrono::seconds(60);
  Duration stall_timeout = std::chrono::seconds(30);

  // Makes the answers that the server gives of itself: 400, 408, 413, 431, 500 and 503.
  HttpResponse (*refusal)(int status, std::string_view message) = plain_refusal;
};

// One request's answer. Dropped unanswered it sends 500; dropped in the middle of a stream it cuts
// the connection, so that the client sees an incomplete body. Calls after a disconnect have no
// effect but on_written(false).
class HttpResponder {
 public:
  HttpResponder(HttpResponder&&) noexcept;
  HttpResponder& operator=(HttpResponder&&) noexcept;
  ~HttpResponder();

  // `callback` is called once, from the loop, if the client goes away before respond() or finish().
  void on_disconnect(std::move_only_function<void()> callback);
  // `callback` is called once, from the loop, after respond() or finish(): true when every byte of
  // the answer was handed to the kernel, false when the connection failed before. Source: L34.
  // Requires: neither respond() nor finish() was called.
  void on_written(std::move_only_function<void(bool ok)> callback);

  // Answers in one piece. Requires: nothing was answered yet.
  void respond(HttpResponse response);

  // Answers in pieces: the head goes out at once, each piece as soon as the client takes it
  // (chunked encoding; to HTTP/1.0 clients the end is the end of the connection). Requires: nothing
  // was answered yet.
  void start_stream(int status, HttpHeaders headers);
  // Requires: start_stream() was called, finish() was not.
  void write(std::string_view piece);
  void finish();

  struct Exchange;
  explicit HttpResponder(std::shared_ptr<Exchange> exchange);

 private:
  std::shared_ptr<Exchange> exchange_;
};

class HttpServer {
 public:
  using Handler = std::move_only_function<void(HttpRequest, HttpResponder)>;

  // Binds and listens. `loop` must outlive the server; `handler` is called on it.
  // Errors: kUnavailable when the address cannot be bound (in use, not of this machine, not
  // numeric).
  static Result<HttpServer> listen(EventLoop& loop, HttpServerOptions options, Handler handler);

  HttpServer(HttpServer&&) noexcept;
  HttpServer& operator=(HttpServer&&) noexcept;
  // Closes all connections; no callback of a pending answer is called any more.
  ~HttpServer();

  // The port that was bound.
  std::uint16_t port() const;

  // Stops listening and closes idle connections; those with a request go on until it is answered.
  void drain();

  std::size_t open_connections() const;

  class Impl;

 private:
  explicit HttpServer(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace kvlease
