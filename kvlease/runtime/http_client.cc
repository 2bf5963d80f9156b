// One HTTP call: resolve, connect, write and read side by side (a server may answer before it has
// read everything), each under the call's limits.
#include "kvlease/runtime/http_client.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <optional>
#include <utility>

#include "kvlease/runtime/http_wire.h"

namespace kvlease {
namespace {

namespace asio = boost::asio;
namespace beast_http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

using Parser = beast_http::response_parser<beast_http::string_body>;

}  // namespace

class HttpCall::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(EventLoop& loop, HttpCallOptions options, Done done)
      : loop_(loop),
        options_(std::move(options)),
        done_(std::move(done)),
        server_name_(host_and_port(options_.host, options_.port)),
        resolver_(loop.io()),
        socket_(loop.io()),
        connect_timer_(loop.io()),
        timer_(loop.io()),
        in_(options_.header_bytes_max + http_wire::kBodyReadBytes) {}

  void start();
  void cancel();

 private:
  void limit(asio::steady_timer& timer, Duration limit, std::string_view what);
  void connect(const tcp::resolver::results_type& endpoints);
  void on_connected(error_code failure);
  std::string serialize() const;
  void prepare_parser();
  void read();
  void on_read(error_code failure, std::size_t size);
  void parse();
  void deliver_piece();
  HttpResponse take_head();
  void finish(Result<HttpResponse> result);
  void fail(ErrorCode code, std::string_view what);
  void fail_parse(error_code failure);

  EventLoop& loop_;
  HttpCallOptions options_;
  Done done_;
  const std::string server_name_;
  bool over_ = false;  // finished or cancelled: no callback runs any more

  tcp::resolver resolver_;
  tcp::socket socket_;
  asio::steady_timer connect_timer_;
  asio::steady_timer timer_;

  std::string out_;
  boost::beast::flat_buffer in_;
  std::optional<Parser> parser_;
  std::size_t head_left_ = 0;  // of parser_'s head, in bytes
  HttpResponse response_;
};

void HttpCall::Impl::start() {
  out_ = serialize();
  limit(timer_, options_.timeout, "no answer within ");
  limit(connect_timer_, options_.connect_timeout, "no connection within ");

  error_code not_numeric;
  const auto address = asio::ip::make_address(options_.host, not_numeric);
  if (!not_numeric) {
    return connect(tcp::resolver::results_type::create(tcp::endpoint(address, options_.port),
                                                       options_.host, ""));
  }
  resolver_.async_resolve(
      options_.host, std::to_string(options_.port), tcp::resolver::numeric_service,
      [self = shared_from_this()](error_code failure, const tcp::resolver::results_type& found) {
        if (self->over_) return;
        if (failure) return self->fail(ErrorCode::kUnavailable, failure.message());
        self->connect(found);
      });
}

void HttpCall::Impl::limit(asio::steady_timer& timer, Duration limit, std::string_view what) {
  timer.expires_at(http_wire::timer_deadline(loop_, limit));
  timer.async_wait([self = shared_from_this(), limit, what](error_code cancelled) {
    if (cancelled || self->over_) return;
    const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(limit).count();
    self->fail(ErrorCode::kTimeout, std::string(what) + std::to_string(milliseconds) + " ms");
  });
}

void HttpCall::Impl::connect(const tcp::resolver::results_type& endpoints) {
  asio::async_connect(socket_, endpoints,
                      [self = shared_from_this()](error_code failure, const tcp::endpoint&) {
                        if (!self->over_) self->on_connected(failure);
                      });
}

void HttpCall::Impl::on_connected(error_code failure) {
  if (failure) return fail(ErrorCode::kUnavailable, failure.message());
  connect_timer_.cancel();
  error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  // A failed write says less than the answer that may come all the same, or than the failed read.
  asio::async_write(socket_, asio::buffer(out_),
                    [self = shared_from_this()](error_code, std::size_t) {});
  prepare_parser();
  read();
}

std::string HttpCall::Impl::serialize() const {
  std::string out = options_.method + ' ' + options_.target + " HTTP/1.1\r\n";
  if (!options_.headers.find("Host")) http_wire::append_header(out, "Host", server_name_);
  http_wire::append_headers(out, options_.headers);
  if (!options_.body.empty() || options_.method == "POST" || options_.method == "PUT") {
    http_wire::append_header(out, "Content-Length", std::to_string(options_.body.size()));
  }
  return out + "Connection: close\r\n\r\n" + options_.body;
}

void HttpCall::Impl::prepare_parser() {
  parser_.emplace();
  parser_->header_limit(http_wire::beyond(options_.header_bytes_max));
  head_left_ = options_.header_bytes_max;
  parser_->body_limit(options_.response_bytes_max);
  if (options_.method == "HEAD") parser_->skip(true);
}

void HttpCall::Impl::read() {
  const bool in_body = parser_->is_header_done();
  const std::size_t size = in_body ? http_wire::kBodyReadBytes : http_wire::kHeadReadBytes;
  socket_.async_read_some(in_.prepare(std::min(in_.max_size() - in_.size(), size)),
                          [self = shared_from_this()](error_code failure, std::size_t got) {
                            if (!self->over_) self->on_read(failure, got);
                          });
}

void HttpCall::Impl::on_read(error_code failure, std::size_t size) {
  if (failure && failure != asio::error::eof) {
    return fail(ErrorCode::kUnavailable, failure.message());
  }
  in_.commit(size);
  if (!failure) {
    parse();
  } else if (!parser_->got_some()) {
    return fail(ErrorCode::kUnavailable, "it hung up without an answer");
  } else {
    error_code incomplete;
    parser_->put_eof(incomplete);
    if (incomplete) return fail(ErrorCode::kUnavailable, "it hung up in the middle of its answer");
  }
  if (over_) return;
  if (parser_->is_done()) {
    if (!options_.on_body) response_.body = std::move(parser_->get().body());
    return finish(std::move(response_));
  }
  if (in_.size() == in_.max_size()) return fail_parse(beast_http::error::header_limit);
  read();
}

void HttpCall::Impl::parse() {
  error_code failure;
  while (!parser_->is_header_done()) {
    failure = http_wire::feed(*parser_, in_, head_left_);
    if (failure) return fail_parse(failure);
    if (!parser_->is_header_done()) return;
    const unsigned status = parser_->get().result_int();
    if (status < 100) return fail_parse(beast_http::error::bad_status);  // Beast takes "000"
    if (status / 100 == 1) {  // informational: the answer is still to come
      prepare_parser();
      continue;
    }
    response_ = take_head();
    if (options_.on_head) options_.on_head(response_);
    if (over_) return;
    parser_->eager(true);
  }
  failure = http_wire::feed(*parser_, in_, head_left_);
  if (options_.on_body) deliver_piece();
  if (failure && !over_) fail_parse(failure);
}

void HttpCall::Impl::deliver_piece() {
  std::string& body = parser_->get().body();
  if (body.empty()) return;
  const std::string piece = std::exchange(body, {});
  options_.on_body(piece);
}

HttpResponse HttpCall::Impl::take_head() {
  const auto& head = parser_->get();
  return {.status = static_cast<int>(head.result_int()),
          .headers = http_wire::to_headers(head.base())};
}

void HttpCall::Impl::fail_parse(error_code failure) {
  if (failure == beast_http::error::body_limit || failure == beast_http::error::header_limit) {
    return fail(ErrorCode::kResourceExhausted,
                "its answer is larger than " + std::to_string(options_.response_bytes_max) +
                    " bytes (its head: " + std::to_string(options_.header_bytes_max) + ")");
  }
  fail(ErrorCode::kUnavailable, "it does not speak HTTP (" + failure.message() + ")");
}

void HttpCall::Impl::fail(ErrorCode code, std::string_view what) {
  finish(error(code, options_.method + " http://" + server_name_ + options_.target + ": " +
                         std::string(what)));
}

void HttpCall::Impl::finish(Result<HttpResponse> result) {
  Done done = std::exchange(done_, nullptr);
  options_.on_head = nullptr;  // what they hold may hold this call
  options_.on_body = nullptr;
  cancel();
  done(std::move(result));
}

void HttpCall::Impl::cancel() {
  over_ = true;
  resolver_.cancel();
  connect_timer_.cancel();
  timer_.cancel();
  error_code ignored;
  socket_.close(ignored);
}

HttpCall::HttpCall() = default;
HttpCall::HttpCall(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpCall::HttpCall(HttpCall&&) noexcept = default;

HttpCall& HttpCall::operator=(HttpCall&& other) noexcept {
  HttpCall moved = std::move(other);
  std::swap(impl_, moved.impl_);
  return *this;
}

HttpCall::~HttpCall() {
  if (impl_) impl_->cancel();
}

HttpCall HttpCall::start(EventLoop& loop, HttpCallOptions options, Done done) {
  auto impl = std::make_shared<Impl>(loop, std::move(options), std::move(done));
  impl->start();
  return HttpCall(std::move(impl));
}

}  // namespace kvlease
