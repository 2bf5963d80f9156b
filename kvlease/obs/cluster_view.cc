// Implements cluster_view.h.
#include "kvlease/obs/cluster_view.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "kvlease/base/text.h"

namespace kvlease {

std::string shown_url(const InstanceRow& row) {
  const std::size_t scheme = row.url.find("://");
  return scheme == std::string::npos ? row.url : row.url.substr(scheme + 3);
}

std::string shown_name(const InstanceRow& row) {
  return row.engine.empty() ? shown_url(row) : row.engine;
}

std::vector<Placed<LeaseView>> leases_by_slack(const ClusterView& view) {
  std::vector<Placed<LeaseView>> leases;
  for (const InstanceRow& row : view.instances) {
    if (!row.view) continue;
    for (const LeaseView& lease : row.view->leases) leases.push_back({&row, &lease});
  }
  // Equal ones stand in the view's order: its rows and elements lie in vectors.
  std::ranges::sort(leases, {}, [](const Placed<LeaseView>& placed) {
    return std::tuple(placed.element->slack_s, placed.instance, placed.element);
  });
  return leases;
}

std::vector<Placed<EventView>> newest_events(const ClusterView& view) {
  std::vector<Placed<EventView>> events;
  for (const InstanceRow& row : view.instances) {
    for (const EventView& event : row.events) {
      if (event.event == "leases_renewed" || event.event == "heartbeat_sent") continue;
      events.push_back({&row, &event});
    }
  }
  std::ranges::sort(events, {}, [](const Placed<EventView>& placed) {
    return std::tuple(placed.element->age_s, placed.instance, placed.element);
  });
  return events;
}

std::uint64_t leases_live(const ClusterView& view) {
  std::uint64_t live = 0;
  for (const InstanceRow& row : view.instances) live += row.view ? row.view->leases_live : 0;
  return live;
}

std::vector<RouteCounterView> route_counters(std::string_view scrape) {
  constexpr std::string_view begin = "kvlease_route_";
  constexpr std::string_view end = "_total";
  std::vector<RouteCounterView> counters;
  while (!scrape.empty()) {
    const std::string_view line = scrape.substr(0, scrape.find('\n'));
    scrape.remove_prefix(std::min(line.size() + 1, scrape.size()));
    std::string_view name = line.substr(0, line.find_first_of("{ "));
    const std::optional<double> value =
        parse_number<double>(line.substr(std::min(line.rfind(' '), line.size() - 1) + 1));
    if (!name.starts_with(begin) || !name.ends_with(end) || !value) continue;
    name.remove_prefix(begin.size());
    name.remove_suffix(end.size());
    RouteCounterView& counter =
        counters.emplace_back(RouteCounterView{.name = std::string(name), .label = {}});
    counter.value = *value;
    const std::size_t quote = line.find('"');
    if (quote == std::string_view::npos) continue;
    counter.label = line.substr(quote + 1, line.find('"', quote + 1) - quote - 1);
  }
  return counters;
}

}  // namespace kvlease
