// The last events of an engine, numbered, so that whoever asks again and again gets each once and
// is told how many it has missed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "kvlease/base/time.h"
#include "kvlease/core/event.h"

namespace kvlease {

struct NumberedEvent {
  std::uint64_t number = 0;  // 1, 2, … since the start
  Instant at;
  Event event;
};

class EventRing {
 public:
  // Keeps so many; the oldest gives way (L43). Requires: more than none.
  explicit EventRing(std::size_t events_max);

  // Texts from peers are kept printable and of bounded length.
  void add(const Event& event, Instant now);

  struct Answer {
    std::deque<NumberedEvent>::const_iterator begin;  // in order of their numbers …
    std::deque<NumberedEvent>::const_iterator end;    // … until the next add()
    std::uint64_t missed = 0;                         // asked for, and gone
  };
  // The events with a greater number than `number`.
  Answer after(std::uint64_t number) const;

  // The number of the newest; 0: there was none.
  std::uint64_t last() const { return last_; }

 private:
  std::size_t events_max_;
  std::deque<NumberedEvent> events_;
  std::uint64_t last_ = 0;
};

}  // namespace kvlease
