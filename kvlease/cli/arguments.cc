// Implements arguments.h.
#include "kvlease/cli/arguments.h"

#include <CLI/CLI.hpp>
#include <vector>

namespace kvlease {

std::optional<int> parse_arguments(CLI::App& app, std::span<const std::string> arguments) {
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // as CLI11 takes them
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& problem) {
    return app.exit(problem) == 0 ? 0 : 2;
  }
  return std::nullopt;
}

}  // namespace kvlease
