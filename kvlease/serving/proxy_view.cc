// What the router shows of itself on its page.
#include <algorithm>
#include <utility>

#include "kvlease/obs/printable.h"
#include "kvlease/serving/proxy.h"

namespace kvlease {

void Proxy::open_overview() {
  OverviewOptions options{
      .instances = {}, .api_key = options_.api_key, .peer_key = options_.peer_key};
  for (const BackendRole role : {BackendRole::kPrefill, BackendRole::kDecode}) {
    for (const HttpUrl& url : urls(role)) {
      options.instances.push_back({.url = url, .role = std::string(backend_role_name(role))});
    }
  }
  overview_.emplace(loop_, std::move(options), [this] { return router_view(); });
}

// Numbers are given in order of arrival, so the first of the map are the oldest.
RouterView Proxy::router_view() {
  constexpr std::size_t id_bytes_max = 256;
  RouterView view{.status = draining_until_       ? "draining"
                            : decode_.any_ready() ? "ready"
                                                  : "no decode instance",
                  .requests_under_way = routed_.size(),
                  .requests = {},
                  .backend_states = {},
                  .counters = route_counters(metrics_.scrape())};
  const auto shown = [](const std::optional<Target>& target) {
    return target ? target->text() : std::string();
  };
  for (const auto& [number, routed] : routed_) {
    if (view.requests.size() == kOverviewRequestsMax) break;
    view.requests.push_back({.request = printable(routed->request_id, id_bytes_max),
                             .state = std::string(routed_state_name(routed->state)),
                             .age_s = to_seconds(loop_.now() - routed->arrived_at),
                             .prefill = shown(routed->prefill),
                             .decode = shown(routed->decode)});
  }
  for (const BackendRole role : {BackendRole::kPrefill, BackendRole::kDecode}) {
    for (std::size_t i = 0; i < urls(role).size(); ++i) {
      view.backend_states.emplace_back(backend_state_name(pool(role).state(i)));
    }
  }
  return view;
}

}  // namespace kvlease
