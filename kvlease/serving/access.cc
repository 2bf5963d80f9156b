// Implements access.h.
#include "kvlease/serving/access.h"

#include <algorithm>

#include "kvlease/wire/secret.h"

namespace kvlease {
namespace {

constexpr std::string_view kBearer = "Bearer ";

}  // namespace

Result<void> check_api_key(const HttpRequest& request, std::string_view api_key) {
  if (api_key.empty()) return {};
  const std::string_view shown = request.headers.find("Authorization").value_or("");
  if (same_header_name(shown.substr(0, kBearer.size()), kBearer) &&
      secret_matches(shown.substr(kBearer.size()), api_key)) {
    return {};
  }
  return error(ErrorCode::kPermissionDenied,
               "the header Authorization must be \"Bearer KEY\" with the API key (--api-key)");
}

Result<void> check_peer_key(const HttpRequest& request, std::string_view peer_key) {
  if (peer_key.empty()) return {};
  if (secret_matches(request.headers.find(kPeerKeyHeader).value_or(""), peer_key)) return {};
  return error(ErrorCode::kPermissionDenied,
               "the header " + std::string(kPeerKeyHeader) + " is missing or wrong (--peer-key)");
}

bool is_loopback(std::string_view host) {
  const bool numeric = host.find_first_not_of("0123456789.") == std::string_view::npos;
  return host == "localhost" || host == "::1" || (numeric && host.starts_with("127."));
}

bool is_wildcard(std::string_view host) { return host == "0.0.0.0" || host == "::"; }

std::string without_brackets(std::string_view host) {
  const bool is_v6 = host.starts_with('[') && host.ends_with(']') && host.contains(':');
  return std::string(is_v6 ? host.substr(1, host.size() - 2) : host);
}

bool is_host(std::string_view text) {
  const bool spelled = std::ranges::all_of(text, [](char c) {
    return std::string_view("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:%")
        .contains(c);
  });
  const auto colons = std::ranges::count(text, ':');  // of an IPv6 address there are two at least
  return !text.empty() && text.size() <= 255 && spelled && colons != 1;
}

Result<void> check_binding(const std::string& host, std::string_view peer_key,
                           bool insecure_peers) {
  if (is_loopback(host) || !peer_key.empty() || insecure_peers) return {};
  return error(
      ErrorCode::kInvalidArgument,
      "--host " + host + " is reachable from elsewhere: set --peer-key, or --insecure-peers");
}

}  // namespace kvlease
