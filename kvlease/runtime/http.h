// HTTP messages as values, shared by the server and the client of this room, and the URLs that name
// where to send them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvlease/base/result.h"

namespace kvlease {

struct HttpHeader {
  std::string name;
  std::string value;
  bool operator==(const HttpHeader&) const = default;
};

bool same_header_name(std::string_view a, std::string_view b);

// Header lines in their order; names are compared without case, and one name may occur several
// times.
class HttpHeaders {
 public:
  HttpHeaders() = default;
  HttpHeaders(std::initializer_list<HttpHeader> headers) : headers_(headers) {}

  void add(std::string name, std::string value);
  // Replaces every value of `name` by one.
  void set(std::string name, std::string value);
  void remove(std::string_view name);

  // The first value of `name`; the view lives until the headers change.
  std::optional<std::string_view> find(std::string_view name) const;
  // Every value of `name`, in order.
  std::vector<std::string_view> find_all(std::string_view name) const;

  auto begin() const { return headers_.begin(); }
  auto end() const { return headers_.end(); }
  bool operator==(const HttpHeaders&) const = default;

 private:
  std::vector<HttpHeader> headers_;
};

struct HttpRequest {
  std::string method;  // as sent: "GET", "POST", …
  std::string path;    // the target up to its '?', not decoded
  std::string query;   // what follows the '?', not decoded
  HttpHeaders headers;
  std::string body;
};

struct HttpResponse {
  int status = 200;
  HttpHeaders
      headers;  // the framing (Content-Length, Transfer-Encoding, Connection) is not in here
  std::string body;
};

// The part of a URL that names a server, and the target on it.
struct HttpUrl {
  std::string host;  // a name or an address, an IPv6 one without brackets
  std::uint16_t port = 80;
  std::string target = "/";
  bool operator==(const HttpUrl&) const = default;
};

// Errors: kInvalidArgument for what is not `http://host[:port][/path][?query]`; `https://` is
// refused in words.
Result<HttpUrl> parse_http_url(std::string_view text);

// `host:port` as it stands in URLs and Host headers (IPv6 addresses get their brackets).
std::string host_and_port(std::string_view host, std::uint16_t port);

}  // namespace kvlease
