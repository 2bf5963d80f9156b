// What a router believes about the instances of one role, and which one it takes next. An opinion
// comes from probes and from calls that died; it orders the choice and never refuses work that
// could succeed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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

// Which of the equally healthy ones is taken.
enum class RoutePolicy : std::uint8_t {
  kRoundRobin,        // the next in turn
  kLeastOutstanding,  // with the fewest requests under way; of several, the next in turn
  kPrefixAffine,  // the one that had requests beginning alike, unless it has far more than others
};
inline constexpr std::string_view kRoutePolicyNames[] = {"round-robin", "least-outstanding",
                                                         "prefix-affine"};

// What an instance says of itself in /health/ready.
struct Headroom {
  std::uint64_t waiting = 0;  // requests
  std::uint64_t waiting_max = 0;
  std::uint64_t blocks_leased = 0;
  std::uint64_t blocks_leased_max = 0;
  bool operator==(const Headroom&) const = default;
};
// nullopt for what is no such answer, as vLLM's.
std::optional<Headroom> parse_headroom(std::string_view ready_body);

class BackendPool {
 public:
  // `count` instances, numbered from 0. `seed`: of the jitter between probes. Requires: count > 0.
  BackendPool(std::size_t count, RoutePolicy policy, std::uint64_t seed);

  struct Wish {
    std::optional<std::size_t> avoid = {};  // taken only when there is no other
    std::uint64_t prefix = 0;               // a hash of how the request begins
    std::size_t blocks = 0;                 // that it will want, as far as known
    // Those that may be taken at all; empty: all.
    std::function<bool(std::size_t backend)> may_take = {};
  };
  // One that may be taken, the healthiest first (ready, unprobed, busy, down); then one with
  // headroom for it; then by the policy. nullopt when none may be taken. O(count).
  std::optional<std::size_t> pick(const Wish& wish);

  BackendState state(std::size_t backend) const { return backends_[backend].state; }
  // Probes and calls in a row that got no answer.
  std::uint32_t failures(std::size_t backend) const { return backends_[backend].failures; }
  bool any_ready() const;
  bool any_up() const;  // that is not down
  // A ready one that is not `except`.
  bool any_ready(std::size_t except) const;
  std::size_t outstanding(std::size_t backend) const { return backends_[backend].outstanding; }
  const std::optional<Headroom>& headroom(std::size_t backend) const {
    return backends_[backend].headroom;
  }

  // One request under way at a backend, until it is destroyed or assigned to.
  class Use {
   public:
    Use() = default;  // of none
    // `pool` outlives this.
    Use(BackendPool& pool, std::size_t backend);
    Use(Use&& other) noexcept;
    Use& operator=(Use&& other) noexcept;
    ~Use();

   private:
    std::size_t* outstanding_ = nullptr;
  };

  // When the next probe is due; kNever while all are under way.
  Instant next_deadline() const;

  struct Probe {
    std::size_t backend;
    std::string_view target;  // `/health/ready`, or `/health` for one that has only that
    bool operator==(const Probe&) const = default;
  };
  // The probes to send now; each is answered by one call of on_probe().
  std::vector<Probe> take_probes(Instant now);
  // `status`: of the answer, nullopt when there was none; `headroom`: what it says, if anything.
  // True when the state changed.
  bool on_probe(std::size_t backend, std::optional<int> status, std::optional<Headroom> headroom,
                Instant now);
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
    std::size_t outstanding = 0;
    std::optional<Headroom> headroom;
  };
  bool has_headroom(const Backend& backend, std::size_t blocks) const;
  std::vector<std::size_t> healthiest(const Wish& wish) const;
  bool apply(Backend& backend, BackendEvent event);

  std::vector<Backend> backends_;
  RoutePolicy policy_;
  std::size_t next_ = 0;
  Prng jitter_;
};

}  // namespace kvlease
