// Implements tracer.h.
#include "kvlease/serving/tracer.h"

namespace kvlease {
namespace {

constexpr std::size_t kEventsMax = 128;

}  // namespace

ActiveSpan& ActiveSpan::operator=(ActiveSpan&& other) noexcept {
  if (this == &other) return *this;
  end();
  tracer_ = std::exchange(other.tracer_, nullptr);
  span_ = std::move(other.span_);
  return *this;
}

std::optional<std::string> ActiveSpan::traceparent() const {
  return recorded() ? std::optional(to_traceparent(span_.context)) : std::nullopt;
}

void ActiveSpan::attribute(std::string_view key, AttributeValue value) {
  if (recorded()) span_.attributes.push_back({std::string(key), std::move(value)});
}

void ActiveSpan::event(std::string_view name, std::vector<Attribute> attributes) {
  if (!recorded()) return;
  if (span_.events.size() >= kEventsMax) {
    ++span_.dropped_events;
    return;
  }
  span_.events.push_back({std::string(name), tracer_->now_unix_ns(), std::move(attributes)});
}

void ActiveSpan::fail(std::string message) {
  if (recorded()) span_.error = std::move(message);
}

void ActiveSpan::end() {
  Tracer* const tracer = std::exchange(tracer_, nullptr);
  if (tracer == nullptr) return;
  span_.end_unix_ns = tracer->now_unix_ns();
  tracer->sink_(to_otlp_json(span_, tracer->service_name_));
}

Tracer::Tracer(std::string service_name, std::function<void(std::string_view line)> sink,
               std::function<Instant()> clock, std::uint64_t unix_ns, Instant at,
               std::uint64_t seed)
    : service_name_(std::move(service_name)),
      sink_(std::move(sink)),
      clock_(std::move(clock)),
      unix_ns_(unix_ns),
      at_(at),
      ids_(seed) {}

ActiveSpan Tracer::begin(std::string name, SpanKind kind,
                         std::optional<std::string_view> traceparent) {
  if (!sink_) return {};
  const auto caller = traceparent ? parse_traceparent(*traceparent) : std::nullopt;
  if (!caller) {
    return start(std::move(name), kind, {.trace_high = new_id(), .trace_low = new_id()}, 0);
  }
  return caller->sampled ? start(std::move(name), kind, *caller, caller->span) : ActiveSpan();
}

ActiveSpan Tracer::begin(std::string name, SpanKind kind, const ActiveSpan& parent) {
  if (!parent.recorded()) return {};
  return start(std::move(name), kind, parent.span_.context, parent.span_.context.span);
}

ActiveSpan Tracer::start(std::string name, SpanKind kind, TraceContext context,
                         std::uint64_t parent) {
  context.span = new_id();
  ActiveSpan active;
  active.tracer_ = this;
  active.span_ = {.context = context,
                  .parent = parent,
                  .name = std::move(name),
                  .kind = kind,
                  .start_unix_ns = now_unix_ns()};
  return active;
}

// The date may jump; a span's length must not.
std::uint64_t Tracer::now_unix_ns() const {
  return unix_ns_ + static_cast<std::uint64_t>((clock_() - at_).count());
}

std::uint64_t Tracer::new_id() {
  for (;;) {
    if (const std::uint64_t id = ids_.next(); id != 0) return id;
  }
}

}  // namespace kvlease
