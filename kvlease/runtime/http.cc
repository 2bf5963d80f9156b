// Headers and URLs.
#include "kvlease/runtime/http.h"

#include <strings.h>

#include <algorithm>
#include <boost/url/parse.hpp>

#include "kvlease/base/text.h"

namespace kvlease {

bool same_header_name(std::string_view a, std::string_view b) {
  return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
}

void HttpHeaders::add(std::string name, std::string value) {
  headers_.push_back({std::move(name), std::move(value)});
}

void HttpHeaders::set(std::string name, std::string value) {
  remove(name);
  add(std::move(name), std::move(value));
}

void HttpHeaders::remove(std::string_view name) {
  std::erase_if(headers_, [&](const HttpHeader& h) { return same_header_name(h.name, name); });
}

std::optional<std::string_view> HttpHeaders::find(std::string_view name) const {
  const auto found = std::ranges::find_if(
      headers_, [&](const HttpHeader& h) { return same_header_name(h.name, name); });
  if (found == headers_.end()) return std::nullopt;
  return found->value;
}

std::vector<std::string_view> HttpHeaders::find_all(std::string_view name) const {
  std::vector<std::string_view> values;
  for (const HttpHeader& header : headers_) {
    if (same_header_name(header.name, name)) values.push_back(header.value);
  }
  return values;
}

Result<HttpUrl> parse_http_url(std::string_view text) {
  const auto refuse = [&](std::string_view why) {
    return error(ErrorCode::kInvalidArgument,
                 "\"" + std::string(text) + "\" cannot be called: " + std::string(why));
  };
  const auto parsed = boost::urls::parse_uri({text.data(), text.size()});
  if (!parsed || (parsed->scheme() != "http" && parsed->scheme() != "https")) {
    return refuse("write http://host:port");
  }
  if (parsed->scheme() == "https") {
    return refuse("TLS is not there yet: put it behind a terminating proxy, and write http://");
  }
  if (parsed->has_userinfo()) return refuse("a user name in a URL is not supported");
  HttpUrl url{.host = parsed->host_address()};
  if (url.host.empty()) return refuse("it names no host");
  if (const std::string_view port = parsed->port(); !port.empty()) {
    url.port = parse_number<std::uint16_t>(port).value_or(0);  // Boost 1.81's wraps around
  }
  // Boost 1.81 takes the letters after a port's digits for a path.
  const std::string_view path = parsed->encoded_path();
  if (url.port == 0 || (!path.empty() && !path.starts_with('/'))) {
    return refuse("a port is a number from 1 to 65535");
  }
  url.target = std::string(parsed->encoded_target());
  if (path.empty()) url.target.insert(0, 1, '/');
  return url;
}

std::string host_and_port(std::string_view host, std::uint16_t port) {
  const bool is_v6 = host.find(':') != std::string_view::npos;
  return (is_v6 ? "[" + std::string(host) + "]" : std::string(host)) + ":" + std::to_string(port);
}

}  // namespace kvlease
