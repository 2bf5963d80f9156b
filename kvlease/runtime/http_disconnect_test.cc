// Clients that leave, close one half or take nothing, and what the server notices of it (L34, L43).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "kvlease/runtime/http_server_testing.h"

namespace kvlease {
namespace {

using namespace std::chrono_literals;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

using HttpDisconnectTest = HttpServerTest;

TEST_F(HttpDisconnectTest, LearnsOfADisconnectWhileAnAnswerIsPending) {
  serve({});
  for (const bool orderly : {true, false}) {
    RawConnection client = request(kGet);
    HttpResponder responder = std::move(pending[0].responder);
    pending.clear();
    int disconnects = 0;
    std::vector<bool> written;
    responder.on_disconnect([&] { ++disconnects; });
    responder.on_written([&](bool ok) { written.push_back(ok); });
    orderly ? client.close() : client.reset();
    EXPECT_TRUE(wait_for([&] { return disconnects > 0; }));
    EXPECT_EQ(server->open_connections(), 0u);
    EXPECT_TRUE(written.empty());

    // L34: an answer that names a lease is written to nobody, and whoever granted it is told.
    responder.respond({.body = "a lease"});
    EXPECT_TRUE(written.empty()) << "callbacks come from the loop";
    EXPECT_TRUE(wait_for([&] { return !written.empty(); }));
    EXPECT_EQ(written, std::vector<bool>{false});
    EXPECT_EQ(disconnects, 1);
  }
}

// `nc -N` and some HTTP/1.0 clients: whoever says that it sends no more still gets its answer.
TEST_F(HttpDisconnectTest, AClientThatClosesItsSendingSideGetsItsAnswer) {
  serve({});
  for (const std::string_view version : {"1.1", "1.0"}) {
    const std::string get = "GET /half HTTP/" + std::string(version) + "\r\n\r\n";
    RawConnection client = request(get);
    bool gone = false;
    std::optional<bool> written;
    pending[0].responder.on_disconnect([&] { gone = true; });
    pending[0].responder.on_written([&](bool ok) { written = ok; });
    client.shutdown_send();
    EXPECT_TRUE(wait_for([&] { return client.received() == "HTTP/1.1 "; })) << client.received();
    EXPECT_TRUE(wait_for([turns = 0]() mutable { return ++turns == 5; }));
    EXPECT_FALSE(gone);
    pending[0].responder.respond({.body = "the answer"});
    EXPECT_TRUE(wait_for([&] { return client.ended(); }));
    EXPECT_EQ(client.received(),
              "HTTP/1.1 200 OK\r\nContent-Length: 10\r\nConnection: close\r\n\r\nthe answer");
    EXPECT_EQ(written, true);
    EXPECT_EQ(server->open_connections(), 0u);
    pending.clear();
  }
}

TEST_F(HttpDisconnectTest, EveryRequestBeforeAHalfCloseIsAnswered) {
  answer_at_once = true;
  serve({});
  RawConnection client = connect();
  client.send("GET /1 HTTP/1.1\r\n\r\nGET /2 HTTP/1.1\r\n\r\nGET /3 HTTP/1.1\r\n\r\nGET /4");
  client.shutdown_send();
  EXPECT_TRUE(wait_for([&] { return client.ended(); }));
  for (const char* path : {"/1", "/2", "/3"}) {
    EXPECT_THAT(client.received(), HasSubstr("\r\n\r\nGET " + std::string(path) + "?|"));
  }
  EXPECT_THAT(client.received(), Not(HasSubstr("/4")));
}

TEST_F(HttpDisconnectTest, AStreamGoesOnAfterAHalfClose) {
  serve({});
  RawConnection client = request(kGet);
  HttpResponder& responder = pending[0].responder;
  bool gone = false;
  responder.on_disconnect([&] { gone = true; });
  responder.start_stream(200, {});
  responder.write("one");
  EXPECT_TRUE(wait_for([&] { return client.received_contains("3\r\none\r\n"); }));
  client.shutdown_send();
  EXPECT_TRUE(wait_for([&] { return client.received_contains("one\r\n0"); }));
  EXPECT_TRUE(wait_for([turns = 0]() mutable { return ++turns == 5; }));
  EXPECT_FALSE(gone);
  responder.write("two");
  responder.finish();
  EXPECT_TRUE(wait_for([&] { return client.ended(); }));
  EXPECT_THAT(client.received(), EndsWith("\r\n\r\n3\r\none\r\n03\r\ntwo\r\n0\r\n\r\n"));
}

TEST_F(HttpDisconnectTest, LearnsThatAHalfClosedClientIsGoneByItsNextPiece) {
  serve({});
  RawConnection client = request(kGet);
  HttpResponder& responder = pending[0].responder;
  bool gone = false;
  responder.on_disconnect([&] { gone = true; });
  responder.start_stream(200, {});
  client.shutdown_send();
  EXPECT_TRUE(wait_for([&] { return client.received_contains("\r\n\r\n0"); }));
  client.close();
  responder.write("nobody listens");
  EXPECT_TRUE(wait_for([&] { return gone; }));
}

TEST_F(HttpDisconnectTest, LearnsOfADisconnectBehindPipelinedBytes) {
  serve({});
  RawConnection client = request(std::string(kGet) + "GET /next HTTP/1.1\r\n\r\n");
  bool gone = false;
  pending[0].responder.on_disconnect([&] { gone = true; });
  client.close();
  EXPECT_TRUE(wait_for([&] { return gone; }));
}

TEST_F(HttpDisconnectTest, LearnsOfADisconnectInTheMiddleOfAStream) {
  serve({});
  RawConnection client = request(kGet);
  HttpResponder& responder = pending[0].responder;
  bool gone = false;
  std::vector<bool> written;
  responder.on_disconnect([&] { gone = true; });
  responder.on_written([&](bool ok) { written.push_back(ok); });
  responder.start_stream(200, {});
  responder.write("piece");
  EXPECT_TRUE(wait_for([&] { return client.received_contains("piece"); }));
  client.close();
  EXPECT_TRUE(wait_for([&] { return gone; }));
  responder.write("nobody listens");
  responder.finish();
  EXPECT_TRUE(wait_for([&] { return !written.empty(); }));
  EXPECT_EQ(written, std::vector<bool>{false});
}

// L34: the client takes a part of the answer and leaves.
TEST_F(HttpDisconnectTest, AnAnswerThatIsReadHalfIsNotWritten) {
  serve({});
  RawConnection client = request(kGet);
  std::vector<bool> written;
  bool disconnected = false;
  pending[0].responder.on_written([&](bool ok) { written.push_back(ok); });
  pending[0].responder.on_disconnect([&] { disconnected = true; });
  pending[0].responder.respond({.body = std::string(64 << 20, 'x')});
  pending.clear();
  EXPECT_TRUE(wait_for([&] { return client.received().size() > 100'000; }));
  client.close();
  EXPECT_TRUE(wait_for([&] { return !written.empty(); }));
  EXPECT_EQ(written, std::vector<bool>{false});
  EXPECT_FALSE(disconnected);
}

TEST_F(HttpDisconnectTest, AnAnswerThatIsNotTakenTimesOut) {
  serve({.stall_timeout = 50ms});
  RawConnection client = request(kGet);
  std::vector<bool> written;
  pending[0].responder.on_written([&](bool ok) { written.push_back(ok); });
  pending[0].responder.respond({.body = std::string(64 << 20, 'x')});
  EXPECT_TRUE(wait_for([&] { return !written.empty(); }));
  EXPECT_EQ(written, std::vector<bool>{false});
}

// A reader that takes nothing, of a stream that fits into the kernel's buffers but not into the
// client's: its request is aborted, and so its lease goes back (L34, L43).
TEST_F(HttpDisconnectTest, AStreamThatIsNotTakenTimesOut) {
  serve({.stall_timeout = 200ms});
  RawConnection client = connect();
  client.receive_little();
  client.send(kGet);
  ASSERT_TRUE(wait_for([&] { return pending.size() == 1; }));
  bool gone = false;
  pending[0].responder.on_disconnect([&] { gone = true; });
  pending[0].responder.start_stream(200, {});
  pending[0].responder.write(std::string(200 * 1024, 'x'));
  EXPECT_TRUE(wait_for([&] { return gone; }));
  EXPECT_EQ(server->open_connections(), 0u);
}

TEST_F(HttpDisconnectTest, AStreamThatIsNotTakenEndsAtItsBound) {  // L43
  serve({.unsent_bytes_max = 1 << 20});
  RawConnection client = request(kGet);
  bool gone = false;
  pending[0].responder.on_disconnect([&] { gone = true; });
  pending[0].responder.start_stream(200, {});
  const std::string piece(64 * 1024, 'x');
  EXPECT_TRUE(wait_for([&] {
    pending[0].responder.write(piece);
    return gone;
  }));
  EXPECT_EQ(server->open_connections(), 0u);
}

}  // namespace
}  // namespace kvlease
