// Implements backends.h.
#include "kvlease/route/backends.h"

#include <algorithm>
#include <utility>

#include "kvlease/base/check.h"
#include "kvlease/wire/json_fields.h"

namespace kvlease {
namespace {

using enum BackendState;
using enum BackendEvent;

constexpr Transition<BackendState, BackendEvent> kTransitions[] = {
    {kUnprobed, kProbePassed, kReady}, {kUnprobed, kProbeRefused, kBusy},
    {kUnprobed, kProbeFailed, kDown},  {kUnprobed, kCallDied, kDown},
    {kReady, kProbePassed, kReady},    {kReady, kProbeRefused, kBusy},
    {kReady, kProbeFailed, kDown},     {kReady, kCallDied, kDown},
    {kBusy, kProbePassed, kReady},     {kBusy, kProbeRefused, kBusy},
    {kBusy, kProbeFailed, kDown},      {kBusy, kCallDied, kDown},
    {kDown, kProbePassed, kReady},     {kDown, kProbeRefused, kBusy},
    {kDown, kProbeFailed, kDown},      {kDown, kCallDied, kDown},
};

constexpr std::size_t kReadyBytesMax = 4096;
constexpr IntegerRange kAnyCount{0, std::uint64_t{1} << 53};

// How willingly a backend is taken; less is better.
int rank_of(BackendState state) {
  switch (state) {
    case kReady:
      return 0;
    case kUnprobed:
      return 1;
    case kBusy:
      return 2;
    case kDown:
      return 3;
  }
  KVL_UNREACHABLE("every state of a backend has a rank");
}

}  // namespace

std::string_view backend_state_name(BackendState state) {
  switch (state) {
    case kUnprobed:
      return "unprobed";
    case kReady:
      return "ready";
    case kBusy:
      return "busy";
    case kDown:
      return "down";
  }
  KVL_UNREACHABLE("every state of a backend has a name");
}

std::string_view backend_event_name(BackendEvent event) {
  switch (event) {
    case kProbePassed:
      return "probe_passed";
    case kProbeRefused:
      return "probe_refused";
    case kProbeFailed:
      return "probe_failed";
    case kCallDied:
      return "call_died";
  }
  KVL_UNREACHABLE("every event of a backend has a name");
}

std::span<const Transition<BackendState, BackendEvent>> backend_transitions() {
  return kTransitions;
}

std::optional<Headroom> parse_headroom(std::string_view ready_body) {
  std::optional<Error> problem;
  JsonObject body = open_json(ready_body, kReadyBytesMax, "the answer", problem);
  std::optional<std::uint64_t> waiting;
  std::optional<std::uint64_t> waiting_max;
  std::optional<std::uint64_t> leased;
  std::optional<std::uint64_t> leased_max;
  body.integer("waiting", kAnyCount, waiting);
  body.integer("max_num_waiting", kAnyCount, waiting_max);
  body.integer("blocks_leased", kAnyCount, leased);
  body.integer("blocks_leased_max", kAnyCount, leased_max);
  if (problem || !waiting || !waiting_max || !leased || !leased_max) return std::nullopt;
  return Headroom{*waiting, *waiting_max, *leased, *leased_max};
}

BackendPool::BackendPool(std::size_t count, RoutePolicy policy, std::uint64_t seed)
    : backends_(count), policy_(policy), jitter_(seed) {
  KVL_CHECK(count > 0, "a role has at least one instance");
}

// As it said last; what the router has sent since is in `outstanding`.
bool BackendPool::has_headroom(const Backend& backend, std::size_t blocks) const {
  if (!backend.headroom) return true;
  const Headroom& room = *backend.headroom;
  return room.waiting < room.waiting_max && room.blocks_leased + blocks <= room.blocks_leased_max;
}

// Those of the least cost, in turn.
std::vector<std::size_t> BackendPool::healthiest(const Wish& wish) const {
  const auto cost = [&](std::size_t i) {
    const Backend& backend = backends_[i];
    return 2 * (i == wish.avoid ? rank_of(kDown) + 1 : rank_of(backend.state)) +
           (has_headroom(backend, wish.blocks) ? 0 : 1);
  };
  std::vector<std::size_t> best;
  for (std::size_t step = 0; step < backends_.size(); ++step) {
    const std::size_t i = (next_ + step) % backends_.size();
    if (wish.may_take && !wish.may_take(i)) continue;
    if (!best.empty() && cost(i) > cost(best.front())) continue;
    if (!best.empty() && cost(i) < cost(best.front())) best.clear();
    best.push_back(i);
  }
  return best;
}

std::optional<std::size_t> BackendPool::pick(const Wish& wish) {
  const std::vector<std::size_t> candidates = healthiest(wish);
  if (candidates.empty()) return std::nullopt;
  const auto outstanding = [&](std::size_t i) { return backends_[i].outstanding; };
  std::size_t taken = candidates.front();
  if (policy_ == RoutePolicy::kLeastOutstanding) {
    taken = *std::ranges::min_element(candidates, {}, outstanding);
  } else if (policy_ == RoutePolicy::kPrefixAffine) {
    // Rendezvous hashing with a bound on the load (Mirrokni, Thorup, Zadimoghaddam 2018): the same
    // prefix goes to the same instance while that has at most 5/4 of the mean, one more included.
    std::size_t total = 1;
    for (const std::size_t i : candidates) total += outstanding(i);
    const std::size_t bound = (total * 5 + candidates.size() * 4 - 1) / (candidates.size() * 4);
    std::uint64_t highest = 0;
    for (const std::size_t i : candidates) {
      const std::uint64_t weight = mix64(wish.prefix ^ mix64(i + 1));
      if (outstanding(i) >= bound || weight < highest) continue;
      highest = weight;
      taken = i;
    }
  }
  next_ = taken + 1;
  return taken;
}

BackendPool::Use::Use(BackendPool& pool, std::size_t backend)
    : outstanding_(&pool.backends_[backend].outstanding) {
  ++*outstanding_;
}

BackendPool::Use::Use(Use&& other) noexcept
    : outstanding_(std::exchange(other.outstanding_, nullptr)) {}

BackendPool::Use& BackendPool::Use::operator=(Use&& other) noexcept {
  const Use old(std::move(*this));
  outstanding_ = std::exchange(other.outstanding_, nullptr);
  return *this;
}

BackendPool::Use::~Use() {
  if (outstanding_ != nullptr) --*outstanding_;
}

bool BackendPool::any_ready(std::size_t except) const {
  for (std::size_t i = 0; i < backends_.size(); ++i) {
    if (i != except && backends_[i].state == kReady) return true;
  }
  return false;
}

bool BackendPool::any_ready() const {
  return std::ranges::any_of(backends_, [](const Backend& b) { return b.state == kReady; });
}

bool BackendPool::any_up() const {
  return std::ranges::any_of(backends_, [](const Backend& b) { return b.state != kDown; });
}

Instant BackendPool::next_deadline() const {
  Instant next = kNever;
  for (const Backend& backend : backends_) {
    if (!backend.is_probed) next = earlier(next, backend.next_probe);
  }
  return next;
}

std::vector<BackendPool::Probe> BackendPool::take_probes(Instant now) {
  std::vector<Probe> probes;
  for (std::size_t i = 0; i < backends_.size(); ++i) {
    Backend& backend = backends_[i];
    if (backend.is_probed || now < backend.next_probe) continue;
    backend.is_probed = true;
    backend.died_since_probe = false;
    probes.push_back({i, backend.has_only_health ? "/health" : "/health/ready"});
  }
  return probes;
}

bool BackendPool::on_probe(std::size_t index, std::optional<int> status,
                           std::optional<Headroom> headroom, Instant now) {
  Backend& backend = backends_[index];
  KVL_CHECK(backend.is_probed, "an answer belongs to a probe");
  backend.is_probed = false;
  backend.headroom = headroom;
  if (status == 404 && !backend.has_only_health) {  // vLLM has no /health/ready: ask again at once
    backend.has_only_health = true;
    backend.next_probe = now;
    return false;
  }
  const auto tenths = static_cast<std::int64_t>(9 + jitter_.below(3));  // not all in one turn
  backend.next_probe = saturating_add(now, kProbeInterval / 10 * tenths);
  if (!status) return apply(backend, kProbeFailed);
  if (backend.died_since_probe) return false;
  return apply(backend, *status / 100 == 2 ? kProbePassed : kProbeRefused);
}

bool BackendPool::on_call_died(std::size_t index) {
  backends_[index].died_since_probe = true;
  return apply(backends_[index], kCallDied);
}

bool BackendPool::apply(Backend& backend, BackendEvent event) {
  const bool got_none = event == kProbeFailed || event == kCallDied;
  backend.failures = got_none ? backend.failures + 1 : 0;
  const auto to = next_state(backend_transitions(), backend.state, event);
  KVL_CHECK(to.has_value(), "a backend's table has every row");
  const bool changed = *to != backend.state;
  backend.state = *to;
  return changed;
}

}  // namespace kvlease
