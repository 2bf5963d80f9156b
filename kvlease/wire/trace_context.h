// W3C trace context: the `traceparent` header that ties the spans of one request together across
// processes. Source: https://www.w3.org/TR/trace-context/ (version 00).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvlease {

struct TraceContext {
  std::uint64_t trace_high = 0;  // both 0: no trace
  std::uint64_t trace_low = 0;
  std::uint64_t span = 0;  // of whoever sends this; never 0
  bool sampled = true;     // whether the sender records
  bool operator==(const TraceContext&) const = default;
};

// nullopt for what is no traceparent: then a new trace begins. A later version's is read as far as
// version 00 goes.
std::optional<TraceContext> parse_traceparent(std::string_view header);

std::string to_traceparent(const TraceContext& context);

}  // namespace kvlease
