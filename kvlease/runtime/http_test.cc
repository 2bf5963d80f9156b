// Headers without case, and which URLs can be called.
#include "kvlease/runtime/http.h"

#include <gtest/gtest.h>

namespace kvlease {
namespace {

TEST(HttpHeaders, NamesHaveNoCaseAndMayRepeat) {
  HttpHeaders headers{{"X-Request-Id", "a"}, {"Accept", "b"}, {"x-request-id", "c"}};
  EXPECT_EQ(headers.find("X-REQUEST-ID"), "a");
  EXPECT_EQ(headers.find_all("x-request-ID"), (std::vector<std::string_view>{"a", "c"}));
  EXPECT_EQ(headers.find("X-Request"), std::nullopt);
  headers.set("X-REQUEST-id", "d");
  EXPECT_EQ(headers, (HttpHeaders{{"Accept", "b"}, {"X-REQUEST-id", "d"}}));
  headers.remove("accept");
  EXPECT_EQ(headers, (HttpHeaders{{"X-REQUEST-id", "d"}}));
}

TEST(ParseHttpUrl, NamesHostPortAndTarget) {
  EXPECT_EQ(*parse_http_url("http://127.0.0.1:8100"),
            (HttpUrl{.host = "127.0.0.1", .port = 8100, .target = "/"}));
  EXPECT_EQ(*parse_http_url("http://example.org/v1/models?a=b%20c"),
            (HttpUrl{.host = "example.org", .port = 80, .target = "/v1/models?a=b%20c"}));
  EXPECT_EQ(*parse_http_url("http://h:1?q"), (HttpUrl{.host = "h", .port = 1, .target = "/?q"}));
  EXPECT_EQ(*parse_http_url("http://[::1]:9/x#fragment"),
            (HttpUrl{.host = "::1", .port = 9, .target = "/x"}));
}

TEST(ParseHttpUrl, RefusesTlsInWords) {
  const auto url = parse_http_url("https://example.org/");
  ASSERT_FALSE(url);
  EXPECT_EQ(url.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(url.error().message.find("TLS is not there yet: put it behind a terminating proxy"),
            std::string::npos);
}

TEST(ParseHttpUrl, RefusesWhatItCannotCall) {
  for (const char* text : {"", "localhost:8100", "127.0.0.1:8100", "ftp://h/", "http://",
                           "http:///x", "http://u:p@h/", "http://h:65536/", "http://h:99999/",
                           "http://h:0/", "http://h:x/", "http://h:8x/a", "http://h/ x", "//h/"}) {
    const auto url = parse_http_url(text);
    ASSERT_FALSE(url) << text;
    EXPECT_EQ(url.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(url.error().message.find(text), std::string::npos) << url.error().message;
  }
}

TEST(HostAndPort, BracketsIpv6) {
  EXPECT_EQ(host_and_port("127.0.0.1", 80), "127.0.0.1:80");
  EXPECT_EQ(host_and_port("::1", 8100), "[::1]:8100");
}

}  // namespace
}  // namespace kvlease
