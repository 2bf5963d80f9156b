// vLLM's `--kv-transfer-config` JSON: connector, role, engine id, and the options of the protocol
// in kv_connector_extra_config (L13).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvlease/base/ids.h"
#include "kvlease/base/result.h"
#include "kvlease/core/lease_config.h"

namespace kvlease {

enum class KvRole : std::uint8_t { kProducer, kConsumer, kBoth };
std::string_view kv_role_name(KvRole role);  // kv_producer, kv_consumer, kv_both

struct KvTransferConfig {
  KvRole kv_role = KvRole::kBoth;
  std::optional<EngineId> engine_id;  // default: random per start
  LeaseConfig lease;
  std::vector<std::string> warnings;
};

// Keys of vLLM that have no meaning here are accepted with one warning each; kv_load_failure_policy
// may stand outside, as in vLLM, or among the extra options, not both. Errors: kInvalidArgument
// naming the key and what it may hold (L13); an unknown key; an engine id with
// '/' (L7); another connector than NixlConnector (and KvleaseConnector); as parse_lease_config.
Result<KvTransferConfig> parse_kv_transfer_config(std::string_view json);

}  // namespace kvlease
