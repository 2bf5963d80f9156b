// The options of the protocol: names as in vLLM's kv_connector_extra_config, defaults, ranges, and
// what is refused at start (L12, L13). One table of rows feeds the checks and
// docs/configuration.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kvlease/base/result.h"
#include "kvlease/base/time.h"
#include "kvlease/core/lease.h"

namespace kvlease {

enum class LoadFailurePolicy : std::uint8_t { kRecompute, kFail };  // L27
std::string_view load_failure_policy_name(LoadFailurePolicy policy);

struct LeaseConfig {
  LeaseTimes times{.duration = std::chrono::seconds{30},
                   .heartbeat_interval = std::chrono::seconds{5},
                   .extension = std::chrono::seconds{20}};
  bool lease_adaptive = false;                            // kv_lease_adaptive
  Duration lease_duration_min = std::chrono::seconds{6};  // kv_lease_duration_min
  std::uint32_t lease_slots = 65'536;                     // kv_lease_slots (L22)
  double lease_max_blocks_fraction = 0.9;                 // kv_lease_max_blocks_fraction (L43)
  Duration lease_max_hold = kForever;                     // kv_lease_max_hold (L48)
  LoadFailurePolicy load_failure_policy = LoadFailurePolicy::kRecompute;  // kv_load_failure_policy
  Duration handshake_timeout = std::chrono::seconds{10};                  // L48
  Duration load_timeout = std::chrono::seconds{60};                       // kv_load_timeout (L48)
  Duration engine_ttl = std::chrono::seconds{3600};                       // L32; kForever when <= 0
  bool allow_unvalidated_peers = false;                                   // L28
  bool enforce_handshake_compat = true;         // L30; false is the documented switch (D15)
  std::uint32_t notification_bytes_max = 8192;  // L17
  // Two-way transfer.
  bool bidirectional = false;                     // bidirectional_kv_xfer (L39)
  Duration hold_ttl = std::chrono::seconds{480};  // decoder_kv_blocks_ttl (L39)
  Duration hold_max_lifetime = Duration::zero();  // kv_hold_max_lifetime; 0: fixed ttl
  double hold_max_blocks_fraction = 0.5;          // kv_hold_max_blocks_fraction (L49)
  std::uint32_t recompute_threshold = 64;         // kv_recompute_threshold, tokens (L42)
  bool operator==(const LeaseConfig&) const = default;
};

// interval = duration // 6 and extension = duration * 2 // 3, in whole seconds from 6 s on, in
// milliseconds below (L12). Requires: duration >= 50 ms.
LeaseTimes derive_lease_times(Duration duration);

// One option as it came from JSON. monostate: null.
using OptionValue = std::variant<std::monostate, bool, std::int64_t, double, std::string>;
struct Option {
  std::string name;
  OptionValue value;
};

// All there is to say about an option: to docs/configuration.md, to the messages and to the parser.
struct OptionRow {
  std::string_view name;
  std::string_view default_value;
  std::string_view range;
  std::string_view rule;
  std::string_view meaning;
  // Sets the option. Returns false, and changes nothing, when the value is not in the range.
  bool (*set)(const OptionValue& value, LeaseConfig& config);
};
std::span<const OptionRow> lease_option_rows();

// Options that vLLM knows and we do not use: accepted with any value, one warning each (L13).
bool is_foreign_option(std::string_view name);

struct ParsedLeaseConfig {
  LeaseConfig config;
  std::vector<std::string> warnings;
};

// Errors: kInvalidArgument naming the option, its value and the allowed range: zero, negative, NaN,
// infinite or non-numeric durations, an interval that does not fit twice into the extension, a hold
// limit below the duration, adaptive leases with an interval or extension of their own or of more
// than a day, a key that nobody knows (L13). The largest durations saturate to
// kForever (A18).
Result<ParsedLeaseConfig> parse_lease_config(std::span<const Option> options);

}  // namespace kvlease
