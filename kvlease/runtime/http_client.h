// HTTP/1.1 calls on the loop, each on a connection of its own: a probe must not be answered by a
// connection that was open before its peer died (scenario D09).
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

struct HttpCallOptions {
  std::string host;
  std::uint16_t port = 0;
  std::string method = "GET";
  std::string target = "/";
  HttpHeaders headers;  // Host, Content-Length and Connection are added
  std::string body;

  Duration connect_timeout = std::chrono::seconds(2);  // name look-up included
  Duration timeout = std::chrono::seconds(10);         // of the whole call; kForever: none
  std::size_t response_bytes_max = 32 * 1024 * 1024;   // of the body
  std::size_t header_bytes_max = 32 * 1024;

  // Called with status and headers (no body) as soon as they are there. May be empty.
  std::move_only_function<void(const HttpResponse& head)> on_head = {};
  // Called with each piece of the body as it arrives; the response at the end has then none. May be
  // empty.
  std::move_only_function<void(std::string_view piece)> on_body = {};
};

// A call under way. Destroying it (also in one of its own callbacks) cancels the call: no callback
// runs afterwards, and the connection is closed.
class HttpCall {
 public:
  using Done = std::move_only_function<void(Result<HttpResponse>)>;

  // A call that is over.
  HttpCall();
  HttpCall(HttpCall&&) noexcept;
  HttpCall& operator=(HttpCall&&) noexcept;
  ~HttpCall();

  // Starts a call. `done` is called once, from the loop, never from here, with whatever the server
  // answered (any status).
  // Errors: kUnavailable when the server cannot be reached, hangs up or does not speak HTTP;
  // kTimeout for either limit; kResourceExhausted for an answer larger than allowed. The message
  // names the server.
  [[nodiscard]] static HttpCall start(EventLoop& loop, HttpCallOptions options, Done done);

  class Impl;

 private:
  explicit HttpCall(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace kvlease
