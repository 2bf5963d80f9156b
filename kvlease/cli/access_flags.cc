// Implements access_flags.h.
#include "kvlease/cli/access_flags.h"

#include <CLI/CLI.hpp>

#include "kvlease/cli/validators.h"

namespace kvlease {

void add_access_flags(CLI::App& app, AccessFlags& flags, const std::string& allow_peer_help) {
  app.add_option("--host", flags.host, "address to listen on")->capture_default_str();
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

}  // namespace kvlease
