// What a serving process writes to stdout: the line that says where it listens, and its events.
#pragma once

#include <cstdint>
#include <string_view>

#include "kvlease/runtime/log.h"

namespace kvlease {

void write_line(std::string_view line);

// Event lines on stdout. A reader that does not keep up loses lines, and a pipe that is closed all
// of them: neither may stop the loop.
class EventLines {
 public:
  explicit EventLines(Logger log);

  void write(std::string_view line);

 private:
  Logger log_;
  std::uint64_t dropped_ = 0;
};

}  // namespace kvlease
