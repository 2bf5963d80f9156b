// Splits and makes agent names. One name has one spelling: decimal numbers without leading zeros,
// the incarnation as 16 hex digits.
#include "kvlease/core/agent_name.h"

#include <string>

#include "kvlease/base/check.h"
#include "kvlease/base/hex.h"
#include "kvlease/base/text.h"

namespace kvlease {
namespace {

std::optional<std::uint32_t> parse_decimal(std::string_view text) {
  const bool canonical = text.size() == 1 || !text.starts_with('0');
  return canonical ? parse_number<std::uint32_t>(text) : std::nullopt;
}

}  // namespace

std::optional<AgentNameParts> parse_agent_name(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::size_t second_slash = name.rfind('/', dot);
  if (second_slash == std::string_view::npos || second_slash == 0) return std::nullopt;
  const std::size_t first_slash = name.rfind('/', second_slash - 1);
  if (first_slash == std::string_view::npos || first_slash == 0) return std::nullopt;

  const auto rank = parse_decimal(name.substr(first_slash + 1, second_slash - first_slash - 1));
  const auto incarnation = hex_to_u64(name.substr(second_slash + 1, dot - second_slash - 1));
  const auto agent_number = parse_decimal(name.substr(dot + 1));
  if (!rank || !incarnation || !agent_number) return std::nullopt;
  return AgentNameParts{.engine_id = name.substr(0, first_slash),
                        .rank = Rank{*rank},
                        .incarnation = Incarnation{*incarnation},
                        .agent_number = *agent_number};
}

AgentName make_agent_name(const AgentNameParts& parts) {
  KVL_CHECK(parts.engine_id.find('/') == std::string_view::npos, "an engine id holds no '/' (L7)");
  return AgentName{std::string(parts.engine_id) + '/' + std::to_string(parts.rank.value()) + '/' +
                   to_hex(parts.incarnation.value()) + '.' + std::to_string(parts.agent_number)};
}

}  // namespace kvlease
