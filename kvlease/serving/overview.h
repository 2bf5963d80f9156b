// The router's page for people, and the JSON that it is made of: what all instances say of
// themselves, asked for once a second however many look, and what the router knows itself.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kvlease/base/time.h"
#include "kvlease/obs/cluster_view.h"
#include "kvlease/runtime/http.h"
#include "kvlease/runtime/http_server.h"
#include "kvlease/runtime/loop.h"
#include "kvlease/serving/cluster_watch.h"

namespace kvlease {

inline constexpr std::string_view kUiPath = "/kvlease/ui";
inline constexpr std::string_view kOverviewPath = "/kvlease/v1/overview";

// How long one answer serves all that ask: a page that asks each second gets a new one each time.
inline constexpr Duration kOverviewFresh = std::chrono::milliseconds{900};
// Of one answer (L43).
inline constexpr std::size_t kOverviewLeasesMax = 200;
inline constexpr std::size_t kOverviewEventsMax = 100;
inline constexpr std::size_t kOverviewRequestsMax = 100;

// What the page is made of. `now` orders answers and dates them against each other, no more.
std::string overview_json(const ClusterView& instances, const RouterView& router, Instant now);

struct OverviewOptions {
  std::vector<WatchedInstance> instances;
  // Either guards the overview: the API key, and where there is none the peer key, without which
  // the instances would not tell either (L51). Empty: none.
  std::string api_key;
  std::string peer_key;
};

class Overview {
 public:
  // `router` is asked whenever an answer is made. `loop` outlives this.
  Overview(EventLoop& loop, OverviewOptions options, std::function<RouterView()> router);

  // Answers what is asked about the page and the overview; false: it is about something else, and
  // the responder is untouched.
  bool handle(const HttpRequest& request, HttpResponder& responder);

 private:
  void answer(HttpResponder responder);
  void on_asked();

  EventLoop& loop_;
  OverviewOptions options_;
  std::function<RouterView()> router_;
  ClusterWatch watch_;
  std::string body_;    // the last answer …
  Instant asked_at_{};  // … and when its round began
  std::vector<HttpResponder> waiting_;
};

}  // namespace kvlease
