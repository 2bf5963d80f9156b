// The Transport contract on the fabric, plain and behind harmless faults.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvlease/fabric/fault.h"
#include "kvlease/fabric/network.h"
#include "kvlease/transport/contract_testing.h"

namespace kvlease::fabric {
namespace {

constexpr Duration kStepMin = std::chrono::microseconds(1);
constexpr int kStepsMax = 20'000;

// Virtual time goes from one thing that an agent waits for to the next. With a plan every agent is
// decorated.
class FabricWorld : public ContractWorld {
 public:
  FabricWorld(const NetworkConfig& config, std::optional<FaultPlan> plan)
      : network_(config), plan_(std::move(plan)) {}

  Transport& make_agent(const AgentName& name) override {
    std::unique_ptr<Transport> agent = network_.make_agent(name);
    if (plan_) agent = fault(std::move(agent), *plan_);
    return *agents_.emplace_back(std::move(agent));
  }

  bool poll_until(const std::function<bool()>& done) override {
    for (int step = 0; step < kStepsMax; ++step) {
      if (done()) return true;
      Instant next = kNever;
      for (const auto& agent : agents_) next = earlier(next, agent->next_poll(true, now_));
      // What the decorators have just sent is news to agents that were asked before.
      next = earlier(next, network_.next_event());
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
  const std::optional<FaultPlan> plan_;
  std::vector<std::unique_ptr<Transport>> agents_;
  Instant now_ = kTimeZero;
};

ContractCase fabric_case(std::string name, const NetworkConfig& config,
                         const std::optional<FaultPlan>& plan) {
  return {.name = std::move(name),
          .make_world = [config, plan] { return std::make_unique<FabricWorld>(config, plan); }};
}

const std::vector<ContractCase> kCases{
    fabric_case("Fabric", {}, std::nullopt),
    // C08 (a): what is posted has landed before it is polled for the first time.
    fabric_case("FabricAtOnce",
                {.read_latency = Duration::zero(), .notif_latency = Duration::zero()},
                std::nullopt),
    // C07: chunks that straddle descriptors land in any order.
    fabric_case("FabricInPieces",
                {.seed = 7,
                 .bandwidth_bytes_per_us = 1000,
                 .chunk_bytes = 1000,
                 .chunk_jitter_max = std::chrono::microseconds(50)},
                std::nullopt),
    fabric_case("Fault", {}, FaultPlan{}),
    // Delays break no contract: the order across senders changes, that of one sender does not.
    fabric_case("FaultDelaysSome", {},
                FaultPlan{.seed = 11,
                          .delay_notif = {.numerator = 1, .denominator = 2},
                          .notif_delay = std::chrono::microseconds(250),
                          .delay_post = {.numerator = 1, .denominator = 3},
                          .post_delay = std::chrono::microseconds(300)}),
    // C08 (c): every read ends long after its post.
    fabric_case("FaultDelaysAll", {},
                FaultPlan{.delay_notif = Strikes::always(),
                          .notif_delay = std::chrono::milliseconds(1),
                          .delay_post = Strikes::always(),
                          .post_delay = std::chrono::milliseconds(5)}),
};

INSTANTIATE_TEST_SUITE_P(Fabric, TransportContract, testing::ValuesIn(kCases), case_name);

}  // namespace
}  // namespace kvlease::fabric
