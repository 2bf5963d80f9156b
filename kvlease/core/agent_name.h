// The form of agent names, `<engine_id>/<rank>/<incarnation>.<agent number>`: it tells which reader
// reported (L7) and is never loaded twice (L31).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "kvlease/base/ids.h"

namespace kvlease {

struct AgentNameParts {
  std::string_view engine_id;
  Rank rank;
  Incarnation incarnation;
  std::uint32_t agent_number = 0;
};

// Splits from the right. The views live as long as `name`.
// Errors: nullopt for names of another form; those make up one group of readers (L7).
std::optional<AgentNameParts> parse_agent_name(std::string_view name);

// Requires: no '/' in parts.engine_id.
AgentName make_agent_name(const AgentNameParts& parts);

}  // namespace kvlease
