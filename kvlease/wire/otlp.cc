// Implements otlp.h.
#include "kvlease/wire/otlp.h"

#include "kvlease/base/hex.h"
#include "kvlease/wire/json_fields.h"

namespace kvlease {
namespace {

constexpr std::uint64_t kStatusOk = 1;
constexpr std::uint64_t kStatusError = 2;

std::string value_json(const AttributeValue& value) {
  JsonWriter json;
  if (const auto* text = std::get_if<std::string>(&value)) {
    json.string("stringValue", std::string_view(*text));
  } else if (const auto* integer = std::get_if<std::int64_t>(&value)) {
    json.string("intValue", std::string_view(std::to_string(*integer)));
  } else if (const auto* number = std::get_if<double>(&value)) {
    json.number("doubleValue", *number);
  } else {
    json.boolean("boolValue", std::get<bool>(value));
  }
  return json.take();
}

std::string attributes_json(const std::vector<Attribute>& attributes) {
  return json_array_of(attributes, [](const Attribute& attribute) {
    JsonWriter json;
    json.string("key", std::string_view(attribute.key));
    json.json("value", value_json(attribute.value));
    return json.take();
  });
}

std::string event_json(const SpanEvent& event) {
  JsonWriter json;
  json.string("timeUnixNano", std::string_view(std::to_string(event.at_unix_ns)));
  json.string("name", std::string_view(event.name));
  if (!event.attributes.empty()) json.json("attributes", attributes_json(event.attributes));
  return json.take();
}

std::string status_json(const std::string& error) {
  JsonWriter json;
  if (!error.empty()) json.string("message", std::string_view(error));
  json.integer("code", error.empty() ? kStatusOk : kStatusError);
  return json.take();
}

std::string span_json(const Span& span) {
  JsonWriter json;
  json.string("traceId", to_hex(span.context.trace_high) + to_hex(span.context.trace_low));
  json.string("spanId", to_hex(span.context.span));
  if (span.parent != 0) json.string("parentSpanId", to_hex(span.parent));
  json.string("name", std::string_view(span.name));
  json.integer("kind", static_cast<std::uint64_t>(span.kind));
  json.string("startTimeUnixNano", std::string_view(std::to_string(span.start_unix_ns)));
  json.string("endTimeUnixNano", std::string_view(std::to_string(span.end_unix_ns)));
  json.json("attributes", attributes_json(span.attributes));
  json.json("events", json_array_of(span.events, event_json));
  if (span.dropped_events > 0) json.integer("droppedEventsCount", span.dropped_events);
  json.json("status", status_json(span.error));
  return json.take();
}

}  // namespace

std::string to_otlp_json(const Span& span, std::string_view service_name) {
  JsonWriter resource;
  resource.json("attributes", attributes_json({{"service.name", std::string(service_name)}}));
  JsonWriter scope;
  scope.json("scope", R"({"name":"kvlease"})");
  scope.json("spans", '[' + span_json(span) + ']');
  JsonWriter resource_spans;
  resource_spans.json("resource", resource.take());
  resource_spans.json("scopeSpans", '[' + scope.take() + ']');
  JsonWriter request;
  request.json("resourceSpans", '[' + resource_spans.take() + ']');
  return request.take();
}

}  // namespace kvlease
