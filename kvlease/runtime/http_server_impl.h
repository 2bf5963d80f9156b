// The inside of the HTTP server: the acceptor, a session per connection and an exchange per
// request. For the .cc files of the server.
//
// A session is a small state machine around one read that is always pending (so that a disconnect
// is seen at any time) and one write.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "kvlease/runtime/http_server.h"

namespace kvlease {

class Session;

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
  using IdlePlace = std::list<Session*>::iterator;

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
  // A session that waits for the first byte of a request, until it is taken out again.
  IdlePlace add_idle(Session& session) { return idle_.insert(idle_.end(), &session); }
  void remove_idle(IdlePlace place) { idle_.erase(place); }

  std::uint16_t port() const { return port_; }
  std::size_t open_connections() const { return sessions_.size(); }
  bool draining() const { return draining_; }

  EventLoop& loop;
  const HttpServerOptions options;

 private:
  void accept();
  void admit(boost::asio::ip::tcp::socket socket);
  // Closes the connection that has been idle for longest; false when there is none.
  bool evict_idle();

  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer retry_timer_;
  Handler handler_;
  std::set<std::shared_ptr<Session>> sessions_;  // never walked where the order could be seen
  std::list<Session*> idle_;                     // of sessions_, the longest idle first
  std::uint16_t port_ = 0;
  bool draining_ = false;
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(boost::asio::ip::tcp::socket socket, HttpServer::Impl& server);

  ~Session();

  void start();
  // Tells a client why it is not served, and ends the connection.
  void refuse(int status, std::string_view message);

  void close_if_idle();
  // Nothing has arrived that was not read yet.
  bool has_nothing_to_read() const;
  // Ends the connection because the server ends.
  void abandon();

  // The answer for a handler that gave none.
  HttpResponse dropped() const;

  void respond(const HttpResponse& response);
  void start_stream(int status, const HttpHeaders& headers);
  void write_piece(std::string_view piece);
  void finish();
  // The connection is of no more use: closes it, and tells the exchange.
  void lose();

 private:
  class Parser;

  enum class Phase {
    kReceiving,  // a request, or waiting for one
    kAnswering,  // an exchange is open; what arrives is kept for later
    kRefusing,   // writing the last words
    kLingering,  // everything is written; waiting for the client to hang up
    kClosed,
  };

  void receive_request();
  void set_idle(bool idle);
  void read();
  void on_readable();
  void on_half_close();
  void probe();
  void parse();
  void refuse_request(boost::system::error_code failure);
  void dispatch();
  void append_head(int status, const HttpHeaders& headers, std::string_view framing);
  void write();
  void on_write(boost::system::error_code failure, std::size_t size);
  void on_all_written();
  void complete_exchange();
  void linger();
  void close();
  void arm(Duration limit);
  void disarm();
  void on_timeout();

  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer timer_;
  std::uint64_t arming_ =
      0;  // tells an expiry that was overtaken by a new arming from a current one
  HttpServer::Impl* server_;  // null once it is gone; the session is closed then
  Phase phase_ = Phase::kReceiving;

  boost::beast::flat_buffer in_;
  bool waiting_ = false;  // for something to read
  std::unique_ptr<Parser> parser_;
  std::size_t head_left_ = 0;  // of parser_'s head, in bytes
  std::optional<HttpServer::Impl::IdlePlace> idle_place_;

  bool half_closed_ = false;  // the client sends no more
  bool probed_ = false;       // the next answer's first bytes are sent already

  std::shared_ptr<HttpResponder::Exchange> exchange_;
  bool keep_alive_ = true;
  bool http_1_0_ = false;
  bool head_only_ = false;  // the method is HEAD

  std::string out_;  // to be written next
  bool writing_ = false;
  std::string in_flight_;  // being written, from written_ on
  std::size_t written_ = 0;
};

}  // namespace kvlease
