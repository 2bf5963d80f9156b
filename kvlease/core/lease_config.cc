// Derives, parses and checks the options of the protocol.
#include "kvlease/core/lease_config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>

#include "kvlease/base/check.h"
#include "kvlease/core/adaptive_lease.h"

namespace kvlease {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

constexpr Duration kLeaseDurationMin = milliseconds{50};
constexpr double kSecondsMax =
    9'223'372'036.0;  // what 64 bits of nanoseconds hold, in whole seconds

// 2/3 of a duration, rounded down, without overflow.
constexpr Duration two_thirds(Duration length) {
  return length / 3 * 2 + nanoseconds{length.count() % 3 * 2 / 3};
}

// A JSON number; a bool is none.
std::optional<double> number(const OptionValue& value) {
  if (const auto* integer = std::get_if<std::int64_t>(&value)) {
    return static_cast<double>(*integer);
  }
  if (const auto* real = std::get_if<double>(&value)) return *real;
  return std::nullopt;
}

// A length of time in seconds, above the largest of ours: kForever (A18).
// Errors: nullopt for what is no finite number of seconds or rounds to less than `min`.
std::optional<Duration> duration_from(const OptionValue& value, Duration min) {
  const std::optional<double> in_seconds = number(value);
  if (!in_seconds || !std::isfinite(*in_seconds) || *in_seconds <= 0) return std::nullopt;
  if (*in_seconds >= kSecondsMax) return kForever;
  const Duration length{std::llround(*in_seconds * 1e9)};
  if (length < min) return std::nullopt;
  return length;
}

template <typename T>
bool assign(T& target, const std::optional<T>& value) {
  if (value) target = *value;
  return value.has_value();
}

bool set_integer(std::uint32_t& target, const OptionValue& value, std::int64_t min,
                 std::int64_t max) {
  const auto* integer = std::get_if<std::int64_t>(&value);
  if (integer == nullptr || *integer < min || *integer > max) return false;
  target = static_cast<std::uint32_t>(*integer);
  return true;
}

bool set_bool(bool& target, const OptionValue& value) {
  const bool* given = std::get_if<bool>(&value);
  if (given != nullptr) target = *given;
  return given != nullptr;
}

bool set_fraction(double& target, const OptionValue& value) {
  const std::optional<double> given = number(value);
  if (!given || !(*given > 0 && *given <= 1)) return false;
  target = *given;
  return true;
}

bool set_policy(LoadFailurePolicy& target, const OptionValue& value) {
  const auto* name = std::get_if<std::string>(&value);
  if (name == nullptr) return false;
  for (const LoadFailurePolicy policy : {LoadFailurePolicy::kRecompute, LoadFailurePolicy::kFail}) {
    if (*name != load_failure_policy_name(policy)) continue;
    target = policy;
    return true;
  }
  return false;
}

// L32: as in vLLM, 0 and less switch it off.
bool set_engine_ttl(Duration& target, const OptionValue& value) {
  const std::optional<double> given = number(value);
  if (!given || *given > 0) return assign(target, duration_from(value, milliseconds{1}));
  if (!std::isfinite(*given)) return false;
  target = kForever;
  return true;
}

constexpr std::string_view kFromOneMillisecond = "a number of seconds, at least 0.001";

constexpr std::array kOptions{
    OptionRow{"kv_lease_duration", "30", "a number of seconds, at least 0.05", "L1, L12",
              "P keeps a finished prefill's blocks this long when nobody renews the lease.",
              [](const OptionValue& value, LeaseConfig& config) {
                return assign(config.times.duration, duration_from(value, kLeaseDurationMin));
              }},
    OptionRow{"kv_heartbeat_interval", "kv_lease_duration / 6", kFromOneMillisecond, "L12, L18",
              "D renews its leases this often; fits at least twice into kv_lease_extension.",
              [](const OptionValue& value, LeaseConfig& config) {
                return assign(config.times.heartbeat_interval,
                              duration_from(value, milliseconds{1}));
              }},
    OptionRow{"kv_lease_extension", "kv_lease_duration * 2 / 3", kFromOneMillisecond, "L2, L12",
              "A renewal keeps a lease at least this long from its arrival.",
              [](const OptionValue& value, LeaseConfig& config) {
                return assign(config.times.extension, duration_from(value, milliseconds{1}));
              }},
    OptionRow{"kv_lease_adaptive", "false", "true or false", "L14",
              "Leases get shorter than kv_lease_duration as far as what P observes allows.",
              [](const OptionValue& value, LeaseConfig& config) {
                return set_bool(config.lease_adaptive, value);
              }},
    OptionRow{"kv_lease_duration_min", "kv_lease_duration / 5",
              "a number of seconds, at least 0.05, at most kv_lease_duration", "L14",
              "An adaptive lease is never shorter.",
              [](const OptionValue& value, LeaseConfig& config) {
                return assign(config.lease_duration_min, duration_from(value, kLeaseDurationMin));
              }},
    OptionRow{"kv_lease_max_hold", "unlimited", "a number of seconds, at least kv_lease_duration",
              "L48", "No renewal keeps a lease longer than this from its grant.",
              [](const OptionValue& value, LeaseConfig& config) {
                return assign(config.lease_max_hold, duration_from(value, kLeaseDurationMin));
              }},
    OptionRow{"kv_lease_slots", "65536", "an integer from 2 to 16777216", "L22",
              "Entries in the table of leases, 16 bytes each; one belongs to the rank itself.",
              [](const OptionValue& value, LeaseConfig& config) {
                return set_integer(config.lease_slots, value, 2, 16'777'216);
              }},
    OptionRow{"kv_lease_max_blocks_fraction", "0.9", "a number above 0 and at most 1", "L43",
              "The share of all blocks that leases may keep; above it new prefills get 503.",
              [](const OptionValue& value, LeaseConfig& config) {
                return set_fraction(config.lease_max_blocks_fraction, value);
              }},
    OptionRow{
        "kv_load_failure_policy", "recompute", "\"recompute\" or \"fail\"", "L27",
        "What becomes of a request whose load failed: prefilled here, or ended with an error.",
        [](const OptionValue& value, LeaseConfig& config) {
          return set_policy(config.load_failure_policy, value);
        }},
    OptionRow{"handshake_timeout", "10", kFromOneMillisecond, "L48",
              "A handshake without an answer for this long has failed.",
              [](const OptionValue& value, LeaseConfig& config) {
                return assign(config.handshake_timeout, duration_from(value, milliseconds{1}));
              }},
    OptionRow{"kv_load_timeout", "60", kFromOneMillisecond, "L48",
              "A read that is not validated this long after its first post has failed.",
              [](const OptionValue& value, LeaseConfig& config) {
                return assign(config.load_timeout, duration_from(value, milliseconds{1}));
              }},
    OptionRow{"engine_ttl", "3600", "a number of seconds, at least 0.001; 0 and less: never", "L32",
              "A peer without activity for this long is forgotten.",
              [](const OptionValue& value, LeaseConfig& config) {
                return set_engine_ttl(config.engine_ttl, value);
              }},
    OptionRow{"allow_unvalidated_peers", "false", "true or false", "L28",
              "Reads from peers without lease entries too, as vLLM does: without validation.",
              [](const OptionValue& value, LeaseConfig& config) {
                return set_bool(config.allow_unvalidated_peers, value);
              }},
    OptionRow{"enforce_handshake_compat", "true", "true or false", "L30",
              "Refuses peers whose compatibility identity differs.",
              [](const OptionValue& value, LeaseConfig& config) {
                return set_bool(config.enforce_handshake_compat, value);
              }},
    OptionRow{"notification_bytes_max", "8192", "an integer from 256 to 1048576", "L17",
              "A longer heartbeat is split.",
              [](const OptionValue& value, LeaseConfig& config) {
                return set_integer(config.notification_bytes_max, value, 256, 1'048'576);
              }},
    OptionRow{"bidirectional_kv_xfer", "false", "true or false", "L39",
              "D keeps a finished request's blocks for P to read in the next turn.",
              [](const OptionValue& value, LeaseConfig& config) {
                return set_bool(config.bidirectional, value);
              }},
    OptionRow{"decoder_kv_blocks_ttl", "480", "a number of seconds, at least 0.05", "L39",
              "D keeps them this long.",
              [](const OptionValue& value, LeaseConfig& config) {
                return assign(config.hold_ttl, duration_from(value, kLeaseDurationMin));
              }},
    OptionRow{"kv_hold_max_lifetime", "not renewable",
              "a number of seconds, at least decoder_kv_blocks_ttl", "L39",
              "Heartbeats may keep such a hold longer than its ttl, but not longer than this.",
              [](const OptionValue& value, LeaseConfig& config) {
                return assign(config.hold_max_lifetime, duration_from(value, kLeaseDurationMin));
              }},
    OptionRow{"kv_hold_max_blocks_fraction", "0.5", "a number above 0 and at most 1", "L49",
              "The share of all blocks that holds may keep; above it the oldest is recalled.",
              [](const OptionValue& value, LeaseConfig& config) {
                return set_fraction(config.hold_max_blocks_fraction, value);
              }},
    OptionRow{"kv_recompute_threshold", "64", "an integer from 0 to 2147483647", "L42",
              "P computes fewer missing tokens than this itself instead of reading them from D.",
              [](const OptionValue& value, LeaseConfig& config) {
                return set_integer(config.recompute_threshold, value, 0, 2'147'483'647);
              }},
};

constexpr std::array<std::string_view, 3> kForeignOptions{
    "backends",
    "num_threads",
    "push_registration_timeout",
};

template <typename Number>
std::string shortest(Number value) {
  std::array<char, 32> text{};
  const auto result = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), result.ptr};
}

std::string seconds_text(Duration length) { return shortest(to_seconds(length)) + " s"; }

// A value as its user wrote it.
std::string value_text(const OptionValue& value) {
  struct Writer {
    std::string operator()(std::monostate) const { return "null"; }
    std::string operator()(bool given) const { return given ? "true" : "false"; }
    std::string operator()(std::int64_t given) const { return shortest(given); }
    std::string operator()(double given) const { return shortest(given); }
    std::string operator()(const std::string& given) const { return '"' + given + '"'; }
  };
  return std::visit(Writer{}, value);
}

// Errors: as parse_lease_config.
Result<void> check_adaptive(const LeaseConfig& config) {
  const LeaseTimes& times = config.times;
  if (config.lease_duration_min > times.duration) {
    return error(ErrorCode::kInvalidArgument,
                 "kv_lease_duration_min is " + seconds_text(config.lease_duration_min) +
                     " but must be at most kv_lease_duration, which is " +
                     seconds_text(times.duration));
  }
  if (!config.lease_adaptive) return {};
  if (times != derive_lease_times(times.duration)) {
    return error(ErrorCode::kInvalidArgument,
                 "kv_lease_adaptive is true but kv_heartbeat_interval is " +
                     seconds_text(times.heartbeat_interval) + " and kv_lease_extension is " +
                     seconds_text(times.extension) +
                     ": both follow from each lease's duration then, leave them out");
  }
  if (times.duration > AdaptiveLease::kDurationMax) {
    return error(ErrorCode::kInvalidArgument,
                 "kv_lease_adaptive is true but kv_lease_duration is " +
                     seconds_text(times.duration) + ": it must be at most " +
                     seconds_text(AdaptiveLease::kDurationMax) + " then");
  }
  return {};
}

// The checks that concern more than one option. Errors: as parse_lease_config.
Result<void> check_times(const LeaseConfig& config) {
  const LeaseTimes& times = config.times;
  if (times.heartbeat_interval > times.extension / 2) {
    return error(ErrorCode::kInvalidArgument,
                 "kv_heartbeat_interval is " + seconds_text(times.heartbeat_interval) +
                     " but must fit at least twice into kv_lease_extension, which is " +
                     seconds_text(times.extension) + ": set it to at most " +
                     seconds_text(times.extension / 2));
  }
  if (config.lease_max_hold < times.duration) {
    return error(ErrorCode::kInvalidArgument,
                 "kv_lease_max_hold is " + seconds_text(config.lease_max_hold) +
                     " but must be at least kv_lease_duration, which is " +
                     seconds_text(times.duration));
  }
  if (config.hold_max_lifetime != Duration::zero() && config.hold_max_lifetime < config.hold_ttl) {
    return error(ErrorCode::kInvalidArgument,
                 "kv_hold_max_lifetime is " + seconds_text(config.hold_max_lifetime) +
                     " but must be at least decoder_kv_blocks_ttl, which is " +
                     seconds_text(config.hold_ttl));
  }
  return {};
}

}  // namespace

std::string_view load_failure_policy_name(LoadFailurePolicy policy) {
  switch (policy) {
    case LoadFailurePolicy::kRecompute:
      return "recompute";
    case LoadFailurePolicy::kFail:
      return "fail";
  }
  KVL_UNREACHABLE("a policy has a name");
}

LeaseTimes derive_lease_times(Duration duration) {
  KVL_CHECK(duration >= kLeaseDurationMin, "a lease lasts at least 50 ms (L12)");
  const Duration interval = duration / 6;
  const Duration extension = two_thirds(duration);
  if (duration >= seconds{6}) {
    return {.duration = duration,
            .heartbeat_interval = std::chrono::floor<seconds>(interval),
            .extension = std::chrono::floor<seconds>(extension)};
  }
  return {.duration = duration,
          .heartbeat_interval = std::chrono::floor<milliseconds>(interval),
          .extension = std::chrono::floor<milliseconds>(extension)};
}

std::span<const OptionRow> lease_option_rows() { return kOptions; }

bool is_foreign_option(std::string_view name) {
  return std::ranges::find(kForeignOptions, name) != kForeignOptions.end();
}

Result<ParsedLeaseConfig> parse_lease_config(std::span<const Option> options) {
  ParsedLeaseConfig parsed;
  LeaseConfig& config = parsed.config;
  // Not set: derived below, from the duration that was set.
  config.times.heartbeat_interval = config.times.extension = Duration::zero();
  config.lease_duration_min = Duration::zero();
  for (const Option& option : options) {
    if (is_foreign_option(option.name)) {
      parsed.warnings.push_back(option.name + " is an option of vLLM that kvlease does not use");
      continue;
    }
    const auto row = std::ranges::find(kOptions, option.name, &OptionRow::name);
    if (row == kOptions.end()) {
      return error(ErrorCode::kInvalidArgument,
                   option.name + " is not an option: see docs/configuration.md for those that are");
    }
    if (!row->set(option.value, config)) {
      return error(ErrorCode::kInvalidArgument, option.name + " is " + value_text(option.value) +
                                                    " but must be " + std::string(row->range));
    }
  }
  const LeaseTimes derived = derive_lease_times(config.times.duration);
  if (config.times.heartbeat_interval == Duration::zero()) {
    config.times.heartbeat_interval = derived.heartbeat_interval;
  }
  if (config.times.extension == Duration::zero()) config.times.extension = derived.extension;
  if (config.lease_duration_min == Duration::zero()) {
    config.lease_duration_min = std::max(kLeaseDurationMin, config.times.duration / 5);
  }
  for (const auto& check : {check_times, check_adaptive}) {
    if (const Result<void> checked = check(config); !checked) {
      return std::unexpected(checked.error());
    }
  }
  return parsed;
}

}  // namespace kvlease
