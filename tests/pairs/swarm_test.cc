// Seeded random walks over whole engines with every fault at once: while faults last no finished
// text is wrong and no ledger is out of balance; when they have ended, everything comes back by
// itself and every pair of engines hands over again. The same seed gives the same run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "tests/pairs/fixture.h"

namespace kvlease::pairs {
namespace {

constexpr Duration kHealLimit = seconds(150);

// What the walks met, so that they cannot quietly stop meeting it.
struct Met {
  std::uint64_t validated = 0;
  std::uint64_t rejected = 0;
  std::uint64_t suspect = 0;
  std::uint64_t expired = 0;
  std::uint64_t stale = 0;
  std::uint64_t timed_out = 0;
  std::uint64_t lost = 0;
  std::uint64_t adapted = 0;  // leases that were granted for less than configured
};

constexpr Duration kHoldTtl = seconds(4);

enum class LeaseLength : std::uint8_t { kConfigured, kAdaptive };

class Walk {
 public:
  explicit Walk(std::uint64_t seed, LeaseLength length = LeaseLength::kConfigured)
      : prng_(seed), length_(length), world_(network_config()) {
    faulty_until_ = at(length == LeaseLength::kAdaptive ? 150 : 60);
    for (const char* name : {"P0", "P1", "D0", "D1"}) {
      world_.add(name, engine_options(1u << below(3)));  // ranks beyond the two heads are replicas
    }
  }

  void run() {
    if (length_ == LeaseLength::kAdaptive) hand_over_often();
    while (world_.now() < faulty_until_) {
      act();
      world_.run_for(milliseconds(one_in(3) ? below(3000) : below(200)));
      check_texts();
    }
    heal();
    for (const auto& [name, event] : world_.events()) {
      const bool is_lease = event.kind == EventKind::kLeaseGranted && event.detail.empty();
      if (is_lease && event.length < world_.options(name).lease.times.duration) ++met_.adapted;
    }
  }
  std::uint64_t digest() const { return world_.digest(); }
  const Met& met() const { return met_; }

 private:
  struct Asked {
    std::string prompt;
    std::uint32_t max_tokens;
    bool checked = false;
  };

  std::uint32_t below(std::uint64_t bound) {
    return static_cast<std::uint32_t>(prng_.below(bound));
  }
  bool one_in(std::uint64_t n) { return prng_.chance(1, n); }
  fabric::Strikes sometimes() {
    if (!one_in(3)) return {};
    return {.numerator = 1, .denominator = 2 + below(20)};
  }

  fabric::NetworkConfig network_config() {
    return {.seed = prng_.next(),
            .read_latency = one_in(2) ? Duration(milliseconds(below(3000)))
                                      : Duration(std::chrono::microseconds(20)),
            .notif_latency = milliseconds(below(20)),
            .chunk_bytes = 16 + below(500),
            .chunk_jitter_max = milliseconds(one_in(2) ? below(2000) : 0),
            .death_notice = milliseconds(one_in(4) ? below(20'000) : 20),
            .stopped_memory_is_readable = one_in(2)};
  }

  InstanceOptions engine_options(std::uint32_t tp) {
    InstanceOptions options{.tp = tp};
    options.lease.times = derive_lease_times(seconds(one_in(2) ? 6 : 2));
    if (length_ == LeaseLength::kAdaptive) {
      options.lease.times = derive_lease_times(seconds(15));
      options.lease.lease_adaptive = true;
      options.lease.lease_duration_min = milliseconds(500);
    }
    options.lease.load_timeout = seconds(10);
    options.lease.load_failure_policy =
        one_in(3) ? LoadFailurePolicy::kFail : LoadFailurePolicy::kRecompute;
    options.lease.lease_slots = 6 + below(60);
    options.lease.bidirectional = one_in(2);
    options.lease.hold_ttl = kHoldTtl;
    options.lease.recompute_threshold = below(6);
    options.scheduler.num_blocks = 16 + below(50);
    options.scheduler.max_num_seqs = 1 + below(8);
    options.inter_token_latency = milliseconds(one_in(2) ? below(300) : 0);
    options.prefill_time_per_token = milliseconds(one_in(2) ? below(20) : 0);
    for (std::uint32_t rank = 0; rank < tp; ++rank) {
      options.faults.push_back({.seed = prng_.next(),
                                .refuse_notif = sometimes(),
                                .drop_notif = sometimes(),
                                .duplicate_notif = sometimes(),
                                .delay_notif = sometimes(),
                                .notif_delay = milliseconds(below(3000)),
                                .reorder_notif = sometimes(),
                                .refuse_post = sometimes(),
                                .delay_post = sometimes(),
                                .post_delay = milliseconds(below(5000)),
                                .fail_read = sometimes(),
                                .ends_at = faulty_until_});
    }
    return options;
  }

  // So much that the leases' length adapts.
  void hand_over_often() {
    for (std::uint64_t i = 0; i < 3 * AdaptiveLease::kSamplesMin; ++i) {
      const std::string text = pick_prompt();
      const Ticket prefill = world_.prefill(pick("P"), text);
      remember(text, 1);
      world_.run_for(milliseconds(300));
      if (world_.outcome(prefill).params.empty()) continue;
      world_.decode(pick("D"), text, world_.outcome(prefill).params, 1);
      remember(text, 1);
    }
  }

  std::string pick(std::string_view role) { return std::string(role) + (one_in(2) ? "0" : "1"); }
  std::string pick() { return pick(one_in(2) ? "P" : "D"); }
  // Few kinds: prefixes are shared.
  std::string pick_prompt() { return prompt(1 + below(40), static_cast<char>('a' + below(3))); }

  void remember(std::string text, std::uint32_t max_tokens) {
    asked_.push_back({.prompt = std::move(text), .max_tokens = max_tokens});
  }

  void act() {
    switch (below(18)) {
      case 0:
      case 1:
      case 2:
      case 3: {
        const std::string name = pick("P");
        if (!world_.is_alive(name)) return;
        const std::string text = pick_prompt();
        prefills_.push_back(world_.prefill(name, text));
        return remember(text, 1);
      }
      case 4:
      case 5:
      case 6:
      case 7:
        return use_params();
      case 8: {
        const std::string name = pick();
        if (!world_.is_alive(name)) return;
        const std::string text = pick_prompt();
        world_.complete(name, text, 8);
        return remember(text, 8);
      }
      case 9:
      case 10:
        if (world_.requests() == 0) return;
        return world_.abort(below(world_.requests()));
      case 11:
        return release_some_lease();
      case 12:
      case 13:
        return take_next_turn();
      default:
        return strike();
    }
  }

  // A prefill's params may be used at once, late, twice, on two engines, or never.
  void use_params() {
    if (prefills_.empty()) return;
    const std::size_t recent = std::min<std::size_t>(prefills_.size(), 4);
    const Ticket from = prefills_[prefills_.size() - 1 - below(recent)];
    const std::string name = pick("D");
    if (world_.outcome(from).params.empty() || !world_.is_alive(name)) return;
    const std::string text = asked_[from].prompt;
    decodes_.push_back(world_.decode(name, text, world_.outcome(from).params, 8));
    remember(text, 8);
  }

  // What D holds may be read in the next turn, by whichever P, in time or not (L39).
  void take_next_turn() {
    if (decodes_.empty()) return;
    const std::size_t recent = std::min<std::size_t>(decodes_.size(), 4);
    const Ticket from = decodes_[decodes_.size() - 1 - below(recent)];
    const std::string name = pick("P");
    if (world_.outcome(from).params.empty() || !world_.is_alive(name)) return;
    const std::string text = asked_[from].prompt + world_.outcome(from).text + prompt(3, 'n');
    prefills_.push_back(world_.prefill_with(name, text, world_.outcome(from).params));
    remember(text, 1);
  }

  void release_some_lease() {
    const std::string name = pick("P");
    if (!world_.is_alive(name)) return;
    const auto& live = world_.engine(name).connector().leases().live_leases();
    if (live.empty()) return;
    const LeaseId lease = live.begin()->first;
    world_.release(name, lease);
  }

  void strike() {
    const std::string name = pick();
    if (!world_.is_alive(name)) return world_.restart(name, world_.options(name));
    if (world_.is_stopped(name)) return world_.cont(name);
    switch (below(4)) {
      case 0:
        note(name);
        return world_.kill(name);
      case 1:
        return world_.stop(name);
      default:
        return world_.set_handshake(name, static_cast<HandshakeBehaviour>(below(3)),
                                    milliseconds(below(4000)));
    }
  }

  void note(const std::string& name) {
    Instance& engine = world_.engine(name);
    met_.validated += engine.counter(Counter::kReadsValidated);
    met_.rejected += engine.counter(Counter::kReadsRejected);
    met_.suspect += engine.counter(Counter::kPeersSuspect);
    met_.stale += engine.counter(Counter::kStaleReferences);
    met_.timed_out += engine.counter(Counter::kReadsTimedOut);
    met_.lost += engine.counter(Counter::kLeasesLost);
    met_.expired +=
        engine.connector().leases().ledger().ended[static_cast<std::size_t>(LeaseEnd::kExpired)];
  }

  void check_texts() {
    for (Ticket ticket = 0; ticket < world_.requests(); ++ticket) {
      const Outcome& outcome = world_.outcome(ticket);
      Asked& asked = asked_[ticket];
      if (asked.checked || !outcome.finish_reason) continue;
      asked.checked = true;
      if (*outcome.finish_reason != FinishReason::kLength) continue;
      EXPECT_EQ(outcome.text, reference_text(asked.prompt, asked.max_tokens))
          << outcome.engine << ' ' << outcome.id.str();
    }
  }

  void heal() {
    for (const char* name : {"P0", "P1", "D0", "D1"}) {
      if (!world_.is_alive(name)) world_.restart(name, world_.options(name));
      if (world_.is_stopped(name)) world_.cont(name);
      world_.set_handshake(name, HandshakeBehaviour::kAnswers, milliseconds(1));
    }
    EXPECT_TRUE(world_.run_until(
        [this] {
          return std::ranges::all_of(
              std::vector<std::string>{"P0", "P1", "D0", "D1"},
              [this](const std::string& name) { return world_.engine(name).is_at_rest(); });
        },
        kHealLimit))
        << "does not come to rest";
    world_.expect_all_back();
    check_texts();
    EXPECT_TRUE(std::ranges::all_of(asked_, &Asked::checked)) << "a request never ended";
    world_.network().set_read_latency(std::chrono::microseconds(20));
    world_.run_for(seconds(25));  // handshakes that nobody had answered run into their limit
    for (const char* producer : {"P0", "P1"}) {
      for (const char* consumer : {"D0", "D1"}) expect_handoff(producer, consumer);
    }
    for (const char* name : {"P0", "P1", "D0", "D1"}) note(name);
  }

  void expect_handoff(const std::string& producer, const std::string& consumer) {
    SCOPED_TRACE(producer + " to " + consumer);
    const std::string text = producer + consumer + prompt(12, 'h');
    const std::string params = world_.params_of_prefill(producer, text);
    remember(text, 1);
    const std::uint64_t validated = world_.count(consumer, Counter::kReadsValidated);
    const Ticket ticket = world_.decode(consumer, text, params, 8);
    remember(text, 8);
    EXPECT_TRUE(world_.finishes(ticket, seconds(30)));
    EXPECT_EQ(world_.outcome(ticket).text, reference_text(text, 8));
    EXPECT_GT(world_.count(consumer, Counter::kReadsValidated), validated) << last_events();
    world_.run_for(kHoldTtl);
    world_.expect_all_back();
  }

  std::string last_events() const {
    std::string text;
    const auto& events = world_.events();
    for (std::size_t i = events.size() - std::min<std::size_t>(events.size(), 30);
         i < events.size(); ++i) {
      const auto& [name, event] = events[i];
      text += name + ": " + std::string(event_kind_name(event.kind)) + ' ' + event.request.str() +
              ' ' + event.lease.str() + ' ' + event.peer + ' ' + event.detail + '\n';
    }
    return text;
  }

  Prng prng_;
  LeaseLength length_;
  Instant faulty_until_{};
  World world_;
  std::vector<Asked> asked_;  // by ticket
  std::vector<Ticket> prefills_;
  std::vector<Ticket> decodes_;
  Met met_;
};

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(Swarm, StaysSafeHealsAndRepeats) {
  const std::uint64_t first = from_environment("KVL_SWARM_FIRST_SEED", 1);
  const std::uint64_t seeds = from_environment("KVL_SWARM_SEEDS", 30);
  Met met;
  for (std::uint64_t seed = first; seed < first + seeds && !HasFailure(); ++seed) {
    SCOPED_TRACE("repeat it: KVL_SWARM_FIRST_SEED=" + std::to_string(seed) +
                 " KVL_SWARM_SEEDS=1 pairs_tests --gtest_filter='Swarm.*'");
    Walk walk(seed);
    walk.run();
    Walk again(seed);
    again.run();
    EXPECT_EQ(walk.digest(), again.digest()) << "two runs of one seed differ";
    met.validated += walk.met().validated;
    met.rejected += walk.met().rejected;
    met.suspect += walk.met().suspect;
    met.expired += walk.met().expired;
    met.stale += walk.met().stale;
    met.timed_out += walk.met().timed_out;
    met.lost += walk.met().lost;
  }
  if (seeds < 30) return;
  EXPECT_GT(met.validated, 0u);
  EXPECT_GT(met.rejected, 0u);
  EXPECT_GT(met.suspect, 0u);
  EXPECT_GT(met.expired, 0u);
  EXPECT_GT(met.stale, 0u);
  EXPECT_GT(met.timed_out, 0u);
  EXPECT_GT(met.lost, 0u);
}

// L14: the same with leases whose length follows what P observes.
TEST(Swarm, StaysSafeHealsAndRepeatsWithAdaptiveLeases) {
  Met met;
  for (std::uint64_t seed = 101; seed <= 108 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Walk walk(seed, LeaseLength::kAdaptive);
    walk.run();
    Walk again(seed, LeaseLength::kAdaptive);
    again.run();
    EXPECT_EQ(walk.digest(), again.digest()) << "two runs of one seed differ";
    met.adapted += walk.met().adapted;
    met.expired += walk.met().expired;
    met.validated += walk.met().validated;
  }
  EXPECT_GT(met.adapted, 0u);
  EXPECT_GT(met.expired, 0u);
  EXPECT_GT(met.validated, 0u);
}

}  // namespace
}  // namespace kvlease::pairs
