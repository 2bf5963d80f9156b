// The HTTP server: accepts connections within its limit, and hands answers to their sessions.
#include "kvlease/runtime/http_server.h"

#include <algorithm>
#include <utility>

#include "kvlease/base/check.h"
#include "kvlease/runtime/http_server_impl.h"
#include "kvlease/runtime/process.h"

namespace kvlease {
namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;

// How many connections beyond the limit are told so at a time; further ones are just closed.
constexpr std::size_t kRefusalsMax = 64;
// After a failed accept (no file descriptors left): when to try again.
constexpr std::chrono::milliseconds kAcceptRetryTime{100};
// Among how many idle connections one is looked for whose client is not sending just now.
constexpr int kIdleLookedAt = 16;

HttpServerOptions with_descriptors_left(HttpServerOptions options) {
  options.connections_max =
      std::clamp<std::size_t>(open_files_max() / 2, 1, options.connections_max);
  return options;
}

}  // namespace

HttpResponse plain_refusal(int status, std::string_view message) {
  HttpResponse response{.status = status,
                        .headers = {{"Content-Type", "text/plain"}},
                        .body = std::string(message) + "\n"};
  if (status == 503) response.headers.add("Retry-After", "1");
  return response;
}

Result<void> HttpServer::Impl::listen() {
  error_code failure;
  const auto refuse = [&] {
    return error(
        ErrorCode::kUnavailable,
        "cannot listen on " + host_and_port(options.host, options.port) + ": " + failure.message());
  };
  const auto found = tcp::resolver(loop.io()).resolve(options.host, std::to_string(options.port),
                                                      tcp::resolver::passive, failure);
  if (failure) return refuse();
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor_.open(endpoint.protocol(), failure);
  if (!failure) acceptor_.set_option(tcp::acceptor::reuse_address(true), failure);
  if (!failure) acceptor_.bind(endpoint, failure);
  if (!failure) acceptor_.listen(tcp::acceptor::max_listen_connections, failure);
  if (failure) return refuse();
  port_ = acceptor_.local_endpoint(failure).port();
  if (failure) return refuse();
  accept();
  return {};
}

void HttpServer::Impl::accept() {
  acceptor_.async_accept([weak = weak_from_this()](error_code failure, tcp::socket socket) {
    const auto self = weak.lock();
    if (!self || !self->acceptor_.is_open()) return;
    if (!failure) {
      self->admit(std::move(socket));
      if (self->acceptor_.is_open()) self->accept();
      return;
    }
    self->evict_idle();
    self->retry_timer_.expires_after(kAcceptRetryTime);
    self->retry_timer_.async_wait([weak](error_code cancelled) {
      const auto still = weak.lock();
      if (!cancelled && still && still->acceptor_.is_open()) still->accept();
    });
  });
}

void HttpServer::Impl::admit(tcp::socket socket) {
  if (sessions_.size() >= options.connections_max) evict_idle();
  if (sessions_.size() >= options.connections_max + kRefusalsMax) return;
  const auto session = std::make_shared<Session>(std::move(socket), *this);
  sessions_.insert(session);
  if (sessions_.size() > options.connections_max) {
    session->refuse(503, "all of " + std::to_string(options.connections_max) +
                             " connections are at work: come again");
  } else {
    session->start();
  }
}

bool HttpServer::Impl::evict_idle() {
  int looked_at = 0;
  for (Session* const session : idle_) {
    if (session->has_nothing_to_read()) {
      session->close_if_idle();
      return true;
    }
    if (++looked_at == kIdleLookedAt) break;
  }
  return false;
}

void HttpServer::Impl::close() {
  error_code ignored;
  acceptor_.close(ignored);
  retry_timer_.cancel();
  for (const auto& session : std::exchange(sessions_, {})) session->abandon();
}

void HttpServer::Impl::drain() {
  draining_ = true;
  error_code ignored;
  acceptor_.close(ignored);
  retry_timer_.cancel();
  const auto sessions = sessions_;
  for (const auto& session : sessions) session->close_if_idle();
}

HttpResponder::HttpResponder(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
HttpResponder::HttpResponder(HttpResponder&&) noexcept = default;

HttpResponder& HttpResponder::operator=(HttpResponder&& other) noexcept {
  HttpResponder moved = std::move(other);
  std::swap(exchange_, moved.exchange_);
  return *this;
}

HttpResponder::~HttpResponder() {
  if (!exchange_ || exchange_->stage == Exchange::Stage::kFinished) return;
  const auto exchange = exchange_;
  exchange->forget_callbacks();
  const auto session = exchange->session.lock();
  if (!session) return;
  if (exchange->stage == Exchange::Stage::kUnanswered) {
    respond(session->dropped());
  } else {
    session->lose();
  }
}

void HttpResponder::on_disconnect(std::move_only_function<void()> callback) {
  KVL_CHECK(exchange_->stage != Exchange::Stage::kFinished, "the answer is not finished");
  exchange_->on_disconnect = std::move(callback);
  if (exchange_->session.expired()) exchange_->lost();
}

void HttpResponder::on_written(std::move_only_function<void(bool)> callback) {
  KVL_CHECK(exchange_->stage != Exchange::Stage::kFinished, "the answer is not finished");
  exchange_->on_written = std::move(callback);
}

void HttpResponder::respond(HttpResponse response) {
  KVL_CHECK(exchange_->stage == Exchange::Stage::kUnanswered, "a request is answered once");
  exchange_->set_finished();
  if (const auto session = exchange_->session.lock()) {
    session->respond(response);
  } else {
    exchange_->lost();
  }
}

void HttpResponder::start_stream(int status, HttpHeaders headers) {
  KVL_CHECK(exchange_->stage == Exchange::Stage::kUnanswered, "a request is answered once");
  exchange_->stage = Exchange::Stage::kStreaming;
  if (const auto session = exchange_->session.lock()) session->start_stream(status, headers);
}

void HttpResponder::write(std::string_view piece) {
  KVL_CHECK(exchange_->stage == Exchange::Stage::kStreaming, "pieces follow start_stream()");
  if (const auto session = exchange_->session.lock()) session->write_piece(piece);
}

void HttpResponder::finish() {
  KVL_CHECK(exchange_->stage == Exchange::Stage::kStreaming, "finish() ends a stream");
  exchange_->set_finished();
  if (const auto session = exchange_->session.lock()) {
    session->finish();
  } else {
    exchange_->lost();
  }
}

HttpServer::HttpServer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::HttpServer(HttpServer&&) noexcept = default;

HttpServer& HttpServer::operator=(HttpServer&& other) noexcept {
  HttpServer moved = std::move(other);
  std::swap(impl_, moved.impl_);
  return *this;
}

HttpServer::~HttpServer() {
  if (impl_) impl_->close();
}

Result<HttpServer> HttpServer::listen(EventLoop& loop, HttpServerOptions options, Handler handler) {
  auto impl =
      std::make_shared<Impl>(loop, with_descriptors_left(std::move(options)), std::move(handler));
  if (auto listening = impl->listen(); !listening) {
    return std::unexpected(std::move(listening.error()));
  }
  return HttpServer(std::move(impl));
}

std::uint16_t HttpServer::port() const { return impl_->port(); }
void HttpServer::drain() { impl_->drain(); }
std::size_t HttpServer::open_connections() const { return impl_->open_connections(); }

}  // namespace kvlease
