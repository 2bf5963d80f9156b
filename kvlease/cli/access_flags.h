// The flags that say where a process listens and who may call it, the same for `serve` and `route`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvlease/base/result.h"

namespace CLI {
class App;
}

namespace kvlease {

struct AccessFlags {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;
  std::string api_key;
  std::string peer_key;
  bool insecure_peers = false;
  std::vector<std::string> allow_peers;
};

// `flags` outlives the parsing; what it holds are the defaults. `allow_peer_help` says what such a
// host may do.
void add_access_flags(CLI::App& app, AccessFlags& flags, const std::string& allow_peer_help);

// After the parsing. Errors: kInvalidArgument for a secret that the environment sets to nothing,
// and as check_binding.
Result<void> check_access(const AccessFlags& flags);

}  // namespace kvlease
