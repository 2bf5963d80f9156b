// What `kvlease demo` is made of: its options, what it knows of requests and leases, and its
// stories.
#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvlease/core/lease_config.h"
#include "kvlease/runtime/process.h"
#include "kvlease/serving/cluster.h"

namespace kvlease {

struct DemoOptions {
  std::uint32_t requests = 8;
  double lease_seconds = 2;
  std::uint32_t prefill_tp = 1;
  std::uint32_t decode_tp = 1;
  bool multi_turn = false;
  bool failover = false;
  bool json = false;
  std::string nixl_path;
};

// One request of a client, until it has its answer.
struct DemoRequest {
  std::string id;  // X-Request-Id
  std::string prompt;
  std::string expected;
  Instant begun{};
  std::unique_ptr<Cluster::PendingCompletion> call;
  std::optional<double> seconds;  // until the answer
  bool identical = false;
  std::string note;
};

// One lease, as the instances' events tell of it.
struct DemoLease {
  std::string prefill;
  std::string decode;  // who tracks it; empty: nobody yet
  Instant granted_at{};
  std::optional<Instant> ended_at;
};

class Demo {
 public:
  explicit Demo(const DemoOptions& options)
      : options_(options),
        times_(derive_lease_times(from_seconds(options.lease_seconds))),
        out_(options.json ? stderr : stdout),
        cluster_({.binary = self_executable_path(),
                  .on_event = [this](const InstanceEvent& event) { on_event(event); }}),
        begun_(cluster_.now()) {}

  Result<void> run() {
    if (const auto done = start(); !done) return done;
    if (const auto done = wait_longer_than_a_lease(); !done) return done;
    if (options_.multi_turn) {
      if (const auto done = converse(); !done) return done;
    }
    if (options_.failover) {
      if (const auto done = fail_over(); !done) return done;
    }
    if (const auto done = kill_a_decoder(); !done) return done;
    return finish();
  }

  // Prints the table or the JSON; true when all texts are identical and all blocks are back.
  bool summarize();

 private:
  Result<void> start();
  Result<void> wait_longer_than_a_lease();
  Result<void> converse();
  Result<void> fail_over();
  Result<void> kill_a_decoder();
  Result<void> finish();

  std::vector<std::string> instance_arguments(const std::string& name) const;
  Cluster::CompletionCall completion(const DemoRequest& request) const;
  Result<DemoRequest*> new_request();
  Result<DemoRequest*> new_request(std::string prompt);
  void send(DemoRequest& request, const std::string& to, bool stream, const std::string& params);
  Result<void> hand_over_directly(DemoRequest& request);
  Result<void> wait_for_answers();
  void take_answers();
  Result<std::uint64_t> blocks_free();
  Result<void> wait_for_reclaim(const std::vector<std::string>& doomed, Instant killed_at);

  void on_event(const InstanceEvent& event);
  void on_lease_event(const InstanceEvent& event);
  bool ended(const std::string& lease) const { return leases_.at(lease).ended_at.has_value(); }
  std::vector<std::string> decodes() const;
  std::vector<std::string> live_leases_of(const std::string& decode) const;
  std::size_t moved_from(const std::string& decode, const std::vector<std::string>& leases);
  bool is_tracked(const std::string& request, const std::string& decode) const;
  void title(const char* text) { print("\n--- %s\n", text); }
  void say(const std::string& who, const std::string& what);
  [[gnu::format(printf, 2, 3)]] void print(const char* format, ...);
  bool good() const;
  std::string json() const;
  void print_requests();
  void print_figures();
  std::size_t identical() const;

  DemoOptions options_;
  LeaseTimes times_;
  std::FILE* out_;
  Cluster cluster_;
  Instant begun_;
  std::vector<std::unique_ptr<DemoRequest>> requests_;  // addresses stay
  std::map<std::string, DemoLease> leases_;
  std::map<std::string, Instant> last_heartbeat_;       // by decode instance
  std::map<std::string, std::uint64_t> events_seen_;    // by kind, and by instance and kind
  std::map<std::string, std::uint64_t> leases_by_end_;  // of all prefill instances
  std::uint64_t leases_granted_ = 0;
  std::uint64_t blocks_free_before_ = 0;
  std::uint64_t blocks_free_after_ = 0;
  bool balanced_ = true;
  std::size_t moved_ = 0;             // leases that another decoder read after theirs was killed
  double seconds_ = 0;                // the whole demo
  double reclaim_seconds_ = 0;        // from the kill to the last block free …
  double reclaim_bound_seconds_ = 0;  // … and by when it had to be
};

// Long enough for many blocks, and different in every block.
std::string demo_prompt(std::uint32_t number);

}  // namespace kvlease
