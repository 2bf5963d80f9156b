// The command line of every subcommand, read in one way.
#pragma once

#include <optional>
#include <span>
#include <string>

namespace CLI {
class App;
}

namespace kvlease {

// Reads the arguments into what `app` was told. Returns the exit code when there is nothing to run:
// 0 after --help, 2 for what cannot be read, which is then said on stderr.
std::optional<int> parse_arguments(CLI::App& app, std::span<const std::string> arguments);

}  // namespace kvlease
