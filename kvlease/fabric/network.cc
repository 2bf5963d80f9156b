// The network's events: when bytes land and notifications arrive, and what death and stop do to
// them.
#include "kvlease/fabric/network.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kvlease/base/check.h"
#include "kvlease/fabric/agent.h"

namespace kvlease::fabric {
namespace {

std::byte* memory_at(std::uint64_t address) {
  return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address));
}

Duration time_to_move(std::uint64_t bytes, std::uint64_t bytes_per_us) {
  if (bytes_per_us == 0) return Duration::zero();
  return Duration(static_cast<std::int64_t>(bytes * 1000 / bytes_per_us));
}

}  // namespace

Network::Network(const NetworkConfig& config) : config_(config), prng_(config.seed) {
  KVL_CHECK(config.chunk_bytes > 0, "a chunk holds at least one byte");
}

Network::~Network() {
  for (const auto& [name, node] : nodes_) {
    KVL_CHECK(node.agent == nullptr, "a network outlives its agents");
  }
}

std::unique_ptr<Transport> Network::make_agent(const AgentName& name) {
  const auto [it, is_new] = nodes_.try_emplace(name);
  KVL_CHECK(is_new, "an agent name is used once in a network");
  auto agent = std::make_unique<Agent>(*this, it->second, name);
  it->second.agent = agent.get();
  return agent;
}

void Network::advance_to(Instant now) {
  KVL_CHECK(now >= now_, "time does not go back");
  while (!events_.empty() && events_.begin()->first.at <= now) {
    auto due = events_.extract(events_.begin());
    due.mapped().to->arrivals.erase(due.key());
    now_ = due.key().at;
    apply(due.mapped());
  }
  now_ = now;
}

Instant Network::next_event() const {
  Instant next = kNever;
  for (const auto& [name, node] : nodes_) {
    if (!node.arrivals.empty()) next = earlier(next, node.arrivals.begin()->at);
  }
  return next;
}

void Network::kill(const AgentName& name) { end_node(node(name)); }

void Network::stop(const AgentName& name) {
  node(name).stopped = true;
  reschedule_all();
}

void Network::cont(const AgentName& name) {
  node(name).stopped = false;
  reschedule_all();
}

Network::Node& Network::node(const AgentName& name) {
  const auto it = nodes_.find(name);
  KVL_CHECK(it != nodes_.end(), "the network knows the agent");
  return it->second;
}

void Network::end_node(Node& node) {
  if (node.dead) return;
  node.dead = true;
  node.death_noticed_at = saturating_add(now_, config_.death_notice);
  node.agent->die();
  reschedule_all();
}

TransferHandle Network::start_read(Node& source, Node& reader, std::span<const Copy> copies) {
  const TransferHandle transfer(next_transfer_++);
  const Instant start = std::max(saturating_add(now_, config_.read_latency), source.link_free_at);
  std::vector<std::vector<Copy>> chunks = cut_into_chunks(copies);
  std::vector<Instant> landings;
  std::uint64_t bytes = 0;
  for (const std::vector<Copy>& chunk : chunks) {
    for (const Copy& copy : chunk) bytes += copy.bytes;
    const Duration moving = time_to_move(bytes, config_.bandwidth_bytes_per_us);
    source.link_free_at = saturating_add(start, moving);
    const auto jitter_bound = static_cast<std::uint64_t>(config_.chunk_jitter_max.count()) + 1;
    const Duration jitter(static_cast<std::int64_t>(prng_.below(jitter_bound)));
    landings.push_back(saturating_add(source.link_free_at, jitter));
  }
  // The chunk that lands last ends the read; of several at one instant it is the youngest.
  const auto last_from_back = std::max_element(landings.rbegin(), landings.rend());
  const auto last = static_cast<std::size_t>(landings.rend() - last_from_back) - 1;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    schedule(landings[i],
             Event{.from = &source,
                   .to = &reader,
                   .what = Landing{
                       .transfer = transfer, .copies = std::move(chunks[i]), .last = i == last}});
  }
  return transfer;
}

std::vector<std::vector<Network::Copy>> Network::cut_into_chunks(
    std::span<const Copy> copies) const {
  std::vector<std::vector<Copy>> chunks(1);
  std::uint64_t room = config_.chunk_bytes;
  for (Copy rest : copies) {
    while (rest.bytes > 0) {
      if (room == 0) {
        chunks.emplace_back();
        room = config_.chunk_bytes;
      }
      const std::uint64_t bytes = std::min(rest.bytes, room);
      chunks.back().push_back({rest.source, rest.destination, bytes});
      rest = {rest.source + bytes, rest.destination + bytes, rest.bytes - bytes};
      room -= bytes;
    }
  }
  return chunks;
}

void Network::schedule(Instant at, Event event) {
  if (event.to->dead) return;
  if (event.from->dead && !std::holds_alternative<Failure>(event.what)) {
    schedule_from_dead(std::move(event));
    return;
  }
  if (blocked(event)) {
    held_.push_back({.left = at - now_, .event = std::move(event)});
    return;
  }
  const EventKey key{.at = at, .number = next_number_++};
  const Landing* landing = std::get_if<Landing>(&event.what);
  if (landing == nullptr || landing->last) event.to->arrivals.insert(key);
  events_.emplace(key, std::move(event));
}

// What the dead had under way is lost; of a read only its failure is left, if anybody notices.
void Network::schedule_from_dead(Event event) {
  const Landing* landing = std::get_if<Landing>(&event.what);
  if (landing == nullptr || !landing->last || event.from->death_noticed_at == kNever) return;
  schedule(event.from->death_noticed_at,
           Event{.from = event.from, .to = event.to, .what = Failure{landing->transfer}});
}

bool Network::blocked(const Event& event) const {
  if (event.to->stopped) return true;
  return std::holds_alternative<Landing>(event.what) && event.from->stopped &&
         !config_.stopped_memory_is_readable;
}

// Puts every event where the states of its ends now want it: into the queue, on hold or nowhere.
void Network::reschedule_all() {
  const std::map<EventKey, Event> events = std::exchange(events_, {});
  const std::vector<HeldEvent> held = std::exchange(held_, {});
  for (auto& [name, node] : nodes_) node.arrivals.clear();
  for (const auto& [key, event] : events) schedule(key.at, event);
  for (const auto& [left, event] : held) schedule(saturating_add(now_, left), event);
}

void Network::apply(Event& event) {
  if (Landing* landing = std::get_if<Landing>(&event.what)) {
    for (const Copy& copy : landing->copies) {
      std::memmove(memory_at(copy.destination), memory_at(copy.source), copy.bytes);
    }
    if (landing->last) event.to->agent->finish(landing->transfer, TransferState::kDone);
  } else if (Failure* failure = std::get_if<Failure>(&event.what)) {
    event.to->agent->finish(failure->transfer, TransferState::kError);
  } else {
    event.to->agent->deliver(std::get<Notification>(std::move(event.what)));
  }
}

}  // namespace kvlease::fabric
