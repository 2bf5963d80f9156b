// What people see of running instances and of the router before them: plain values, which the
// instances' answers are read into and pages and terminals are made from. Texts are printable.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvlease {

struct LeaseView {
  std::string id;
  std::uint64_t slot = 0;  // its entry (L22)
  std::uint64_t blocks = 0;
  double age_s = 0;
  double slack_s = 0;     // until it expires, if nobody renews it
  double duration_s = 0;  // as granted
  std::string reader;     // the engine that renews it or has reported; empty: nobody yet
  bool hold = false;      // kept for the next turn (L39)
  bool operator==(const LeaseView&) const = default;
};

struct EventView {
  std::uint64_t number = 0;
  double age_s = 0;
  std::string event;  // event_kind_name
  std::string request;
  std::string lease;
  std::string peer;
  std::string detail;
  std::uint64_t count = 0;
  double length_s = 0;
  bool operator==(const EventView&) const = default;
};

// free + cached + in_use + quarantined are all blocks; running and leased are in use, some by both.
struct BlocksView {
  std::uint64_t free = 0;
  std::uint64_t cached = 0;
  std::uint64_t in_use = 0;
  std::uint64_t running = 0;
  std::uint64_t leased = 0;
  std::uint64_t quarantined = 0;
  std::uint64_t all() const { return free + cached + in_use + quarantined; }
  bool operator==(const BlocksView&) const = default;
};

struct InstanceView {
  std::string engine;
  std::string role;    // kv_producer, kv_consumer, kv_both
  std::string status;  // as /health/ready says it
  BlocksView blocks;
  std::uint64_t running = 0;  // requests
  std::uint64_t waiting = 0;
  std::uint64_t waiting_for_remote_kvs = 0;
  std::uint64_t known_peers = 0;
  std::uint64_t prompt_tokens = 0;  // of requests that began to run
  std::uint64_t cached_tokens = 0;  // of these, found here or received
  std::uint64_t generated_tokens = 0;
  std::uint64_t leases_live = 0;
  std::vector<LeaseView> leases;  // the oldest of them, oldest first
  bool operator==(const InstanceView&) const = default;
};

// One answer about events.
struct EventsView {
  std::string incarnation;  // of the engine: the numbers are counted anew in each
  std::uint64_t last = 0;   // the newest event's number
  std::uint64_t missed = 0;
  std::vector<EventView> events;  // by number
  bool operator==(const EventsView&) const = default;
};

// What is known of one instance, and of its last events.
struct InstanceRow {
  std::string url;
  std::string role;     // prefill or decode, as its router says; empty without one
  std::string state;    // backend_state_name, as its router says; empty without one
  std::string engine;   // as it called itself last
  std::string problem;  // why `view` is not there
  std::optional<InstanceView> view;
  std::vector<EventView> events;  // newest first
  bool operator==(const InstanceRow&) const = default;
};

struct ClusterView {
  std::vector<InstanceRow> instances;
  bool operator==(const ClusterView&) const = default;
};

// The engine's name, or the address of one that has never answered.
std::string shown_name(const InstanceRow& row);
// host:port
std::string shown_url(const InstanceRow& row);

// One element of a list that was made of all instances' lists; the view outlives it.
template <typename Element>
struct Placed {
  const InstanceRow* instance;
  const Element* element;
};

// The listed leases, the nearest to their ends first.
std::vector<Placed<LeaseView>> leases_by_slack(const ClusterView& view);
// The newest first, without heartbeats: what they do shows in the leases.
std::vector<Placed<EventView>> newest_events(const ClusterView& view);
// All live leases, listed or not.
std::uint64_t leases_live(const ClusterView& view);

// One client's request under way in a router.
struct RoutedView {
  std::string request;
  std::string state;  // routed_state_name
  double age_s = 0;
  std::string prefill;  // URLs; empty: not chosen yet, or none
  std::string decode;
  bool operator==(const RoutedView&) const = default;
};

// One series of a router's counters, as scraped: kvlease_route_NAME_total{…="LABEL"}.
struct RouteCounterView {
  std::string name;
  std::string label;  // empty: the family has none
  double value = 0;
  bool operator==(const RouteCounterView&) const = default;
};

struct RouterView {
  std::string status;
  std::uint64_t requests_under_way = 0;
  std::vector<RoutedView> requests;         // the oldest of them, oldest first
  std::vector<std::string> backend_states;  // in the order of the instances
  std::vector<RouteCounterView> counters;
  bool operator==(const RouterView&) const = default;
};

// The router's counters in what it tells Prometheus.
std::vector<RouteCounterView> route_counters(std::string_view scrape);

}  // namespace kvlease
