// Prefill and decode instances behind `kvlease route`, for the tests that call them as clients do.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/processes/handoff_testing.h"

namespace kvlease {

struct StackOptions {
  std::uint32_t prefills = 1;
  std::uint32_t decodes = 2;
  double lease_seconds = 2;
  std::vector<std::string> prefill_arguments = {};
  std::vector<std::string> decode_arguments = {};
  std::vector<std::string> route_arguments = {};
  std::vector<EnvironmentVariable> environment = {};  // of all of them
};

class RouterTest : public ProcessTest {
 protected:
  using Pending = std::unique_ptr<Cluster::PendingCompletion>;

  // Starts P1 …, D1 …, each with its name as engine id, and "router".
  void start_stack(const StackOptions& options);
  std::vector<std::string> route_arguments(const StackOptions& options);
  // The arguments that `name` was started with.
  std::vector<std::string> instance_arguments(const std::string& name,
                                              const StackOptions& options) const;

  // A completion through the router, begun.
  Pending begin(const std::string& prompt, bool stream);
  // Both ways through the router give the text of a single instance.
  void expect_router_works(std::uint32_t prompt_number);
  // No lease is left anywhere, each has had one end, and no block is in use.
  void expect_all_quiet(const std::vector<std::string>& names, Duration limit);
  void kill_and_wait(const std::string& name);
  // Which of D1 and D2 has told of `kind`; waits for it.
  std::string decoder_with(std::string_view kind);

 private:
  std::uint32_t next_id_ = 0;
};

}  // namespace kvlease
