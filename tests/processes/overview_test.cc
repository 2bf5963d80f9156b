// The router's overview and page before real instances.
#include "kvlease/serving/overview.h"

#include <csignal>

#include "tests/processes/router_testing.h"

namespace kvlease {
namespace {

class OverviewOfProcesses : public RouterTest {
 protected:
  HttpResponse get(std::string_view path, HttpHeaders headers) {
    const auto answer =
        cluster_.call("router", {.target = std::string(path), .headers = std::move(headers)});
    if (!answer) ADD_FAILURE() << answer.error().message;
    return answer.value_or(HttpResponse{});
  }
  std::string overview() { return get(kOverviewPath, {{"Authorization", "Bearer api"}}).body; }
  // The first overview that has `part`, or the last one at the limit.
  std::string wait_for_overview(std::string_view part) {
    const Instant end = cluster_.now() + kLimit;
    std::string seen = overview();
    while (seen.find(part) == std::string::npos && cluster_.now() < end) {
      cluster_.wait_until([] { return false; }, std::chrono::milliseconds{100});
      seen = overview();
    }
    return seen;
  }
  static bool has(const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
  }
};

TEST_F(OverviewOfProcesses, ShowsRequestsLeasesAndWhoIsGone) {  // L43, L44, L51
  StackOptions options{.prefills = 1, .decodes = 2, .lease_seconds = 6};
  options.prefill_arguments = {"--peer-key", "peer"};
  options.decode_arguments = {"--peer-key",     "peer", "--inter-token-latency", "0.2",
                              "--max-num-seqs", "1",    "--num-gpu-blocks",      "40"};
  options.route_arguments = {"--peer-key", "peer", "--api-key", "api"};
  start_stack(options);
  EXPECT_EQ(get(kOverviewPath, {}).status, 401);
  EXPECT_EQ(get(kUiPath, {}).status, 200);

  // Of three requests a decoder runs one, has room for one more, and keeps the lease of the third.
  std::vector<std::unique_ptr<HttpCall>> requests;
  for (int i = 0; i < 6; ++i) {
    requests.push_back(std::make_unique<HttpCall>(cluster_.begin_call(
        "router", {.method = "POST",
                   .target = "/v1/completions",
                   .headers = {{"Content-Type", "application/json"},
                               {"Authorization", "Bearer api"},
                               {"X-Request-Id", "<img src=x>"}},
                   .body = R"({"prompt":")" + prompt_text(static_cast<std::uint32_t>(i)) +
                           R"(","max_tokens":300,"ignore_eos":true})",
                   .timeout = kForever})));
  }
  const std::string seen = wait_for_overview(R"("reader":"D)");
  EXPECT_TRUE(has(seen, R"("requests_under_way":6)")) << seen;
  EXPECT_TRUE(has(seen, R"("request":"<img src=x>")")) << seen;  // the page shows it as text
  EXPECT_TRUE(has(seen, R"("id":"cmpl-_img_src_x_-)")) << seen;  // L45
  EXPECT_TRUE(has(seen, R"({"name":"P1","url":"http://127.0.0.1:)")) << seen;
  EXPECT_TRUE(has(seen, R"("event":"lease_granted")")) << seen;
  EXPECT_TRUE(has(seen, R"({"name":"prefills","label":"","value":6})")) << seen;

  kill_and_wait("D2");
  const std::string without = wait_for_overview("Connection refused");
  EXPECT_TRUE(has(without, "Connection refused")) << without;
  EXPECT_TRUE(has(without, R"({"name":"D1")")) << without;
  EXPECT_TRUE(has(without, R"({"name":"P1")")) << without;
}

TEST_F(OverviewOfProcesses, AWrongPeerKeyIsSaidOfTheInstance) {  // L51
  StackOptions options{.prefills = 1, .decodes = 1};
  options.prefill_arguments = {"--peer-key", "another"};
  options.route_arguments = {"--api-key", "api"};
  start_stack(options);
  const std::string seen = overview();
  EXPECT_TRUE(has(seen, "HTTP 401: the header X-Kvlease-Peer-Key")) << seen;
  EXPECT_TRUE(has(seen, R"({"name":"D1")")) << seen;
}

}  // namespace
}  // namespace kvlease
