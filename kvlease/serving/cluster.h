// Instances and the router as child processes, for the demo and for tests, driven step by step:
// starting them, calling and signalling them, and waiting for what their events say.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
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

// One event of one instance or router, as it was written (see Instance and Proxy).
struct InstanceEvent {
  Instant at;  // when it was read here
  std::string instance;
  std::string kind;
  std::string lease;
  std::string request;
  std::string peer;
  std::string detail;
  std::uint64_t count = 0;
  double length_seconds = 0;
};

struct CompletionResult {
  std::string text;
  std::string kv_transfer_params;  // JSON, empty when the answer had none
};

// What GET /kvlease/v1/leases says, as far as it is needed here.
struct InstanceLedger {
  std::uint64_t granted = 0;
  std::uint64_t live = 0;
  std::vector<std::pair<std::string, std::uint64_t>> ended;
  std::uint64_t blocks_leased = 0;
  std::uint64_t blocks_quarantined = 0;
  std::uint64_t blocks_in_use = 0;
  std::uint64_t blocks_free = 0;  // for the taking: nobody's, or kept for the prefix cache only
  bool balanced = false;
  std::map<std::string, std::uint64_t> counters;  // by counter_name

  // Nothing is leased or running any more, and every lease that there was has one end (L6).
  bool all_blocks_back() const {
    return live == 0 && blocks_leased == 0 && blocks_in_use == 0 && balanced;
  }
};

class Cluster {
 public:
  struct Options {
    std::string binary;  // path of `kvlease`
    // Called for every event of every instance, as it arrives.
    std::function<void(const InstanceEvent&)> on_event;
  };
  explicit Cluster(Options options);
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;
  // Kills what still runs.
  ~Cluster();

  struct StartOptions {
    std::string command = "serve";  // or "route"
    std::vector<std::string> arguments;
    std::vector<EnvironmentVariable> environment = {};
    std::uint16_t port = 0;  // 0: any free one
  };
  // Starts `kvlease serve` (or another command that serves) and waits until it listens.
  // Requires: a new name. Errors: kUnavailable with what the process said when it does not come up.
  Result<void> start(const std::string& name, StartOptions options);
  // The same for several, which come up together.
  Result<void> start_all(std::vector<std::pair<std::string, StartOptions>> children);

  // SIGTERM, then waits for the exit. Errors: kTimeout, or kUnavailable for another exit code than
  // 0.
  Result<void> stop(const std::string& name);
  void signal(const std::string& name, int signal);
  bool running(const std::string& name) { return !child(name).exit; }
  std::uint16_t port(const std::string& name) { return child(name).port; }
  // Requires: it was started.
  pid_t pid(const std::string& name) { return child(name).process->pid(); }
  // The last lines that it wrote to stderr, at most ten.
  const std::vector<std::string>& last_lines(const std::string& name) {
    return child(name).last_lines;
  }

  // Any other call; waits for the answer. Errors: the client's.
  Result<HttpResponse> call(const std::string& name, HttpCallOptions options);

  // The same, begun now; it ends with the handle. Nobody is told of its end.
  HttpCall begin_call(const std::string& name, HttpCallOptions options);

  // A completion; `kv_transfer_params` is JSON or empty. Waits for the answer.
  // Errors: the client's; kUnavailable with the body for another status than 200, or when a stream
  // ends before its end.
  struct CompletionCall {
    std::string prompt;
    std::uint32_t max_tokens = 16;
    std::string request_id;
    std::string kv_transfer_params;
    bool ignore_eos = false;
    bool stream = false;
    std::string conversation_id = {};  // for a router
    Duration timeout = std::chrono::seconds{60};
  };
  Result<CompletionResult> complete(const std::string& name, const CompletionCall& call);
  // The same, begun now: the answer is looked for later; dropping it hangs up.
  struct PendingCompletion {
    std::optional<Result<CompletionResult>> result;
    int status = 0;                // of the answer; 0: there was none
    bool has_retry_after = false;  // L43
    HttpCall call;
  };
  std::unique_ptr<PendingCompletion> begin_completion(const std::string& name,
                                                      const CompletionCall& call);

  Result<InstanceLedger> ledger(const std::string& name);
  // The first ledger that has what is asked for, or the last one at the limit.
  Result<InstanceLedger> wait_for_ledger(
      const std::string& name, Duration limit,
      const std::function<bool(const InstanceLedger&)>& condition);

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
  Result<void> spawn(const std::string& name, StartOptions options);
  Result<void> check_started(const Child& child) const;
  void on_line(Child& child, OutputStream stream, std::string_view line);

  EventLoop loop_;
  Options options_;
  std::deque<Child> children_;  // addresses stay: callbacks hold them
};

}  // namespace kvlease
