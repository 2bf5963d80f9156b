// Instances as child processes for the demo, driven step by step: starting them, calling them over
// HTTP, and waiting for what their events say.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvlease/base/result.h"
#include "kvlease/base/time.h"
#include "kvlease/runtime/http_client.h"
#include "kvlease/runtime/loop.h"
#include "kvlease/runtime/process.h"

namespace kvlease {

// One event of one instance, as it was written (see Instance).
struct InstanceEvent {
  Instant at;  // when it was read here
  std::string instance;
  std::string kind;
  std::string lease;
  std::string request;
  std::string detail;
  std::uint64_t count = 0;
  double length_seconds = 0;
};

struct CompletionResult {
  std::string text;
  std::string kv_transfer_params;  // JSON, empty when the answer had none
};

// What GET /kvlease/v1/leases says, as far as the demo needs it.
struct InstanceLedger {
  std::uint64_t granted = 0;
  std::uint64_t live = 0;
  std::vector<std::pair<std::string, std::uint64_t>> ended;
  std::uint64_t blocks_leased = 0;
  std::uint64_t blocks_quarantined = 0;
  std::uint64_t blocks_in_use = 0;
  bool balanced = false;
};

class Cluster {
 public:
  // on_event: called for every event of every instance, as it arrives.
  explicit Cluster(std::function<void(const InstanceEvent&)> on_event);
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;
  // Kills what still runs.
  ~Cluster();

  // Starts `kvlease serve` with these arguments on a free port, and waits until it listens.
  // Errors: kUnavailable with what the process said when it does not come up.
  Result<void> start(const std::string& name, std::vector<std::string> arguments);

  // SIGTERM, then waits for the exit. Errors: kTimeout, or kUnavailable for another exit code than
  // 0.
  Result<void> stop(const std::string& name);

  // A completion; `kv_transfer_params` is JSON or empty. Waits for the answer.
  // Errors: the client's; kUnavailable with the body for another status than 200.
  struct CompletionCall {
    std::string prompt;
    std::uint32_t max_tokens = 16;
    std::string request_id;
    std::string kv_transfer_params;
  };
  Result<CompletionResult> complete(const std::string& name, const CompletionCall& call);
  // The same, begun now: the answer is looked for later.
  struct PendingCompletion {
    std::optional<Result<CompletionResult>> result;
    HttpCall call;
  };
  std::unique_ptr<PendingCompletion> begin_completion(const std::string& name,
                                                      const CompletionCall& call);

  Result<InstanceLedger> ledger(const std::string& name);

  // Runs the loop until the condition holds; false at the limit.
  bool wait_until(const std::function<bool()>& condition, Duration limit);

  Instant now() { return loop_.now(); }

 private:
  struct Child {
    std::string name;
    std::uint16_t port = 0;
    std::vector<std::string> last_lines;  // what it wrote to stderr, for error messages
    std::optional<ExitStatus> exit;
    std::optional<ChildProcess> process;
  };
  Child& child(const std::string& name);
  void on_line(Child& child, OutputStream stream, std::string_view line);
  Result<HttpResponse> call(HttpCallOptions options);

  EventLoop loop_;
  std::function<void(const InstanceEvent&)> on_event_;
  std::deque<Child> children_;  // addresses stay: callbacks hold them
};

}  // namespace kvlease
