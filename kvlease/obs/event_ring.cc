// Implements event_ring.h.
#include "kvlease/obs/event_ring.h"

#include <algorithm>
#include <utility>

#include "kvlease/base/check.h"
#include "kvlease/obs/printable.h"

namespace kvlease {
namespace {

// The longest id that the wire takes is shorter.
constexpr std::size_t kTextBytesMax = 512;

}  // namespace

EventRing::EventRing(std::size_t events_max) : events_max_(events_max) {
  KVL_CHECK(events_max > 0, "a ring keeps an event");
}

void EventRing::add(const Event& event, Instant now) {
  if (events_.size() == events_max_) events_.pop_front();
  const auto shown = [](const std::string& text) { return printable(text, kTextBytesMax); };
  Event kept = event;
  kept.request = RequestId(shown(event.request.str()));
  kept.lease = LeaseId(shown(event.lease.str()));
  kept.peer = shown(event.peer);
  kept.detail = shown(event.detail);
  events_.push_back({.number = ++last_, .at = now, .event = std::move(kept)});
}

EventRing::Answer EventRing::after(std::uint64_t number) const {
  const std::uint64_t gone = last_ - events_.size();
  const std::uint64_t had = std::min(number, last_);  // a number to come asks for nothing
  const std::uint64_t skipped = had > gone ? had - gone : 0;
  return {.begin = events_.begin() + static_cast<std::ptrdiff_t>(skipped),
          .end = events_.end(),
          .missed = gone > had ? gone - had : 0};
}

}  // namespace kvlease
