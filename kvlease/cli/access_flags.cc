// Implements access_flags.h.
#include "kvlease/cli/access_flags.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <string_view>

#include "kvlease/cli/validators.h"
#include "kvlease/serving/access.h"

namespace kvlease {
namespace {

// CLI11 passes over a variable that is set to nothing, as if it were not there.
Result<void> check_secret(const char* flag, const char* variable, const std::string& secret) {
  const char* const value = std::getenv(variable);
  if (!secret.empty() || value == nullptr) return {};
  return error(ErrorCode::kInvalidArgument,
               std::string(variable) +
                   " is set but empty, which would let everybody in: unset it, "
                   "or give it a secret (" +
                   flag + ")");
}

}  // namespace

void add_access_flags(CLI::App& app, AccessFlags& flags, const std::string& allow_peer_help) {
  app.add_option("--host", flags.host, "address to listen on")
      ->transform([](const std::string& text) { return without_brackets(text); })
      ->capture_default_str();
  app.add_option("--port", flags.port, "port to listen on; 0: any free one")
      ->check(integer_between(0, 65535))
      ->capture_default_str();
  app.add_option("--api-key", flags.api_key,
                 "secret that clients must show (Authorization: Bearer)")
      ->check(secret())
      ->envname("KVLEASE_API_KEY");
  app.add_option("--peer-key", flags.peer_key, "secret that handshakes and lease calls must show")
      ->check(secret())
      ->envname("KVLEASE_PEER_KEY");
  app.add_flag("--insecure-peers", flags.insecure_peers,
               "listen beyond loopback without a peer key");
  app.add_option("--allow-peer", flags.allow_peers, allow_peer_help)->capture_default_str();
}

Result<void> check_access(const AccessFlags& flags) {
  const auto api_key = check_secret("--api-key", "KVLEASE_API_KEY", flags.api_key);
  if (!api_key) return api_key;
  const auto peer_key = check_secret("--peer-key", "KVLEASE_PEER_KEY", flags.peer_key);
  if (!peer_key) return peer_key;
  return check_binding(flags.host, flags.peer_key, flags.insecure_peers);
}

}  // namespace kvlease
