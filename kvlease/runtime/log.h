// The log of a process: one line an event on stderr, `time level component message` or a JSON
// object. Pure rooms do not log; they return events, and the host writes those that a person should
// read.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace kvlease {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

struct LogOptions {
  LogLevel level = LogLevel::kInfo;  // lines below it are dropped
  bool json_lines = false;           // {"time":…,"level":…,"component":…,"message":…}
};

// One component's way into the log; a value, cheap to copy.
// Threads: any.
class Logger {
 public:
  void debug(std::string_view message) const { write(LogLevel::kDebug, message); }
  void info(std::string_view message) const { write(LogLevel::kInfo, message); }
  void warning(std::string_view message) const { write(LogLevel::kWarning, message); }
  void error(std::string_view message) const { write(LogLevel::kError, message); }

  // Control characters in `message` are escaped: what a peer sent cannot forge a line.
  void write(LogLevel level, std::string_view message) const;

  struct Impl;

 private:
  friend class Log;
  explicit Logger(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

// Made once by main and handed on.
class Log {
 public:
  explicit Log(LogOptions options);

  Logger component(std::string name) const;

  struct Sink;

 private:
  std::shared_ptr<Sink> sink_;
};

}  // namespace kvlease
