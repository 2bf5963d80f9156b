// The life of a serving process, the same for `serve` and `route`: says where it listens, turns,
// drains at the first signal and leaves at the second (L36).
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "kvlease/base/time.h"
#include "kvlease/cli/output.h"
#include "kvlease/runtime/http.h"
#include "kvlease/runtime/log.h"
#include "kvlease/runtime/loop.h"

namespace kvlease {

// `name`: how it calls itself in the line that says where it listens. Returns when it has drained.
template <typename Server>
void run_server(EventLoop& loop, Server& server, const std::string& host, std::string_view name,
                const Logger& logger) {
  bool draining = false;
  loop.on_termination_signal([&](int) {
    logger.info(draining ? "leaving at once" : "draining");
    if (std::exchange(draining, true)) loop.stop();
    server.drain(loop.now());
  });
  write_line("listening on " + host_and_port(host, server.port()) + " as " + std::string(name));
  loop.run([&](Instant now) {
    const Instant next = server.turn(now);
    if (server.drained(now)) loop.stop();
    return next;
  });
}

}  // namespace kvlease
