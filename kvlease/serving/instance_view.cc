// The routes of instance.h for those who watch: the state and the leases as they are now, and the
// last events.
#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "kvlease/base/hex.h"
#include "kvlease/base/text.h"
#include "kvlease/obs/printable.h"
#include "kvlease/serving/answers.h"
#include "kvlease/serving/instance.h"
#include "kvlease/serving/view_json.h"
#include "kvlease/wire/json_fields.h"

namespace kvlease {
namespace {

constexpr std::string_view kAfter = "after=";
constexpr std::size_t kReaderBytesMax = 255;  // as engine ids

std::string ledger_json(const LeaseLedger& ledger) {
  JsonWriter ended;
  for (int end = 0; end < kLeaseEndCount; ++end) {
    ended.integer(lease_end_name(static_cast<LeaseEnd>(end)),
                  ledger.ended[static_cast<std::size_t>(end)]);
  }
  JsonWriter json;
  json.integer("granted", ledger.granted);
  json.integer("live", ledger.live);
  json.json("ended", ended.take());
  json.boolean("balanced", ledger.balanced());
  return json.take();
}

std::string counters_json(const Counters& counters) {
  JsonWriter json;
  for (std::size_t i = 0; i < kCounterCount; ++i) {
    const auto counter = static_cast<Counter>(i);
    json.integer(counter_name(counter), counters.value(counter));
  }
  return json.take();
}

BlocksView blocks_view(const BlockCounts& blocks) {
  return {.free = blocks.free,
          .cached = blocks.cached,
          .in_use = blocks.in_use,
          .running = blocks.running,
          .leased = blocks.leased,
          .quarantined = blocks.quarantined};
}

EventView event_view(const NumberedEvent& numbered, Instant now) {
  const Event& event = numbered.event;
  return {.number = numbered.number,
          .age_s = to_seconds(now - numbered.at),
          .event = std::string(event_kind_name(event.kind)),
          .request = event.request.str(),
          .lease = event.lease.str(),
          .peer = event.peer,
          .detail = event.detail,
          .count = event.count,
          .length_s = to_seconds(event.length)};
}

// The number in `after=N`; 0 without a query.
Result<std::uint64_t> asked_after(std::string_view query) {
  if (query.empty()) return 0;
  if (query.starts_with(kAfter)) {
    const auto number = parse_number<std::uint64_t>(query.substr(kAfter.size()));
    if (number) return *number;
  }
  return error(ErrorCode::kInvalidArgument,
               "the query is " + printable(query, 64) +
                   "; allowed: after=N, the number of the last event that you have");
}

}  // namespace

// The oldest kLeasesListedMax, so that what hangs is seen and the answer has a bound (L43, L48).
// O(live leases).
std::vector<LeaseView> Instance::oldest_leases(Instant now) const {
  const SchedulerConnector& connector = engine_->core().connector();
  using Lease = std::pair<const LeaseId, EngineLeases::LiveLease>;
  std::vector<const Lease*> oldest;
  for (const Lease& lease : connector.leases().live_leases()) oldest.push_back(&lease);
  const auto listed = static_cast<std::ptrdiff_t>(std::min(oldest.size(), kLeasesListedMax));
  std::ranges::partial_sort(oldest, oldest.begin() + listed, {}, [](const Lease* lease) {
    return std::pair(lease->second.granted_at, std::string_view(lease->first.str()));
  });
  oldest.resize(static_cast<std::size_t>(listed));
  std::vector<LeaseView> views;
  for (const Lease* lease : oldest) {
    const auto& [id, live] = *lease;
    // Until the ranks have taken the grant, it stands as it was granted.
    const LeaseStatus status = engine_->lease_status(id).value_or(LeaseStatus{
        .expires_at = saturating_add(live.granted_at, live.times.duration), .reader = {}});
    views.push_back({.id = id.str(),
                     .slot = live.slot.value(),
                     .blocks = live.blocks.size(),
                     .age_s = to_seconds(now - live.granted_at),
                     .slack_s = to_seconds(remaining(status.expires_at, now)),
                     .duration_s = to_seconds(live.times.duration),
                     .reader = printable(status.reader, kReaderBytesMax),
                     .hold = connector.is_hold(id)});
  }
  return views;
}

void Instance::list_leases(const HttpRequest&, HttpResponder responder) {
  const EngineCore& core = engine_->core();
  const SchedulerConnector& connector = core.connector();
  const EngineLeases& leases = connector.leases();
  const EngineStats stats = core.stats();
  const Instant now = loop_.now();
  const InstanceView view{
      .engine = engine_id().str(),
      .role = std::string(kv_role_name(options_.engine.kv_transfer_config.kv_role)),
      .status = std::string(status(stats)),
      .blocks = blocks_view(stats.blocks),
      .running = stats.running,
      .waiting = stats.waiting + stats.loaded,
      .waiting_for_remote_kvs = stats.waiting_for_remote_kvs,
      .known_peers = connector.known_peers(),
      .prompt_tokens = stats.prompt_tokens,
      .cached_tokens = stats.cached_tokens,
      .generated_tokens = stats.generated_tokens,
      .leases_live = leases.live(),
      .leases = oldest_leases(now)};
  JsonWriter json;
  json.fields_of(to_json(view));
  if (leases.live() > 0)
    json.number("oldest_age_s", to_seconds(now - leases.oldest_grant()));  // L48
  json.json("ledger", ledger_json(leases.ledger()));
  json.json("counters", counters_json(connector.counters()));
  responder.respond(json_response(200, json.take()));
}

void Instance::list_events(const HttpRequest& request, HttpResponder responder) {
  const auto number = asked_after(request.query);
  if (!number) return responder.respond(error_response(number.error()));
  const EventRing::Answer answer = events_.after(*number);
  EventsView view{.incarnation = to_hex(engine_->core().connector().facts().incarnation.value()),
                  .last = events_.last(),
                  .missed = answer.missed,
                  .events = {}};
  for (auto it = answer.begin; it != answer.end; ++it) {
    view.events.push_back(event_view(*it, loop_.now()));
  }
  responder.respond(json_response(200, to_json(view)));
}

}  // namespace kvlease
