// An instance and the bytes of its connections: what is no HTTP, thousands of idle clients, clients
// that close one half or leave, and bodies at and beyond their limits.
#include <fstream>
#include <vector>

#include "kvlease/runtime/socket_testing.h"
#include "kvlease/wire/json_fields.h"
#include "tests/processes/handoff_testing.h"

namespace kvlease {
namespace {

constexpr std::size_t kBodyBytesMax = 32u << 20;

// Of a process, in KiB.
std::size_t resident_kib(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string word; status >> word;) {
    std::size_t kib = 0;
    if (word == "VmRSS:" && status >> kib) return kib;
  }
  ADD_FAILURE() << "/proc tells no VmRSS";
  return 0;
}

std::string post(const std::string& target, const std::string& body,
                 const std::string& headers = "") {
  return "POST " + target + " HTTP/1.1\r\n" + headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

class Connections : public ProcessTest {
 protected:
  RawConnection connect(const std::string& name) {
    return RawConnection::connect(cluster_.port(name));
  }
  // The answer to raw bytes on a connection of their own, which the server ends.
  std::string answer_to(const std::string& name, std::string_view bytes) {
    RawConnection client = connect(name);
    while (!bytes.empty()) {
      bytes.remove_prefix(client.send(bytes));
      if (client.ended()) break;
      cluster_.wait_until([] { return true; }, kLimit);
    }
    EXPECT_TRUE(cluster_.wait_until([&] { return client.ended(); }, kLimit));
    return client.received();
  }
  // Whether an answer has this status, and a body in the form of all the API's errors.
  static void expect_error(const std::string& answer, int status) {
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 " + std::to_string(status) + " ")) << answer;
    EXPECT_NE(answer.find("\r\nContent-Type: application/json\r\n"), std::string::npos) << answer;
    std::optional<Error> problem;
    const std::string body = answer.substr(std::min(answer.size(), answer.find("\r\n\r\n") + 4));
    JsonObject json = open_json(body, 1 << 20, "the answer", problem);
    int code = 0;
    std::string message;
    if (auto error = json.object("error", true)) {
      error->integer("code", {}, code);
      error->string("message", kAnyText, message);
    }
    EXPECT_FALSE(problem) << problem->message;
    EXPECT_EQ(code, status);
    EXPECT_FALSE(message.empty());
  }
  int ask(const std::string& name, const std::string& body) {
    const auto answer = cluster_.call(
        name, {.method = "POST", .target = "/v1/completions", .body = body, .timeout = kLimit});
    EXPECT_TRUE(answer) << answer.error().message;
    return answer ? answer->status : 0;
  }
};

// The HTTP server's own refusals look like all others, of instances and of the router.
TEST_F(Connections, WhatIsNoRequestIsRefusedInTheFormOfTheApi) {
  start("P", transfer_config("kv_both", ""));
  const std::string instance = "http://127.0.0.1:" + std::to_string(cluster_.port("P"));
  const auto router = cluster_.start(
      "router", {.command = "route", .arguments = {"--prefill", instance, "--decode", instance}});
  ASSERT_TRUE(router) << router.error().message;
  for (const char* name : {"P", "router"}) {
    expect_error(answer_to(name, "garbage\r\n\r\n"), 400);
    expect_error(answer_to(name, "GET /" + std::string(40'000, 'x') + " HTTP/1.1\r\n\r\n"), 431);
    expect_error(
        answer_to(name, "POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n"),
        413);
  }
}

// As `nc -N` asks: the request, and no more to send.
TEST_F(Connections, AClientThatClosesItsSendingSideGetsItsText) {
  start("D", joined(transfer_config("kv_both", ""), {"--inter-token-latency", "0.01"}));
  const std::string body = R"({"prompt":"a","max_tokens":16,"ignore_eos":true)";
  for (const std::string& request : {post("/v1/completions", body + "}"),
                                     post("/v1/completions", body + R"(,"stream":true})")}) {
    RawConnection client = connect("D");
    client.send(request);
    client.shutdown_send();
    EXPECT_TRUE(cluster_.wait_until([&] { return client.ended(); }, kLimit));
    EXPECT_TRUE(client.received().starts_with("HTTP/1.1 200 OK\r\n")) << client.received();
    EXPECT_NE(client.received().find(R"("finish_reason":"length")"), std::string::npos)
        << client.received();
  }
}

// One that has closed altogether is noticed all the same, and what it asked for is not computed on,
// nor is its lease granted (L34).
TEST_F(Connections, AClientThatIsGoneIsAborted) {
  start("P", joined(transfer_config("kv_both", ""), {"--inter-token-latency", "0.02"}));
  const std::string forever = R"({"prompt":"a","max_tokens":10000,"ignore_eos":true)";
  const std::string hand_off = R"(,"kv_transfer_params":)" + std::string(kAskForHandOff);
  for (const std::string& extra : {std::string(), std::string(R"(,"stream":true)"), hand_off}) {
    const auto running = [&](std::uint64_t blocks) {
      return [=](const InstanceLedger& ledger) { return ledger.blocks_in_use == blocks; };
    };
    RawConnection client = connect("P");
    client.send(post("/v1/completions", forever + extra + "}"));
    ASSERT_TRUE(cluster_.wait_for_ledger(
        "P", kLimit, [](const InstanceLedger& ledger) { return ledger.blocks_in_use > 0; }));
    client.close();
    const auto after = cluster_.wait_for_ledger("P", kLimit, running(0));
    ASSERT_TRUE(after);
    EXPECT_EQ(after->blocks_in_use, 0u) << extra;
    EXPECT_EQ(after->granted, 0u) << extra;
  }
}

// L43: they cost bounded memory, and whoever asks is served.
TEST_F(Connections, TenThousandIdleClientsDoNotKeepOthersOut) {
  constexpr std::size_t kIdle = 10'000;
  constexpr std::size_t kKept = 4096;      // connections_max
  constexpr std::size_t kKibPerIdle = 16;  // measured: 6
  raise_open_files_max();
  if (open_files_max() < kIdle + 256) {
    GTEST_SKIP() << "at most " << open_files_max() << " files may be open here (ulimit -Hn)";
  }
  start("P", transfer_config("kv_both", ""));
  ASSERT_EQ(ask("P", R"({"prompt":"a","max_tokens":1})"), 200);
  const std::size_t before = resident_kib(cluster_.pid("P"));
  std::vector<RawConnection> idle;
  std::size_t served = 0;
  for (std::size_t i = 1; i <= kIdle; ++i) {
    idle.push_back(connect("P"));
    if (i % 500 == 0) served += ask("P", R"({"prompt":"a","max_tokens":1})") == 200 ? 1 : 0;
  }
  EXPECT_EQ(served, kIdle / 500);
  std::size_t ended = 0;
  EXPECT_TRUE(cluster_.wait_until(
      [&] {
        ended = 0;
        for (RawConnection& client : idle) ended += client.ended() ? 1 : 0;
        return ended >= kIdle - kKept;
      },
      kLimit))
      << ended;
  EXPECT_TRUE(idle.front().ended()) << "the longest idle ones go";
  EXPECT_FALSE(idle.back().ended());
  const std::size_t after = resident_kib(cluster_.pid("P"));
  RecordProperty("kib_per_idle_connection", std::to_string((after - before) / kKept));
  EXPECT_LE(after - before, kKept * kKibPerIdle);
  EXPECT_EQ(ask("P", R"({"prompt":"a","max_tokens":1})"), 200);
}

TEST_F(Connections, BodiesAtAndBeyondTheirLimitsHaveTheirAnswers) {  // L43, L35
  start("P", joined(transfer_config("kv_both", ""), {"--num-gpu-blocks", "64"}));
  const auto padded = [](std::size_t size) {
    const std::string begin = R"({"prompt":"a","max_tokens":1,"padding":")";
    return begin + std::string(size - begin.size() - 2, 'x') + "\"}";
  };
  const auto deep = [](const std::string& open, const std::string& close, int levels) {
    std::string body = R"({"prompt":"a","max_tokens":1,"x":)";
    for (int i = 0; i < levels; ++i) body += open;
    body += "1";
    for (int i = 0; i < levels; ++i) body += close;
    return body + "}";
  };
  std::string keys = R"({"prompt":"a","max_tokens":1)";
  for (int i = 0; i < 200'000; ++i) keys += ",\"k" + std::to_string(i) + "\":0";
  keys += "}";
  const std::string nul(1, '\0');
  const struct {
    const char* what;
    std::string body;
    unsigned status;
  } rows[] = {
      {"exactly at the limit", padded(kBodyBytesMax), 200},
      {"one byte beyond", padded(kBodyBytesMax + 1), 413},
      {"10,000 arrays", deep("[", "]", 10'000), 400},
      {"10,000 objects", deep(R"({"a":)", "}", 10'000), 400},
      {"30 arrays", deep("[", "]", 30), 200},
      {"only opened", std::string(1 << 20, '['), 400},
      {"200,000 keys", keys, 200},
      {"a NUL in a string", R"({"prompt":"a)" + nul + R"(b"})", 400},
      {"an escaped NUL", R"({"prompt":"a\u0000b","max_tokens":1})", 200},
      {"a NUL after the end", R"({"prompt":"a"})" + nul, 400},
      {"invalid UTF-8", "{\"prompt\":\"a\xff\xfe\"}", 400},
      {"a cut UTF-8 sequence", "{\"prompt\":\"a\xe2\x82\"}", 400},
      {"an overlong UTF-8 sequence", "{\"prompt\":\"a\xc0\xaf\"}", 400},
      {"a lone surrogate", R"({"prompt":"a\ud800"})", 400},
      {"a BOM", "\xef\xbb\xbf{\"prompt\":\"a\"}", 400},
      {"a huge number", R"({"prompt":"a","max_tokens":1)" + std::string(100'000, '0') + "}", 400},
      {"1,000,000 token ids",
       R"({"prompt":[1)" +
           [] {
             std::string more;
             for (int i = 0; i < 1'000'000; ++i) more += ",1";
             return more;
           }() +
           "]}",
       400},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.what);
    EXPECT_EQ(ask("P", row.body), row.status);
  }
  EXPECT_EQ(decode("P", prompt_text(1), ""), expected_text(prompt_text(1)));
}

}  // namespace
}  // namespace kvlease
