// A world of whole engines in virtual time: one network, handshakes carried as the HTTP server
// would carry them, requests with their texts, and engines that stop, die and come back.
//
// Time begins at at(0). Nothing moves but in run_until() and run_for(). The same calls give the
// same run: digest() is a hash of all that happened.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvlease/engine/engine_testing.h"
#include "tests/pairs/instance.h"

namespace kvlease::pairs {

enum class HandshakeBehaviour : std::uint8_t {
  kAnswers,
  kRefuses,  // an error at once
  kSilent,   // accepted and never answered
};

// A request that was given to an engine, and what came of it.
using Ticket = std::size_t;
struct Outcome {
  std::string engine;
  RequestId id;
  std::string text;
  std::optional<FinishReason> finish_reason;  // none yet; kError too when it was not accepted
  std::string error_message;
  std::string params;  // of a leased prefill, after a proxy that holds numbers as doubles
  std::uint32_t num_cached_tokens = 0;
  Instant finished_at = kNever;
};

// The text of `length` tokens that begins no other `kind`'s.
std::string prompt(std::size_t length, char kind);

// The text that any engine must give for a prompt: that of a single instance.
std::string reference_text(const std::string& prompt, std::uint32_t max_tokens);

class World {
 public:
  explicit World(const fabric::NetworkConfig& config);
  World() : World(fabric::NetworkConfig{}) {}
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // --- engines, by name
  void add(const std::string& name, const InstanceOptions& options);
  Instance& engine(const std::string& name);
  std::uint64_t count(const std::string& name, Counter counter) {
    return engine(name).counter(counter);
  }
  // Of all starts of all engines since the beginning of the world.
  const std::vector<std::pair<std::string, Event>>& events() const { return events_; }
  std::size_t count_events(const std::string& name, EventKind kind) const;

  void stop(const std::string& name);  // SIGSTOP: not turned, nothing reaches it
  void cont(const std::string& name);
  void kill(const std::string& name);  // SIGKILL: its requests end without an answer
  // A new start of a killed engine: same id, same address, all else new.
  void restart(const std::string& name, const InstanceOptions& options);
  const InstanceOptions& options(const std::string& name) const { return hosts_.at(name).options; }
  bool is_alive(const std::string& name) const { return hosts_.at(name).instance != nullptr; }
  bool is_stopped(const std::string& name) const { return hosts_.at(name).stopped; }

  // How the engine's port behaves towards handshakes that begin from now on.
  void set_handshake(const std::string& name, HandshakeBehaviour behaviour, Duration delay);
  // Handshakes to this name's address are answered by `by` (D04).
  void redirect(const std::string& name, const std::string& by);
  fabric::Network& network() { return network_; }

  // --- requests
  Ticket add_request(const std::string& engine, NewRequest request);
  Ticket prefill(const std::string& engine, const std::string& prompt);
  // With what D has held for this turn; empty: nothing.
  Ticket prefill_with(const std::string& engine, const std::string& prompt,
                      const std::string& held);
  Ticket decode(const std::string& engine, const std::string& prompt, const std::string& params,
                std::uint32_t max_tokens);
  Ticket complete(const std::string& engine, const std::string& prompt, std::uint32_t max_tokens);
  void abort(Ticket ticket);
  // By HTTP (L10). False: not found.
  bool release(const std::string& engine, const LeaseId& lease);
  // At the drain limit (L36). Returns how many.
  std::size_t cut_leases(const std::string& engine);
  // Answered with 4xx by the host itself (L33).
  void refuse_request(const std::string& engine, NewRequest request);
  // Prefills in as much time as it takes and returns the params.
  std::string params_of_prefill(const std::string& engine, const std::string& prompt);
  const Outcome& outcome(Ticket ticket) const { return outcomes_[ticket]; }
  bool finished(Ticket ticket) const { return outcomes_[ticket].finish_reason.has_value(); }
  std::size_t requests() const { return outcomes_.size(); }

  // --- time
  Instant now() const { return now_; }
  // Turns every engine that is due until the condition holds after some turn; false when it did not
  // within `limit`.
  bool run_until(const std::function<bool()>& condition, Duration limit);
  void run_for(Duration length);
  void run_to(Instant end);
  // Until the request has its last output.
  ::testing::AssertionResult finishes(Ticket ticket, Duration limit);

  // What living engines hold for requests is back; idle cleanup gets a second.
  void expect_all_back();
  std::uint64_t digest() const { return digest_; }

 private:
  struct Host {
    InstanceOptions options;
    std::uint16_t port = 0;
    std::uint64_t starts = 0;
    std::unique_ptr<Instance> instance;  // none: killed
    bool stopped = false;
    HandshakeBehaviour behaviour = HandshakeBehaviour::kAnswers;
    Duration handshake_delay = std::chrono::milliseconds(1);
    std::string answered_by;
  };
  struct PendingHandshake {
    Instant due;  // kNever: silent
    HandshakeRequest request;
    bool refused = false;
  };
  using HandshakeKey = std::pair<std::string, PeerAddress>;  // who asks whom

  void start(const std::string& name);
  void turn_all_due();
  void turn(const std::string& name, Host& host);
  void turn_unless_stopped(const std::string& name);
  void take(const std::string& name, RequestOutput output);
  void begin_handshake(const std::string& asker, SchedulerConnector::HandshakeToMake handshake);
  void carry_due_handshakes();
  bool waits_for_stopped(const HandshakeKey& key);
  Result<HandshakeReply> answer(const PeerAddress& address, const HandshakeRequest& request);
  Host* host_at(std::uint16_t port);
  Instant next_instant();
  void mix(std::string_view bytes);
  void mix(std::uint64_t value) { digest_ = mix64(digest_ ^ value); }

  fabric::Network network_;
  std::uint64_t seed_;
  Instant now_ = at(0);
  std::map<std::string, Host> hosts_;
  std::map<HandshakeKey, PendingHandshake> handshakes_;
  std::vector<Outcome> outcomes_;
  std::map<std::pair<std::string, RequestId>, Ticket> tickets_;  // of living engines
  std::vector<std::pair<std::string, Event>> events_;
  std::uint64_t digest_ = 0;
};

}  // namespace kvlease::pairs
