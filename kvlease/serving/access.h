// Who may call: the API key, the peer key, and where a process may listen (L51).
#pragma once

#include <string>
#include <string_view>

#include "kvlease/base/result.h"
#include "kvlease/runtime/http.h"

namespace kvlease {

// The header that carries the peer key.
inline constexpr std::string_view kPeerKeyHeader = "X-Kvlease-Peer-Key";

// Whether the request shows the key, as `Authorization: Bearer KEY` (the scheme in any case: RFC
// 9110, 11.1) and as kPeerKeyHeader; an empty key lets everyone in. The comparison takes as long
// for a wrong key as for the right one. Errors: kPermissionDenied, naming the header and the
// option.
Result<void> check_api_key(const HttpRequest& request, std::string_view api_key);
Result<void> check_peer_key(const HttpRequest& request, std::string_view peer_key);

// An address that only this machine reaches.
bool is_loopback(std::string_view host);
// An address to listen on everywhere, which is none that a peer could connect to.
bool is_wildcard(std::string_view host);

// An IPv6 address without the brackets that it has in URLs; anything else as it is.
std::string without_brackets(std::string_view host);

// A name or an address as it stands in a URL, IPv6 without brackets; no scheme, port or path.
bool is_host(std::string_view text);

// Errors: kInvalidArgument for an address that others can reach while no peer key guards it and
// `insecure_peers` does not say that this is meant (L51).
Result<void> check_binding(const std::string& host, std::string_view peer_key, bool insecure_peers);

}  // namespace kvlease
