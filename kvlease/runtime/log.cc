// The log over spdlog, the only file that includes it.
#include "kvlease/runtime/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <utility>

#include "kvlease/base/check.h"

namespace kvlease {
namespace {

constexpr const char* kTextPattern = "%Y-%m-%dT%H:%M:%S.%e%z %l %n %v";
constexpr const char* kJsonPattern =
    R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","component":"%n","message":"%v"})";

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  KVL_UNREACHABLE("every level has one of spdlog's");
}

// Writes control characters, and in JSON what would end the string, as \u00xx.
std::string escape(std::string_view text, bool json) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool ends_json_string = json && (c == '"' || c == '\\');
    if (byte >= 0x20 && byte != 0x7f && !ends_json_string) {
      out += c;
    } else {
      out += "\\u00";
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
    }
  }
  return out;
}

}  // namespace

struct Log::Sink {
  LogOptions options;
  spdlog::sink_ptr target = std::make_shared<spdlog::sinks::stderr_sink_mt>();
};

struct Logger::Impl {
  spdlog::logger logger;
  bool json;
};

Logger::Logger(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

void Logger::write(LogLevel level, std::string_view message) const {
  const spdlog::level::level_enum spdlogs = spdlog_level(level);
  if (!impl_->logger.should_log(spdlogs)) return;
  impl_->logger.log(spdlogs, escape(message, impl_->json));
}

Log::Log(LogOptions options) : sink_(std::make_shared<Sink>(Sink{.options = options})) {
  sink_->target->set_pattern(options.json_lines ? kJsonPattern : kTextPattern);
}

Logger Log::component(std::string name) const {
  const bool json = sink_->options.json_lines;
  auto impl = std::make_shared<Logger::Impl>(
      Logger::Impl{.logger = spdlog::logger(escape(name, json), sink_->target), .json = json});
  impl->logger.set_level(spdlog_level(sink_->options.level));
  return Logger(std::move(impl));
}

}  // namespace kvlease
