// Asks instances again and again how they are, and keeps what they said last and their last events:
// the eyes of `kvlease top` and of the router's page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvlease/base/result.h"
#include "kvlease/base/time.h"
#include "kvlease/obs/cluster_view.h"
#include "kvlease/runtime/http_client.h"
#include "kvlease/runtime/loop.h"

namespace kvlease {

struct WatchedInstance {
  HttpUrl url;
  std::string role;  // prefill or decode; empty: nobody said
  bool operator==(const WatchedInstance&) const = default;
};

// The instances that a router names in its answer to /health/ready, at most 256 of them; none when
// this is not a router's. Errors: kInvalidArgument for a router's answer that cannot be read.
Result<std::optional<std::vector<WatchedInstance>>> instances_of_router(std::string_view json);

class ClusterWatch {
 public:
  // How long one instance may take to answer.
  static constexpr Duration kAnswerTimeout = std::chrono::seconds{1};

  // `peer_key`: shown to every instance; empty: none. `loop` outlives this.
  ClusterWatch(EventLoop& loop, std::string peer_key);
  ClusterWatch(const ClusterWatch&) = delete;
  ClusterWatch& operator=(const ClusterWatch&) = delete;

  // Whom to ask from now on; what is known of those that stay is kept. Requires: !asking().
  void set_instances(const std::vector<WatchedInstance>& instances);

  // Asks all of them. `done` is called once, from the loop, when each has answered or has taken too
  // long. Requires: !asking(), and at least one instance.
  void ask(std::move_only_function<void()> done);
  bool asking() const { return open_calls_ > 0; }

  // What they said last; the events are as old as they are now.
  ClusterView view(Instant now) const;

 private:
  struct Seen {
    EventView event;
    Instant at;
  };
  struct Instance {
    WatchedInstance who;
    HttpCall leases_call;
    HttpCall events_call;
    std::string engine;
    std::string problem;
    std::optional<InstanceView> view;
    std::string incarnation;
    std::uint64_t last_event = 0;
    std::deque<Seen> events;  // oldest first
  };

  HttpCallOptions call(const Instance& instance, std::string target) const;
  void on_leases(Instance& instance, const Result<HttpResponse>& response);
  void on_events(Instance& instance, const Result<HttpResponse>& response);
  void on_answered();

  EventLoop& loop_;
  std::string peer_key_;
  std::deque<Instance> instances_;  // addresses stay: callbacks hold them
  std::size_t open_calls_ = 0;
  std::move_only_function<void()> done_;
};

}  // namespace kvlease
