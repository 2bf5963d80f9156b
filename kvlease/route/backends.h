// What a router believes about the instances of one role, and which one it takes next. An opinion
// comes from probes and from calls that died; it orders the choice and never refuses work that
// could succeed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kvlease/base/prng.h"
#include "kvlease/base/time.h"
#include "kvlease/core/transition_table.h"

namespace kvlease {

inline constexpr Duration kProbeInterval = std::chrono::seconds{2};

enum class BackendState : std::uint8_t {
  kUnprobed,  // nothing is known yet
  kReady,     // takes new work
  kBusy,      // lives, but wants no new work: draining, out of budget
  kDown,      // cannot be reached
};
enum class BackendEvent : std::uint8_t {
  kProbePassed,   // 2xx
  kProbeRefused,  // another answer
  kProbeFailed,   // no answer
  kCallDied,      // a request's leg could not connect, or broke
};
std::string_view backend_state_name(BackendState state);
std::string_view backend_event_name(BackendEvent event);
std::span<const Transition<BackendState, BackendEvent>> backend_transitions();

class BackendPool {
 public:
  // `count` instances, numbered from 0. `seed`: of the jitter between probes. Requires: count > 0.
  BackendPool(std::size_t count, std::uint64_t seed);

  // The next one in turn: a ready one that is not `avoid`, else one that lives, else any other;
  // `avoid` itself only when there is no other. O(count).
  std::size_t pick(std::optional<std::size_t> avoid);

  BackendState state(std::size_t backend) const { return backends_[backend].state; }
  // Probes and calls in a row that got no answer.
  std::uint32_t failures(std::size_t backend) const { return backends_[backend].failures; }
  bool any_ready() const;

  // When the next probe is due; kNever while all are under way.
  Instant next_deadline() const;

  struct Probe {
    std::size_t backend;
    std::string_view target;  // `/health/ready`, or `/health` for one that has only that
    bool operator==(const Probe&) const = default;
  };
  // The probes to send now; each is answered by one call of on_probe().
  std::vector<Probe> take_probes(Instant now);
  // `status`: of the answer, nullopt when there was none. True when the state changed.
  bool on_probe(std::size_t backend, std::optional<int> status, Instant now);
  // A request's leg died. True when the state changed.
  bool on_call_died(std::size_t backend);

 private:
  struct Backend {
    BackendState state = BackendState::kUnprobed;
    std::uint32_t failures = 0;
    bool has_only_health = false;
    bool is_probed = false;         // a probe is under way
    bool died_since_probe = false;  // so that its answer is about the past
    Instant next_probe = kTimeZero;
  };
  bool apply(Backend& backend, BackendEvent event);

  std::vector<Backend> backends_;
  std::size_t next_ = 0;
  Prng jitter_;
};

}  // namespace kvlease
