// One connection of the HTTP server: reads requests, writes answers, and notices when the client
// goes.
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/status.hpp>
#include <boost/beast/http/string_body.hpp>
#include <charconv>

#include "kvlease/base/check.h"
#include "kvlease/runtime/http_server_impl.h"
#include "kvlease/runtime/http_wire.h"

namespace kvlease {
namespace {

namespace asio = boost::asio;
namespace beast_http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

// After a last answer: how long the client may take to hang up, before it is done for it.
constexpr std::chrono::seconds kLingerTime{2};

// What the kernel holds of an answer that it has not sent: more is held here, where it is bounded.
constexpr int kKernelUnsentBytes = 256 * 1024;

// How every answer begins.
constexpr std::string_view kVersion = "HTTP/1.1 ";

std::string status_text(int status) {
  const auto reason = beast_http::obsolete_reason(static_cast<beast_http::status>(status));
  return std::to_string(status) + ' ' + http_wire::to_string(reason);
}

// Best effort: without these a client that takes nothing is noticed later.
void set_tcp_option(tcp::socket& socket, int option, int value) {
  setsockopt(socket.native_handle(), IPPROTO_TCP, option, &value, sizeof value);
}

bool status_has_body(int status) { return status >= 200 && status != 204 && status != 304; }

}  // namespace

class Session::Parser : public beast_http::request_parser<beast_http::string_body> {};

Session::Session(tcp::socket socket, HttpServer::Impl& server)
    : socket_(std::move(socket)),
      timer_(server.loop.io()),
      server_(&server),
      in_(server.options.header_bytes_max + http_wire::kBodyReadBytes) {}

Session::~Session() = default;

void Session::start() {
  error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  socket_.non_blocking(true, ignored);
  // The kernel may hold a whole answer that the client's side does not take; it counts the time.
  const auto stall = std::chrono::ceil<std::chrono::milliseconds>(server_->options.stall_timeout);
  set_tcp_option(socket_, TCP_USER_TIMEOUT, static_cast<int>(stall.count()));
  set_tcp_option(socket_, TCP_NOTSENT_LOWAT, kKernelUnsentBytes);
  receive_request();
}

void Session::close_if_idle() {
  if (phase_ == Phase::kReceiving && !parser_->got_some()) close();
}

bool Session::has_nothing_to_read() const {
  error_code failure;
  return socket_.available(failure) == 0;
}

void Session::set_idle(bool idle) {
  if (idle == idle_place_.has_value()) return;
  if (idle) {
    idle_place_ = server_->add_idle(*this);
  } else {
    server_->remove_idle(*std::exchange(idle_place_, std::nullopt));
  }
}

void Session::abandon() {
  if (exchange_) {
    exchange_->loop = nullptr;
    exchange_->session.reset();
    exchange_->forget_callbacks();
  }
  set_idle(false);
  server_ = nullptr;
  close();
}

void Session::receive_request() {
  phase_ = Phase::kReceiving;
  parser_ = std::make_unique<Parser>();
  parser_->header_limit(http_wire::beyond(server_->options.header_bytes_max));
  head_left_ = server_->options.header_bytes_max;
  parser_->body_limit(server_->options.body_bytes_max);
  probed_ = false;
  std::string().swap(in_flight_);  // an idle connection keeps no more than it needs
  written_ = 0;
  set_idle(true);
  arm(server_->options.idle_timeout);
  parse();
  if (half_closed_ && phase_ == Phase::kReceiving) return lose();
  read();
}

// Waits until there is something to read and gives it memory only then: what was pipelined is
// parsed out of in_ meanwhile, and memory prepared before that would be a place which has moved.
void Session::read() {
  if (waiting_ || half_closed_ || phase_ == Phase::kClosed || in_.size() == in_.max_size()) return;
  waiting_ = true;
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](error_code cancelled) {
    self->waiting_ = false;
    if (!cancelled) self->on_readable();
  });
}

void Session::on_readable() {
  if (phase_ == Phase::kClosed) return;
  const std::size_t room = in_.max_size() - in_.size();
  const bool in_body = phase_ == Phase::kReceiving && parser_->is_header_done();
  const std::size_t size = in_body ? http_wire::kBodyReadBytes : http_wire::kHeadReadBytes;
  error_code failure;
  const std::size_t got = socket_.read_some(in_.prepare(std::min(room, size)), failure);
  if (failure == asio::error::would_block) return read();
  if (failure == asio::error::eof) return on_half_close();
  if (failure) return lose();
  in_.commit(got);
  if (phase_ == Phase::kReceiving) {
    parse();
  } else if (phase_ != Phase::kAnswering) {
    in_.consume(in_.size());
  }
  read();
}

// The client sends no more: it has closed one half and waits for its answer (`nc -N` does), or it
// is gone. TCP tells neither from the other before something is sent; then one that is gone resets
// the connection, and within a round trip its request is aborted (L34).
void Session::on_half_close() {
  half_closed_ = true;
  if (phase_ == Phase::kRefusing) return;
  if (phase_ != Phase::kAnswering) return lose();
  socket_.async_wait(tcp::socket::wait_error, [self = shared_from_this()](error_code cancelled) {
    if (!cancelled && self->phase_ != Phase::kClosed) self->lose();
  });
  probe();
}

// Sends what any answer goes on with: the version, or a leading zero of the next chunk's size. A
// stream to an HTTP/1.0 client has nothing of the kind; its next piece serves as well.
void Session::probe() {
  if (exchange_->stage == HttpResponder::Exchange::Stage::kUnanswered) {
    probed_ = true;
    out_ += kVersion;
    write();
  } else if (exchange_->stage == HttpResponder::Exchange::Stage::kStreaming && !http_1_0_ &&
             !head_only_) {
    out_ += '0';
    write();
  }
}

void Session::parse() {
  const bool head_was_done = parser_->is_header_done();
  error_code failure = http_wire::feed(*parser_, in_, head_left_);
  if (!failure && !head_was_done && parser_->is_header_done()) {
    const auto expect = parser_->get()[beast_http::field::expect];
    if (!parser_->is_done() && same_header_name(http_wire::to_string(expect), "100-continue")) {
      out_ += "HTTP/1.1 100 Continue\r\n\r\n";
      write();
    }
    parser_->eager(true);
    failure = http_wire::feed(*parser_, in_, head_left_);
  }
  if (parser_->got_some() && idle_place_) {
    set_idle(false);
    arm(server_->options.request_timeout);
  }
  const bool full = !parser_->is_done() && in_.size() == in_.max_size();
  if (!failure && full) failure = beast_http::error::header_limit;
  if (failure) {
    refuse_request(failure);
  } else if (parser_->is_done()) {
    dispatch();
  }
}

void Session::refuse_request(error_code failure) {
  const HttpServerOptions& options = server_->options;
  if (failure == beast_http::error::header_limit) {
    refuse(431, "the request's head has more than " + std::to_string(options.header_bytes_max) +
                    " bytes");
  } else if (failure == beast_http::error::body_limit) {
    refuse(413,
           "the request body has more than " + std::to_string(options.body_bytes_max) + " bytes");
  } else {
    refuse(400, "this is no HTTP/1.1 request: " + failure.message());
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
  if (half_closed_) probe();
  if (in_.size() == 0) in_.shrink_to_fit();
  const auto server = server_->shared_from_this();  // the handler may end the server
  server->handle(std::move(request), HttpResponder(exchange_));
}

void Session::refuse(int status, std::string_view message) {
  set_idle(false);
  phase_ = Phase::kRefusing;
  keep_alive_ = false;
  const HttpResponse response = server_->options.refusal(status, message);
  append_head(response.status, response.headers,
              "Content-Length: " + std::to_string(response.body.size()) + "\r\n");
  out_ += response.body;
  write();
  read();
}

HttpResponse Session::dropped() const {
  return server_->options.refusal(500, "the request was dropped without an answer");
}

void Session::append_head(int status, const HttpHeaders& headers, std::string_view framing) {
  const bool no_more_requests = half_closed_ && in_.size() == 0;
  if (server_->draining() || no_more_requests) keep_alive_ = false;
  if (!std::exchange(probed_, false)) out_ += kVersion;
  out_ += status_text(status) + "\r\n";
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
  if (phase_ != Phase::kReceiving) arm(server_->options.stall_timeout);
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
  if (half_closed_) return close();
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
  set_idle(false);
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
  if (phase_ == Phase::kReceiving && parser_->got_some()) {
    const auto limit =
        std::chrono::ceil<std::chrono::milliseconds>(server_->options.request_timeout);
    return refuse(408,
                  "the request did not arrive within " + std::to_string(limit.count()) + " ms");
  }
  lose();
}

}  // namespace kvlease
