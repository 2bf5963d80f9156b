// Spans as OTLP-JSON, one ExportTraceServiceRequest a line, as the OpenTelemetry collector's
// otlpjsonfile receiver reads them. Source: opentelemetry-proto, docs/specification.md ("JSON
// Protobuf Encoding"): ids as hex, 64-bit integers as strings, enums as numbers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kvlease/wire/trace_context.h"

namespace kvlease {

enum class SpanKind : std::uint8_t { kInternal = 1, kServer = 2, kClient = 3 };

using AttributeValue = std::variant<std::string, std::int64_t, double, bool>;
struct Attribute {
  std::string key;
  AttributeValue value;  // a double is finite
  bool operator==(const Attribute&) const = default;
};

struct SpanEvent {
  std::string name;
  std::uint64_t at_unix_ns = 0;
  std::vector<Attribute> attributes;
  bool operator==(const SpanEvent&) const = default;
};

struct Span {
  TraceContext context;      // its own
  std::uint64_t parent = 0;  // a span of the same trace; 0: none
  std::string name;
  SpanKind kind = SpanKind::kInternal;
  std::uint64_t start_unix_ns = 0;
  std::uint64_t end_unix_ns = 0;
  std::vector<Attribute> attributes;
  std::vector<SpanEvent> events;
  std::uint64_t dropped_events = 0;
  std::string error;  // empty: it went well
  bool operator==(const Span&) const = default;
};

// One line, without its end.
std::string to_otlp_json(const Span& span, std::string_view service_name);

}  // namespace kvlease
