// The subcommands of the binary, one file each: every one builds its objects, connects them and
// runs.
#pragma once

#include <span>
#include <string>

namespace kvlease {

// Each returns the exit code of the process. arguments: what follows the subcommand's name.
int run_serve(std::span<const std::string> arguments);
int run_route(std::span<const std::string> arguments);
int run_top(std::span<const std::string> arguments);
int run_demo(std::span<const std::string> arguments);

}  // namespace kvlease
