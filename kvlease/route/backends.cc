// Implements backends.h.
#include "kvlease/route/backends.h"

#include <algorithm>

#include "kvlease/base/check.h"

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

BackendPool::BackendPool(std::size_t count, std::uint64_t seed) : backends_(count), jitter_(seed) {
  KVL_CHECK(count > 0, "a role has at least one instance");
}

std::size_t BackendPool::pick(std::optional<std::size_t> avoid) {
  const auto cost = [&](std::size_t backend) {
    return backend == avoid ? rank_of(kDown) + 1 : rank_of(backends_[backend].state);
  };
  std::size_t best = next_ % backends_.size();
  for (std::size_t step = 1; step < backends_.size(); ++step) {
    const std::size_t other = (next_ + step) % backends_.size();
    if (cost(other) < cost(best)) best = other;
  }
  next_ = best + 1;
  return best;
}

bool BackendPool::any_ready() const {
  return std::ranges::any_of(backends_, [](const Backend& b) { return b.state == kReady; });
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

bool BackendPool::on_probe(std::size_t index, std::optional<int> status, Instant now) {
  Backend& backend = backends_[index];
  KVL_CHECK(backend.is_probed, "an answer belongs to a probe");
  backend.is_probed = false;
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
