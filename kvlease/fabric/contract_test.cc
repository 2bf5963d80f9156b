// The Transport contract on the fabric, plain and behind harmless faults.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvlease/fabric/network.h"
#include "kvlease/transport/contract_testing.h"

namespace kvlease::fabric {
namespace {

constexpr Duration kStepMin = std::chrono::microseconds(1);
constexpr int kStepsMax = 20'000;

// Virtual time goes from one thing that an agent waits for to the next.
class FabricWorld : public ContractWorld {
 public:
  explicit FabricWorld(const NetworkConfig& config) : network_(config) {}

  Transport& make_agent(const AgentName& name) override {
    return *agents_.emplace_back(network_.make_agent(name));
  }

  bool poll_until(const std::function<bool()>& done) override {
    for (int step = 0; step < kStepsMax; ++step) {
      if (done()) return true;
      Instant next = kNever;
      for (const auto& agent : agents_) next = earlier(next, agent->next_poll(true, now_));
      if (next == kNever) return false;
      now_ = std::max(next, now_ + kStepMin);
      network_.advance_to(now_);
    }
    return done();
  }

  bool can_kill() const override { return true; }
  void kill(Transport& agent) override { network_.kill(agent.name()); }

 private:
  Network network_;
  std::vector<std::unique_ptr<Transport>> agents_;
  Instant now_ = kTimeZero;
};

ContractCase fabric_case(std::string name, const NetworkConfig& config) {
  return {.name = std::move(name),
          .make_world = [config] { return std::make_unique<FabricWorld>(config); }};
}

const std::vector<ContractCase> kCases{
    fabric_case("Fabric", {}),
    // C08 (a): what is posted has landed before it is polled for the first time.
    fabric_case("FabricAtOnce",
                {.read_latency = Duration::zero(), .notif_latency = Duration::zero()}),
    // C07: chunks that straddle descriptors land in any order.
    fabric_case("FabricInPieces", {.seed = 7,
                                   .bandwidth_bytes_per_us = 1000,
                                   .chunk_bytes = 1000,
                                   .chunk_jitter_max = std::chrono::microseconds(50)}),
};

INSTANTIATE_TEST_SUITE_P(Fabric, TransportContract, testing::ValuesIn(kCases), case_name);

}  // namespace
}  // namespace kvlease::fabric
