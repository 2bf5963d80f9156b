// The contract of Transport over real NIXL, with all agents in one process; CTest runs it a second
// time with UCX_TLS=tcp.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "kvlease/nixl/agent.h"
#include "kvlease/nixl/nixl_testing.h"
#include "kvlease/transport/contract_testing.h"

namespace kvlease::nixl {
namespace {

class NixlWorld final : public ContractWorld {
 public:
  explicit NixlWorld(const Library& library) : library_(library) {}

  Transport& make_agent(const AgentName& name) override {
    return *agents_.emplace_back(nixl::make_agent(library_, {.name = name}).value());
  }
  bool poll_until(const std::function<bool()>& done) override {
    return wait_until(std::chrono::seconds(20), done);
  }
  // An agent that ends says no good-bye: its endpoints just close.
  bool can_kill() const override { return true; }
  void kill(Transport& agent) override {
    std::erase_if(agents_, [&](const auto& owned) { return owned.get() == &agent; });
  }

 private:
  const Library& library_;
  std::vector<std::unique_ptr<Transport>> agents_;
};

std::vector<ContractCase> nixl_cases() {
  return {{.name = "Nixl", .make_world = []() -> std::unique_ptr<ContractWorld> {
             const Library* library = library_for_test();
             return library == nullptr ? nullptr : std::make_unique<NixlWorld>(*library);
           }}};
}

}  // namespace
}  // namespace kvlease::nixl

namespace kvlease {

INSTANTIATE_TEST_SUITE_P(Nixl, TransportContract, testing::ValuesIn(nixl::nixl_cases()), case_name);

}  // namespace kvlease
