// The HTTP server: an acceptor, and a session per connection that is a small state machine around
// one read that is always pending (so that a disconnect is seen at any time) and one write.
#include "kvlease/runtime/http_server.h"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/status.hpp>
#include <boost/beast/http/string_body.hpp>
#include <charconv>
#include <optional>
#include <set>
#include <utility>

#include "kvlease/base/check.h"
#include "kvlease/runtime/http_wire.h"

namespace kvlease {
namespace {

namespace asio = boost::asio;
namespace beast_http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

// After a last answer: how long the client may take to hang up, before it is done for it.
constexpr std::chrono::seconds kLingerTime{2};
// How many connections beyond the limit are told so at a time; further ones are just closed.
constexpr std::size_t kRefusalsMax = 64;
// After a failed accept (no file descriptors left): when to try again.
constexpr std::chrono::milliseconds kAcceptRetryTime{100};

using Parser = beast_http::request_parser<beast_http::string_body>;

int status_of_parse_error(error_code failure) {
  if (failure == beast_http::error::header_limit) return 431;
  if (failure == beast_http::error::body_limit) return 413;
  return 400;
}

std::string status_line(int status) {
  const auto reason = beast_http::obsolete_reason(static_cast<beast_http::status>(status));
  return "HTTP/1.1 " + std::to_string(status) + ' ' + http_wire::to_string(reason) + "\r\n";
}

bool status_has_body(int status) { return status >= 200 && status != 204 && status != 304; }

class Session;

}  // namespace

// One request's answer, owned by its session and its responder. The callbacks stay here until they
// are called or can no longer be, so that a responder that is dropped takes them along.
struct HttpResponder::Exchange : std::enable_shared_from_this<Exchange> {
  enum class Stage { kUnanswered, kStreaming, kFinished };

  Exchange(EventLoop& event_loop, std::weak_ptr<Session> owner)
      : loop(&event_loop), session(std::move(owner)) {}

  EventLoop* loop;                 // null once the server is gone: nothing is called any more
  std::weak_ptr<Session> session;  // empty once the connection is lost
  Stage stage = Stage::kUnanswered;
  std::move_only_function<void()> on_disconnect;
  std::move_only_function<void(bool ok)> on_written;

  void set_finished() {
    stage = Stage::kFinished;
    const auto no_longer_needed = std::exchange(on_disconnect, nullptr);
  }

  void written(bool ok) {
    if (auto callback = std::exchange(on_written, nullptr)) callback(ok);
  }

  // The connection is lost. What follows from that comes from the loop, never from inside a call.
  void lost() {
    session.reset();
    if (loop == nullptr) return;
    loop->post([self = shared_from_this()] {
      if (self->stage == Stage::kFinished) return self->written(false);
      if (auto callback = std::exchange(self->on_disconnect, nullptr)) callback();
    });
  }

  void forget_callbacks() {
    const auto first = std::exchange(on_disconnect, nullptr);
    const auto second = std::exchange(on_written, nullptr);
  }
};

// The server proper; sessions hold it weakly, so that it can go while their last callbacks run out.
class HttpServer::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(EventLoop& event_loop, HttpServerOptions server_options, Handler request_handler)
      : loop(event_loop),
        options(std::move(server_options)),
        acceptor_(loop.io()),
        retry_timer_(loop.io()),
        handler_(std::move(request_handler)) {}

  Result<void> listen();
  void close();
  void drain();
  void handle(HttpRequest request, HttpResponder responder) {
    handler_(std::move(request), std::move(responder));
  }
  void forget(const std::shared_ptr<Session>& session) { sessions_.erase(session); }

  std::uint16_t port() const { return port_; }
  std::size_t open_connections() const { return sessions_.size(); }
  bool draining() const { return draining_; }

  EventLoop& loop;
  const HttpServerOptions options;

 private:
  void accept();
  void admit(tcp::socket socket);

  tcp::acceptor acceptor_;
  asio::steady_timer retry_timer_;
  Handler handler_;
  std::set<std::shared_ptr<Session>> sessions_;  // never walked where the order could be seen
  std::uint16_t port_ = 0;
  bool draining_ = false;
};

namespace {

class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(tcp::socket socket, HttpServer::Impl& server)
      : socket_(std::move(socket)),
        timer_(server.loop.io()),
        server_(&server),
        in_(server.options.header_bytes_max + http_wire::kBodyReadBytes) {}

  void start() {
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    receive_request();
  }

  // Tells a client why it is not served, and ends the connection.
  void refuse(int status);

  void close_if_idle() {
    if (phase_ == Phase::kReceiving && !parser_->got_some()) close();
  }
  // Ends the connection because the server ends.
  void abandon() {
    if (exchange_) {
      exchange_->loop = nullptr;
      exchange_->session.reset();
      exchange_->forget_callbacks();
    }
    server_ = nullptr;
    close();
  }

  void respond(const HttpResponse& response);
  void start_stream(int status, const HttpHeaders& headers);
  void write_piece(std::string_view piece);
  void finish();
  // The connection is of no more use: closes it, and tells the exchange.
  void lose();

 private:
  enum class Phase {
    kReceiving,  // a request, or waiting for one
    kAnswering,  // an exchange is open; what arrives is kept for later
    kRefusing,   // writing the last words
    kLingering,  // everything is written; waiting for the client to hang up
    kClosed,
  };

  void receive_request();
  void read();
  void on_read(error_code failure, std::size_t size);
  void parse();
  void dispatch();
  void append_head(int status, const HttpHeaders& headers, std::string_view framing);
  void write();
  void on_write(error_code failure, std::size_t size);
  void on_all_written();
  void complete_exchange();
  void linger();
  void close();
  void arm(Duration limit);
  void disarm();
  void on_timeout();

  tcp::socket socket_;
  asio::steady_timer timer_;
  std::uint64_t arming_ =
      0;  // tells an expiry that was overtaken by a new arming from a current one
  HttpServer::Impl* server_;  // null once it is gone; the session is closed then
  Phase phase_ = Phase::kReceiving;

  boost::beast::flat_buffer in_;
  bool reading_ = false;
  std::optional<Parser> parser_;

  std::shared_ptr<HttpResponder::Exchange> exchange_;
  bool keep_alive_ = true;
  bool http_1_0_ = false;
  bool head_only_ = false;  // the method is HEAD

  std::string out_;  // to be written next
  bool writing_ = false;
  std::string in_flight_;  // being written, from written_ on
  std::size_t written_ = 0;
};

void Session::receive_request() {
  phase_ = Phase::kReceiving;
  parser_.emplace();
  parser_->header_limit(static_cast<std::uint32_t>(server_->options.header_bytes_max));
  parser_->body_limit(server_->options.body_bytes_max);
  arm(server_->options.idle_timeout);
  parse();
  read();
}

void Session::read() {
  const std::size_t room = in_.max_size() - in_.size();
  if (reading_ || phase_ == Phase::kClosed || room == 0) return;
  reading_ = true;
  const bool in_body = phase_ == Phase::kReceiving && parser_->is_header_done();
  const std::size_t size = in_body ? http_wire::kBodyReadBytes : http_wire::kHeadReadBytes;
  socket_.async_read_some(in_.prepare(std::min(room, size)),
                          [self = shared_from_this()](error_code failure, std::size_t got) {
                            self->on_read(failure, got);
                          });
}

void Session::on_read(error_code failure, std::size_t size) {
  reading_ = false;
  if (phase_ == Phase::kClosed) return;
  if (failure == asio::error::eof && phase_ == Phase::kRefusing) return;  // it may still listen
  if (failure) return lose();
  in_.commit(size);
  if (phase_ == Phase::kReceiving) {
    parse();
  } else if (phase_ != Phase::kAnswering) {
    in_.consume(in_.size());
  }
  read();
}

void Session::parse() {
  const bool head_was_done = parser_->is_header_done();
  error_code failure = http_wire::feed(*parser_, in_);
  if (!failure && !head_was_done && parser_->is_header_done()) {
    const auto expect = parser_->get()[beast_http::field::expect];
    if (!parser_->is_done() && same_header_name(http_wire::to_string(expect), "100-continue")) {
      out_ += "HTTP/1.1 100 Continue\r\n\r\n";
      write();
    }
    parser_->eager(true);
    failure = http_wire::feed(*parser_, in_);
  }
  if (failure) {
    refuse(status_of_parse_error(failure));
  } else if (parser_->is_done()) {
    dispatch();
  } else if (in_.size() == in_.max_size()) {
    refuse(431);
  }
}

void Session::dispatch() {
  phase_ = Phase::kAnswering;
  disarm();
  auto message = parser_->release();
  keep_alive_ = message.keep_alive();
  http_1_0_ = message.version() < 11;
  head_only_ = message.method() == beast_http::verb::head;

  const std::string target = http_wire::to_string(message.target());
  const std::size_t question = std::min(target.find('?'), target.size());
  HttpRequest request{
      .method = http_wire::to_string(message.method_string()),
      .path = target.substr(0, question),
      .query = target.substr(std::min(question + 1, target.size())),
      .headers = http_wire::to_headers(message.base()),
      .body = std::move(message.body()),
  };
  exchange_ = std::make_shared<HttpResponder::Exchange>(server_->loop, weak_from_this());
  const auto server = server_->shared_from_this();  // the handler may end the server
  server->handle(std::move(request), HttpResponder(exchange_));
}

void Session::refuse(int status) {
  phase_ = Phase::kRefusing;
  keep_alive_ = false;
  HttpHeaders headers{{"Content-Type", "text/plain"}};
  if (status == 503) headers.add("Retry-After", "1");
  const std::string body =
      http_wire::to_string(beast_http::obsolete_reason(static_cast<beast_http::status>(status))) +
      "\n";
  append_head(status, headers, "Content-Length: " + std::to_string(body.size()) + "\r\n");
  out_ += body;
  write();
  read();
}

void Session::append_head(int status, const HttpHeaders& headers, std::string_view framing) {
  if (server_->draining()) keep_alive_ = false;
  out_ += status_line(status);
  http_wire::append_headers(out_, headers);
  out_ += framing;
  if (!keep_alive_) {
    out_ += "Connection: close\r\n";
  } else if (http_1_0_) {
    out_ += "Connection: keep-alive\r\n";
  }
  out_ += "\r\n";
}

void Session::respond(const HttpResponse& response) {
  const bool has_body = status_has_body(response.status);
  append_head(response.status, response.headers,
              has_body ? "Content-Length: " + std::to_string(response.body.size()) + "\r\n" : "");
  if (has_body && !head_only_) out_ += response.body;
  write();
}

void Session::start_stream(int status, const HttpHeaders& headers) {
  if (http_1_0_) keep_alive_ = false;
  append_head(status, headers, http_1_0_ ? "" : "Transfer-Encoding: chunked\r\n");
  write();
}

void Session::write_piece(std::string_view piece) {
  if (head_only_ || piece.empty()) return;  // an empty chunk would end the body
  if (http_1_0_) {
    out_ += piece;
  } else {
    char size[16];
    const auto [end, failure] = std::to_chars(size, size + sizeof size, piece.size(), 16);
    KVL_CHECK(failure == std::errc{}, "16 digits hold any size");
    out_.append(size, end).append("\r\n").append(piece).append("\r\n");
  }
  write();
  const std::size_t unsent = out_.size() + in_flight_.size() - written_;
  if (unsent > server_->options.unsent_bytes_max) lose();
}

void Session::finish() {
  if (!http_1_0_ && !head_only_) out_ += "0\r\n\r\n";
  write();
}

// Writes what is queued, unless that is being done. Also with an empty queue (the end of a body
// that only the end of the connection marks) the rest follows from the loop.
void Session::write() {
  if (writing_ || phase_ == Phase::kClosed) return;
  if (written_ == in_flight_.size()) {
    in_flight_ = std::exchange(out_, {});
    written_ = 0;
  }
  writing_ = true;
  arm(server_->options.idle_timeout);
  socket_.async_write_some(asio::buffer(in_flight_) + written_,
                           [self = shared_from_this()](error_code failure, std::size_t size) {
                             self->on_write(failure, size);
                           });
}

void Session::on_write(error_code failure, std::size_t size) {
  writing_ = false;
  if (phase_ == Phase::kClosed) return;
  if (failure) return lose();
  written_ += size;
  if (written_ < in_flight_.size() || !out_.empty()) return write();
  on_all_written();
}

void Session::on_all_written() {
  switch (phase_) {
    case Phase::kAnswering:
      disarm();
      if (exchange_->stage == HttpResponder::Exchange::Stage::kFinished) complete_exchange();
      return;
    case Phase::kRefusing:
      return linger();
    case Phase::kReceiving:  // 100 Continue
    case Phase::kLingering:
    case Phase::kClosed:
      return;
  }
}

void Session::complete_exchange() {
  const auto exchange = std::exchange(exchange_, nullptr);
  exchange->session.reset();
  exchange->written(true);
  if (phase_ == Phase::kClosed) return;  // the callback ended the server
  if (keep_alive_ && !server_->draining()) {
    receive_request();
  } else {
    linger();
  }
}

// Waits for the client to hang up first: closing with unread bytes would destroy the answer on its
// way.
void Session::linger() {
  phase_ = Phase::kLingering;
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  in_.consume(in_.size());
  arm(kLingerTime);
  read();
}

void Session::lose() {
  const auto exchange = std::exchange(exchange_, nullptr);
  close();
  if (exchange) exchange->lost();
}

void Session::close() {
  phase_ = Phase::kClosed;
  disarm();
  error_code ignored;
  socket_.close(ignored);
  if (server_ != nullptr) server_->forget(shared_from_this());
}

void Session::arm(Duration limit) {
  disarm();
  timer_.expires_at(http_wire::timer_deadline(server_->loop, limit));
  timer_.async_wait([self = shared_from_this(), arming = arming_](error_code cancelled) {
    if (!cancelled && arming == self->arming_) self->on_timeout();
  });
}

void Session::disarm() {
  ++arming_;
  timer_.cancel();
}

void Session::on_timeout() {
  if (phase_ == Phase::kReceiving && parser_->got_some()) return refuse(408);
  lose();
}

}  // namespace

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
    self->retry_timer_.expires_after(kAcceptRetryTime);
    self->retry_timer_.async_wait([weak](error_code cancelled) {
      const auto still = weak.lock();
      if (!cancelled && still && still->acceptor_.is_open()) still->accept();
    });
  });
}

void HttpServer::Impl::admit(tcp::socket socket) {
  if (sessions_.size() >= options.connections_max + kRefusalsMax) return;
  const auto session = std::make_shared<Session>(std::move(socket), *this);
  sessions_.insert(session);
  if (sessions_.size() > options.connections_max) {
    session->refuse(503);
  } else {
    session->start();
  }
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
  std::swap(exchange_, other.exchange_);
  return *this;
}

HttpResponder::~HttpResponder() {
  if (!exchange_ || exchange_->stage == Exchange::Stage::kFinished) return;
  const auto exchange = exchange_;
  exchange->forget_callbacks();
  const auto session = exchange->session.lock();
  if (!session) return;
  if (exchange->stage == Exchange::Stage::kUnanswered) {
    respond({.status = 500, .body = "the request was dropped\n"});
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
  std::swap(impl_, other.impl_);
  return *this;
}

HttpServer::~HttpServer() {
  if (impl_) impl_->close();
}

Result<HttpServer> HttpServer::listen(EventLoop& loop, HttpServerOptions options, Handler handler) {
  auto impl = std::make_shared<Impl>(loop, std::move(options), std::move(handler));
  if (auto listening = impl->listen(); !listening) {
    return std::unexpected(std::move(listening.error()));
  }
  return HttpServer(std::move(impl));
}

std::uint16_t HttpServer::port() const { return impl_->port(); }
void HttpServer::drain() { impl_->drain(); }
std::size_t HttpServer::open_connections() const { return impl_->open_connections(); }

}  // namespace kvlease
