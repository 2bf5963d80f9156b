// A deterministic network inside one process and in virtual time: its agents read each other's real
// memory and exchange notifications, and nothing moves but in advance_to(). It has the traps of a
// real one: a read copies at the instant at which its bytes land, chunk by chunk and in any order,
// so it can be late, stale or torn; it has no time limit and no cancel; a peer can die or stand
// still.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <variant>
#include <vector>

#include "kvlease/base/ids.h"
#include "kvlease/base/prng.h"
#include "kvlease/base/time.h"
#include "kvlease/transport/transport.h"

namespace kvlease::fabric {

struct NetworkConfig {
  std::uint64_t seed = 0;
  // From a post until its first byte lands, and from a send until it is in the peer's inbox.
  Duration read_latency = std::chrono::microseconds(20);
  Duration notif_latency = std::chrono::microseconds(100);
  // What one agent's memory yields to all its readers together, in order of their posts; 0: no
  // limit.
  std::uint64_t bandwidth_bytes_per_us = 0;
  // Reads land in pieces of this size, each up to `chunk_jitter_max` later than the bandwidth asks.
  std::uint64_t chunk_bytes = 64 * 1024;
  Duration chunk_jitter_max = Duration::zero();
  // How long after a death reads from the dead end in kError and calls that name it are refused;
  // until then they are accepted in vain. kForever: nobody ever notices.
  Duration death_notice = std::chrono::milliseconds(20);
  // Whether a stopped process's memory can still be read (as with CMA) or only after cont() (TCP).
  bool stopped_memory_is_readable = false;
  std::size_t notification_bytes_max = 8192;
};

class Network {
 public:
  explicit Network(const NetworkConfig& config);
  // Requires: all agents have ended before.
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  // A new agent; ending it is like kill(). Requires: a name never used in this network (L31).
  std::unique_ptr<Transport> make_agent(const AgentName& name);

  // Moves everything that is due until `now`, in order. Requires: `now` does not go back.
  void advance_to(Instant now);

  // The first instant at which some agent will see something new; kNever when nothing is under way.
  // O(agents).
  Instant next_event() const;

  // SIGKILL: the agent sees and does nothing more, what it had sent and what was on its way to it
  // is lost, and reads from it stop where they are (see NetworkConfig::death_notice). Requires: a
  // name of this network, here and below.
  void kill(const AgentName& name);

  // SIGSTOP: nothing reaches the agent until cont(), and then as late as if it had been sent that
  // much later (it still sits in sockets; L47). The host does not run a stopped process.
  void stop(const AgentName& name);
  void cont(const AgentName& name);

  // Makes later posts land late. Those under way keep their time.
  void set_read_latency(Duration latency) { config_.read_latency = latency; }

 private:
  class Agent;

  struct EventKey {
    Instant at;
    std::uint64_t number = 0;  // ties are broken by age
    auto operator<=>(const EventKey&) const = default;
  };

  struct Node {
    Agent* agent = nullptr;  // null once it has ended
    bool stopped = false;
    bool dead = false;
    Instant death_noticed_at = kNever;
    Instant link_free_at = kTimeZero;
    std::set<EventKey> arrivals;  // the events that this agent will see
  };

  struct Copy {
    std::uint64_t source;
    std::uint64_t destination;
    std::uint64_t bytes;
  };
  struct Landing {  // one chunk
    TransferHandle transfer;
    std::vector<Copy> copies;
    bool last = false;
  };
  struct Failure {
    TransferHandle transfer;
  };
  struct Event {
    Node* from;  // whose memory is read, or who sent
    Node* to;    // who reads, or who is sent to
    std::variant<Landing, Failure, Notification> what;
  };
  struct HeldEvent {
    Duration left;
    Event event;
  };

  Node& node(const AgentName& name);
  TransferHandle start_read(Node& source, Node& reader, std::span<const Copy> copies);
  std::vector<std::vector<Copy>> cut_into_chunks(std::span<const Copy> copies) const;
  void schedule(Instant at, Event event);
  void schedule_from_dead(Event event);
  void reschedule_all();
  void apply(Event& event);
  void end_node(Node& node);

  bool death_noticed(const Node& node) const { return node.dead && node.death_noticed_at <= now_; }
  bool blocked(const Event& event) const;

  NetworkConfig config_;
  Prng prng_;
  Instant now_ = kTimeZero;
  std::uint64_t next_number_ = 0;
  std::uint64_t next_transfer_ = 1;
  std::map<AgentName, Node> nodes_;
  std::map<EventKey, Event> events_;
  std::vector<HeldEvent> held_;  // for or from the stopped
};

}  // namespace kvlease::fabric
