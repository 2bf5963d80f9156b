// The model around the real leases: a queue of events in virtual time.
#include "tests/traces/replay.h"

#include <algorithm>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <string_view>
#include <tuple>
#include <utility>

#include "kvlease/base/check.h"
#include "kvlease/base/prng.h"
#include "kvlease/core/adaptive_lease.h"
#include "kvlease/core/agent_name.h"
#include "kvlease/core/engine_leases.h"
#include "kvlease/core/heartbeat_tracker.h"
#include "kvlease/core/lease_config.h"
#include "kvlease/core/lease_entries.h"
#include "kvlease/core/lease_table.h"

namespace kvlease::traces {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint32_t kBlockTokens = 16;
constexpr std::uint32_t kSlots = 16'384;
constexpr std::uint32_t kWordHigh = 1;
constexpr PeerId kP{1};

// What things take, for a model of some tens of billions of parameters: orders of magnitude.
constexpr Duration kPrefillPerToken = microseconds{50};
constexpr Duration kHop = milliseconds{2};
constexpr Duration kNotification = microseconds{200};
constexpr Duration kFront = milliseconds{1};          // of D's HTTP server, one at a time …
constexpr Duration kFrontPerToken = microseconds{2};  // … and of its tokeniser
constexpr Duration kReadPerToken = microseconds{10};
constexpr Duration kPerOutputToken = milliseconds{30};
constexpr Duration kNoticed = seconds{1};  // the router sends a dead decoder nothing more
constexpr Duration kRestart = seconds{60};

struct Request {
  TraceRequest from;
  LeaseId lease;
  std::size_t blocks = 0;
  std::uint32_t decoder = 0;
  std::uint64_t start = 0;  // of the decoder that it was sent to
  Instant granted_at;
};

struct Decoder {
  std::uint64_t start = 0;
  bool alive = true;
  Instant died_at = kNever;
  Instant stalled_until = kTimeZero;
  Instant front_free_at = kTimeZero;
  HeartbeatTracker tracker;
  Instant heartbeat_scheduled = kNever;
  std::deque<std::size_t> queue;
  std::uint32_t running = 0;
};

class Replay {
 public:
  Replay(const std::vector<TraceRequest>& trace, const ReplayOptions& options)
      : options_(options),
        memory_(kSlots),
        entries_(memory_, kWordHigh),
        table_({}, entries_),
        leases_({.slots = kSlots, .word_high = kWordHigh, .id_seed = options.seed}),
        decoders_(options.decoders),
        length_(trace.back().arrives_at - kTimeZero) {
    if (options.adaptive) {
      adaptive_.emplace(AdaptiveLeaseOptions{.duration_min = options.lease_duration_min,
                                             .duration_max = options.lease_duration});
    }
    for (const TraceRequest& from : trace) {
      const std::size_t number = requests_.size();
      requests_.push_back({.from = from,
                           .lease = {},
                           .blocks = (from.input_tokens + kBlockTokens - 1) / kBlockTokens,
                           .granted_at = kNever});
      after(from.arrives_at, kPrefillPerToken * from.input_tokens,
            [this, number] { grant(number); });
    }
    plan_faults();
  }

  ReplayResult run() {
    while (!events_.empty()) {
      const Event event = std::move(const_cast<Event&>(events_.top()));
      events_.pop();
      while (table_.next_deadline() < event.at) {  // what comes at the deadline is before it (L9)
        now_ = table_.next_deadline();
        table_.sweep(now_);
        take_reports();
      }
      now_ = event.at;
      event.act();
      take_reports();
    }
    while (table_.live() > 0) {
      now_ = table_.next_deadline();
      table_.sweep(now_);
      take_reports();
    }
    KVL_CHECK(leases_.ledger().balanced() && leases_.live() == 0, "every lease has ended (L6)");
    result_.granted = leases_.ledger().granted;
    result_.heartbeats = table_.counters().value(Counter::kHeartbeatsReceived);
    return std::move(result_);
  }

 private:
  struct Event {
    Instant at;
    std::uint64_t number = 0;
    std::function<void()> act;
    bool operator>(const Event& other) const {
      return std::tie(at, number) > std::tie(other.at, other.number);
    }
  };

  void after(Instant from, Duration length, std::function<void()> act) {
    events_.push({.at = from + length, .number = next_event_++, .act = std::move(act)});
  }
  // The same for something that this start of a decoder does, when it does not stand still then.
  void decoder_does(std::uint32_t decoder, Duration length, std::function<void()> act) {
    const std::uint64_t start = decoders_[decoder].start;
    after(now_, length, [this, decoder, start, act = std::move(act)]() mutable {
      const Decoder& d = decoders_[decoder];
      if (!d.alive || d.start != start) return;
      if (now_ < d.stalled_until) return decoder_does(decoder, d.stalled_until - now_, act);
      act();
    });
  }

  void plan_faults() {
    Prng prng(options_.seed);
    for (std::uint32_t d = 0; d < options_.decoders; ++d) {
      for (Instant at = kTimeZero; at < kTimeZero + length_;) {
        at += Duration(static_cast<std::int64_t>(
            prng.below(static_cast<std::uint64_t>(2 * options_.stalls_every.count()))));
        const Duration stall(static_cast<std::int64_t>(
            prng.below(static_cast<std::uint64_t>(options_.stall_max.count()) + 1)));
        after(at, Duration::zero(), [this, d, stall] {
          decoders_[d].stalled_until = std::max(decoders_[d].stalled_until, now_ + stall);
        });
      }
    }
    std::uint32_t victim = 0;
    for (const std::int64_t percent : options_.deaths) {
      after(kTimeZero, length_ * percent / 100, [this, d = victim] { kill(d); });
      victim = (victim + 1) % options_.decoders;
    }
  }

  void kill(std::uint32_t number) {
    Decoder& decoder = decoders_[number];
    const std::uint64_t start = decoder.start;
    decoder = Decoder{.start = start, .alive = false, .died_at = now_};
    deaths_.emplace(std::pair(number, start), result_.deaths.size());
    result_.deaths.push_back({.at = now_});
    after(now_, kRestart, [this, number] {
      decoders_[number].alive = true;
      ++decoders_[number].start;
    });
  }

  // --- P and the router

  void grant(std::size_t number) {
    Request& request = requests_[number];
    const auto reservation = leases_.reserve(std::to_string(number));
    KVL_CHECK(reservation.has_value(), "the model has slots enough");
    request.lease = reservation->id;
    request.granted_at = now_;
    const Duration duration = adaptive_ ? adaptive_->duration(now_) : options_.lease_duration;
    if (result_.durations.empty() || result_.durations.back().duration != duration) {
      result_.durations.push_back({now_, duration});
    }
    const LeaseTimes times = derive_lease_times(duration);
    const std::vector<BlockId> blocks(request.blocks);
    LeaseGrant grant = leases_.grant(request.lease, blocks, times, now_);
    grant.observed = options_.adaptive;
    table_.grant(grant, now_);
    by_lease_.emplace(request.lease, number);
    do {
      next_decoder_ = (next_decoder_ + 1) % options_.decoders;
    } while (!decoders_[next_decoder_].alive &&
             now_ >= decoders_[next_decoder_].died_at + kNoticed);
    request.decoder = next_decoder_;
    request.start = decoders_[next_decoder_].start;
    decoder_does(request.decoder, way(), [this, number, interval = times.heartbeat_interval] {
      enter_front(number, interval);
    });
  }

  Duration way() const {
    const Duration from = length_ * options_.way_slow_from / 100;
    const Duration width = length_ * (options_.way_slow_until - options_.way_slow_from) / 100;
    const Duration into = now_ - kTimeZero - from;
    if (into < Duration::zero() || into >= width) return kHop;
    const double share = 1 - std::abs(2 * to_seconds(into) / to_seconds(width) - 1);
    return kHop + from_seconds(share * to_seconds(options_.way_max));
  }

  // --- D

  void enter_front(std::size_t number, Duration interval) {
    const Request& request = requests_[number];
    Decoder& decoder = decoders_[request.decoder];
    const Duration work = kFront + kFrontPerToken * request.from.input_tokens;
    decoder.front_free_at = std::max(decoder.front_free_at, now_) + work;
    decoder_does(request.decoder, decoder.front_free_at - now_, [this, number, interval] {
      Decoder& d = decoders_[requests_[number].decoder];
      d.tracker.track(kP, requests_[number].lease, interval, now_);  // L15
      d.queue.push_back(number);
      beat(requests_[number].decoder);
      run_next(requests_[number].decoder);
    });
  }

  void beat(std::uint32_t number) {
    Decoder& decoder = decoders_[number];
    for (const DueHeartbeat& due : decoder.tracker.take_due(now_)) {
      after(now_, kNotification, [this, ids = due.leases] {
        std::vector<std::string_view> names;
        for (const LeaseId& id : ids) names.push_back(id.str());
        table_.renew(names, now_);
      });
    }
    const Instant next = decoder.tracker.next_deadline();
    if (next == kNever ||
        (decoder.heartbeat_scheduled > now_ && decoder.heartbeat_scheduled <= next)) {
      return;
    }
    decoder.heartbeat_scheduled = next;
    decoder_does(number, next - now_, [this, number] {
      decoders_[number].heartbeat_scheduled = kNever;
      beat(number);
    });
  }

  void run_next(std::uint32_t number) {
    Decoder& decoder = decoders_[number];
    while (decoder.running < options_.sequences && !decoder.queue.empty()) {
      const std::size_t next = decoder.queue.front();
      decoder.queue.pop_front();
      ++decoder.running;
      const TraceRequest& from = requests_[next].from;
      const Duration read = kReadPerToken * from.input_tokens;
      decoder_does(number, read, [this, number, next] {
        decoders_[number].tracker.untrack(kP, requests_[next].lease);
        after(now_, kNotification, [this, number, next] { complete(number, next); });
      });
      decoder_does(number, read + kPerOutputToken * from.output_tokens, [this, number] {
        --decoders_[number].running;
        run_next(number);
      });
    }
  }

  void complete(std::uint32_t number, std::size_t next) {
    const Request& request = requests_[next];
    const AgentName reader = make_agent_name({.engine_id = "D" + std::to_string(number),
                                              .rank = Rank{0},
                                              .incarnation = Incarnation{request.start + 1},
                                              .agent_number = 0});
    table_.complete({.id = request.lease.str()}, reader, now_);
  }

  // --- what has ended

  void take_reports() {
    const std::vector<LeaseWait> waits = table_.take_waits();
    for (const LeaseEnded& ended : table_.take_ended()) leases_.on_rank_ended(Rank{0}, ended);
    const std::vector<EngineLeaseEnded> ended = leases_.take_ended();
    for (const EngineLeaseEnded& one : ended) account(one);
    if (!adaptive_ || (waits.empty() && ended.empty())) return;
    for (const LeaseWait& wait : waits) adaptive_->observe(wait, now_);
    for (const EngineLeaseEnded& one : ended) {
      if (one.end == LeaseEnd::kExpired) adaptive_->on_expired(one.duration, now_);
    }
    adaptive_->duration(now_);
  }

  void account(const EngineLeaseEnded& ended) {
    const auto it = by_lease_.find(ended.id);
    const Request& request = requests_[it->second];
    by_lease_.erase(it);
    const auto blocks = static_cast<double>(request.blocks);
    result_.block_seconds += blocks * to_seconds(ended.held);
    if (ended.end == LeaseEnd::kCompleted) {
      ++result_.completed;
      return;
    }
    ++result_.expired;
    const auto death = deaths_.find({request.decoder, request.start});
    if (death == deaths_.end()) {
      ++result_.premature;
      return;
    }
    ReplayDeath& died = result_.deaths[death->second];
    const double kept = blocks * to_seconds(now_ - std::max(died.at, request.granted_at));
    ++died.leases;
    died.block_seconds += kept;
    result_.dead_block_seconds += kept;
  }

  const ReplayOptions options_;
  std::vector<LeaseEntry> memory_;
  LeaseEntries entries_;
  LeaseTable table_;
  EngineLeases leases_;
  std::optional<AdaptiveLease> adaptive_;
  std::vector<Decoder> decoders_;
  Duration length_;
  std::vector<Request> requests_;
  std::map<LeaseId, std::size_t> by_lease_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::size_t> deaths_;
  std::uint32_t next_decoder_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t next_event_ = 0;
  Instant now_ = kTimeZero;
  ReplayResult result_;
};

}  // namespace

std::vector<TraceRequest> read_trace(const std::string& name) {
  std::ifstream file(std::string(KVL_SOURCE_DIR) + "/tests/data/" + name + ".csv");
  std::string line;
  std::getline(file, line);
  KVL_CHECK(line == "timestamp_ms,input_tokens,output_tokens", "the trace is there");
  std::vector<TraceRequest> trace;
  std::int64_t timestamp_ms = 0;
  TraceRequest request;
  char comma = ',';
  while (file >> timestamp_ms >> comma >> request.input_tokens >> comma >> request.output_tokens) {
    request.arrives_at = kTimeZero + milliseconds(timestamp_ms);
    trace.push_back(request);
  }
  return trace;
}

ReplayResult replay(const std::vector<TraceRequest>& trace, const ReplayOptions& options) {
  return Replay(trace, options).run();
}

}  // namespace kvlease::traces
