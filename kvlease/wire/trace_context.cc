// Implements trace_context.h.
#include "kvlease/wire/trace_context.h"

#include "kvlease/base/hex.h"

namespace kvlease {
namespace {

// version "-" trace-id "-" parent-id "-" flags
constexpr std::size_t kTraceAt = 3;
constexpr std::size_t kSpanAt = kTraceAt + 32 + 1;
constexpr std::size_t kFlagsAt = kSpanAt + 16 + 1;
constexpr std::size_t kBytes = kFlagsAt + 2;
constexpr std::uint64_t kSampledFlag = 1;

std::optional<std::uint64_t> byte_at(std::string_view header, std::size_t at) {
  return hex_to_u64("00000000000000" + std::string(header.substr(at, 2)));
}

}  // namespace

std::optional<TraceContext> parse_traceparent(std::string_view header) {
  if (header.size() < kBytes) return std::nullopt;
  const auto version = byte_at(header, 0);
  const auto flags = byte_at(header, kFlagsAt);
  if (!version || *version == 0xff || !flags) return std::nullopt;
  if (header.size() > kBytes && (*version == 0 || header[kBytes] != '-')) return std::nullopt;
  if (header[kTraceAt - 1] != '-' || header[kSpanAt - 1] != '-' || header[kFlagsAt - 1] != '-') {
    return std::nullopt;
  }
  const auto high = hex_to_u64(header.substr(kTraceAt, 16));
  const auto low = hex_to_u64(header.substr(kTraceAt + 16, 16));
  const auto span = hex_to_u64(header.substr(kSpanAt, 16));
  if (!high || !low || !span || (*high == 0 && *low == 0) || *span == 0) return std::nullopt;
  return TraceContext{.trace_high = *high,
                      .trace_low = *low,
                      .span = *span,
                      .sampled = (*flags & kSampledFlag) != 0};
}

std::string to_traceparent(const TraceContext& context) {
  return "00-" + to_hex(context.trace_high) + to_hex(context.trace_low) + '-' +
         to_hex(context.span) + (context.sampled ? "-01" : "-00");
}

}  // namespace kvlease
