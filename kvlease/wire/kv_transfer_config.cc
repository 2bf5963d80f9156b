// Implements kv_transfer_config.h.
#include "kvlease/wire/kv_transfer_config.h"

#include <array>
#include <utility>

#include "kvlease/base/text.h"
#include "kvlease/wire/json_fields.h"

namespace kvlease {
namespace {

constexpr std::size_t kBytesMax = 1u << 20;
constexpr std::array<std::string_view, 3> kRoleNames{"kv_producer", "kv_consumer", "kv_both"};
constexpr std::array<std::string_view, 2> kConnectorNames{"NixlConnector", "KvleaseConnector"};
constexpr std::string_view kPolicy = "kv_load_failure_policy";
constexpr std::string_view kOptionAllowed = "null, true, false, a finite number or a string";

// The value of an option; nullopt for arrays, objects and numbers that no
// double holds.
std::optional<OptionValue> option_value(std::string_view json) {
  if (json == "null") return OptionValue{};
  if (const auto flag = json_boolean(json)) return OptionValue(*flag);
  if (auto text = json_string(json)) return OptionValue(*std::move(text));
  if (const auto integer = parse_number<std::int64_t>(json)) return OptionValue(*integer);
  if (const auto number = json_number(json)) return OptionValue(*number);
  return std::nullopt;
}

// A key of vLLM that has no meaning here; it is checked like every other all the same.
struct ForeignKey {
  std::string_view name;
  std::string_view allowed;
  bool (*accepts)(std::string_view json);
};

bool is_string(std::string_view json) { return json_string(json).has_value(); }
bool is_number(std::string_view json) { return json_number(json).has_value(); }
bool is_boolean(std::string_view json) { return json_boolean(json).has_value(); }

constexpr std::array kForeignKeys{
    ForeignKey{"enable_permute_local_kv", "true or false", is_boolean},
    ForeignKey{"kv_buffer_device", "a string", is_string},
    ForeignKey{"kv_buffer_size", "a finite number", is_number},
    ForeignKey{"kv_connector_module_path", "a string", is_string},
    ForeignKey{"kv_ip", "a string", is_string},
    ForeignKey{"kv_parallel_size", "a finite number", is_number},
    ForeignKey{"kv_port", "a finite number", is_number},
    ForeignKey{"kv_rank", "a finite number", is_number},
};

void read_foreign_keys(JsonObject& fields, std::vector<std::string>& warnings) {
  for (const ForeignKey& key : kForeignKeys) {
    const auto json = fields.take_json(key.name, false, key.allowed);
    if (!json) continue;
    if (!key.accepts(*json)) fields.refuse(key.name, *json, key.allowed);
    warnings.push_back(std::string(key.name) + " is a key of vLLM that kvlease does not use");
  }
}

// The extra options in the order of their names, and the policy if it stands outside.
std::vector<Option> read_options(JsonObject& fields) {
  std::vector<Option> options;
  const auto policy = fields.take_json(kPolicy, false, kOptionAllowed);
  auto extra = fields.object("kv_connector_extra_config", false);
  if (extra) {
    for (const auto& [name, json] : extra->rest()) {
      const std::optional<OptionValue> value = option_value(json);
      // vLLM has options that are lists; those that we do not use are only warned of.
      if (!value && !is_foreign_option(name)) extra->refuse(name, json, kOptionAllowed);
      options.push_back({name, value.value_or(OptionValue{})});
    }
  }
  if (policy) {
    if (extra && extra->rest().contains(kPolicy)) {
      fields.refuse(kPolicy, *policy, "one place, here or in kv_connector_extra_config");
    }
    const std::optional<OptionValue> value = option_value(*policy);
    if (!value) fields.refuse(kPolicy, *policy, kOptionAllowed);
    options.push_back({std::string(kPolicy), value.value_or(OptionValue{})});
  }
  return options;
}

std::string known_keys() {
  std::string text =
      "kv_connector, kv_role, engine_id, kv_load_failure_policy, kv_connector_extra_config";
  for (const ForeignKey& key : kForeignKeys) text += ", " + std::string(key.name);
  return text;
}

}  // namespace

std::string_view kv_role_name(KvRole role) { return kRoleNames[std::to_underlying(role)]; }

// L13
Result<KvTransferConfig> parse_kv_transfer_config(std::string_view json) {
  std::optional<Error> problem;
  JsonObject fields = open_json(json, kBytesMax, "kv_transfer_config", problem);
  KvTransferConfig config;
  std::optional<std::string> connector;
  fields.choice("kv_connector", kConnectorNames, connector);
  std::optional<KvRole> role;
  fields.choice("kv_role", kRoleNames, role);
  config.kv_role = role.value_or(config.kv_role);
  fields.string("engine_id", {kEngineIdAllowed, is_engine_id}, config.engine_id);  // L7
  read_foreign_keys(fields, config.warnings);
  const std::vector<Option> options = read_options(fields);
  fields.refuse_rest(known_keys());
  if (problem) return std::unexpected(*std::move(problem));
  Result<ParsedLeaseConfig> lease = parse_lease_config(options);
  if (!lease) return std::unexpected(std::move(lease).error());
  config.lease = lease->config;
  config.warnings.insert(config.warnings.end(), lease->warnings.begin(), lease->warnings.end());
  return config;
}

}  // namespace kvlease
