// Records the spans of a process's requests, when it was asked to, and hands each out as one line
// of OTLP-JSON when it ends.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "kvlease/base/prng.h"
#include "kvlease/base/time.h"
#include "kvlease/wire/otlp.h"

namespace kvlease {

class Tracer;

// A span under way; one that is not recorded takes everything and does nothing. It ends once, at
// the latest when it is destroyed.
class ActiveSpan {
 public:
  ActiveSpan() = default;
  ActiveSpan(ActiveSpan&& other) noexcept { *this = std::move(other); }
  ActiveSpan& operator=(ActiveSpan&& other) noexcept;
  ~ActiveSpan() { end(); }

  bool recorded() const { return tracer_ != nullptr; }
  // The header for whoever is called from within this span; nullopt when it is not recorded.
  std::optional<std::string> traceparent() const;
  void attribute(std::string_view key, AttributeValue value);
  // Beyond 128 they are only counted (L43).
  void event(std::string_view name, std::vector<Attribute> attributes = {});
  void fail(std::string message);
  void end();

 private:
  friend class Tracer;
  Tracer* tracer_ = nullptr;
  Span span_;
};

class Tracer {
 public:
  // `sink` is called with each span's line; empty: nothing is recorded. `clock`: the loop's.
  // `unix_ns`: the date at `at`, from which all others are counted.
  Tracer(std::string service_name, std::function<void(std::string_view line)> sink,
         std::function<Instant()> clock, std::uint64_t unix_ns, Instant at, std::uint64_t seed);
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  // `traceparent`: the header of the request, if it had one; one that says that its sender does not
  // record is heeded. This outlives the span.
  ActiveSpan begin(std::string name, SpanKind kind, std::optional<std::string_view> traceparent);
  // Within another span, which may be one that is not recorded.
  ActiveSpan begin(std::string name, SpanKind kind, const ActiveSpan& parent);

 private:
  friend class ActiveSpan;
  ActiveSpan start(std::string name, SpanKind kind, TraceContext context, std::uint64_t parent);
  std::uint64_t now_unix_ns() const;
  std::uint64_t new_id();

  std::string service_name_;
  std::function<void(std::string_view line)> sink_;
  std::function<Instant()> clock_;
  std::uint64_t unix_ns_;
  Instant at_;
  Prng ids_;
};

}  // namespace kvlease
