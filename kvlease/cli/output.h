// What a serving process writes: the line that says where it listens and its events to stdout, and
// spans to a file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "kvlease/base/result.h"
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

// Lines at the end of a file, each written whole, so that several processes may share it.
class LineFile {
 public:
  // Errors: kUnavailable with the system's words when it cannot be opened.
  static Result<LineFile> open(const std::string& path, Logger log);
  LineFile(LineFile&& other) noexcept
      : log_(std::move(other.log_)), fd_(std::exchange(other.fd_, -1)) {}
  LineFile& operator=(LineFile&&) = delete;
  ~LineFile();

  // A line that the file does not take is lost; the log says so once.
  void write(std::string_view line);

 private:
  LineFile(Logger log, int fd) : log_(std::move(log)), fd_(fd) {}

  Logger log_;
  int fd_;
  bool failed_ = false;
};

}  // namespace kvlease
