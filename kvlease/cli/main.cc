// The binary `kvlease`: picks the subcommand.
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvlease/cli/command.h"

namespace {

struct Command {
  std::string_view name;
  int (*run)(std::span<const std::string> arguments);
  std::string_view purpose;
};

constexpr Command kCommands[] = {
    {"serve", kvlease::run_serve, "run one prefill or decode instance"},
    {"route", kvlease::run_route, "run the routing proxy before prefill and decode instances"},
    {"top", kvlease::run_top, "show running instances, their leases and events"},
    {"demo", kvlease::run_demo, "show a hand-off at work: real processes over real NIXL"},
};

int usage(std::FILE* out, int exit_code) {
  std::fputs("usage: kvlease COMMAND [OPTIONS…]   (kvlease COMMAND --help tells more)\n\n", out);
  for (const Command& command : kCommands) {
    std::fprintf(out, "  %-7.*s %.*s\n", static_cast<int>(command.name.size()), command.name.data(),
                 static_cast<int>(command.purpose.size()), command.purpose.data());
  }
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.empty()) return usage(stderr, 2);
  if (arguments[0] == "--help" || arguments[0] == "-h" || arguments[0] == "help") {
    return usage(stdout, 0);
  }
  if (arguments[0] == "--version") {
    std::printf("kvlease %s\n", KVLEASE_VERSION);
    return 0;
  }
  for (const Command& command : kCommands) {
    if (arguments[0] == command.name) return command.run(std::span(arguments).subspan(1));
  }
  std::fprintf(stderr, "kvlease: no command is called '%s'\n\n", arguments[0].c_str());
  return usage(stderr, 2);
}
