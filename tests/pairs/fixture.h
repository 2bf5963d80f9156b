// What the scenario tests share: one P and one D with equally many ranks, and ways to make D slow.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/pairs/world.h"

namespace kvlease::pairs {

using std::chrono::milliseconds;
using std::chrono::seconds;

// By number of ranks on both sides.
class PairTest : public ::testing::TestWithParam<std::uint32_t> {
 protected:
  std::uint32_t tp() const { return GetParam(); }
  InstanceOptions options() const { return {.tp = tp()}; }
  InstanceOptions options(LoadFailurePolicy policy) const {
    InstanceOptions options{.tp = tp()};
    options.lease.load_failure_policy = policy;
    return options;
  }
  // Every rank's agent does this wrong.
  InstanceOptions with_faults(InstanceOptions options, const fabric::FaultPlan& plan) const {
    options.faults.assign(tp(), plan);
    return options;
  }
  // Runs one request at a time, a token a second.
  InstanceOptions one_at_a_time(InstanceOptions options) const {
    options.scheduler.max_num_seqs = 1;
    options.inter_token_latency = seconds(1);
    return options;
  }
  // Keeps an engine that is one_at_a_time() busy for so long.
  Ticket keep_busy(const std::string& engine, std::uint32_t busy_seconds) {
    return world.complete(engine, prompt(4, 'z'), busy_seconds + 1);
  }

  void add_pair() {
    world.add("P", options());
    world.add("D", options());
  }

  // A decode whose blocks land so much after the post; the lease entry lands soon after them.
  Ticket decode_slowly(const std::string& text, const std::string& params, Duration landing) {
    const std::size_t posted = world.count_events("D", EventKind::kReadPosted);
    world.network().set_read_latency(landing);
    const Ticket ticket = world.decode("D", text, params, 8);
    EXPECT_TRUE(world.run_until(
        [&] { return world.count_events("D", EventKind::kReadPosted) == posted + tp(); },
        seconds(1)));
    world.network().set_read_latency(std::chrono::microseconds(20));
    return ticket;
  }

  std::uint64_t ended(const std::string& engine, LeaseEnd end) {
    return world.engine(engine).connector().leases().ledger().ended[static_cast<std::size_t>(end)];
  }
  std::size_t live(const std::string& engine) {
    return world.engine(engine).connector().leases().live();
  }
  void expect_text(Ticket ticket, const std::string& text, std::uint32_t max_tokens) {
    EXPECT_EQ(world.outcome(ticket).error_message, "");
    EXPECT_EQ(world.outcome(ticket).text, reference_text(text, max_tokens));
  }
  // By policy: the text of a single instance, or an error without a token (L27).
  static void expect_failed_load(const World& in, Ticket ticket, const std::string& text,
                                 LoadFailurePolicy policy) {
    const Outcome& outcome = in.outcome(ticket);
    if (policy == LoadFailurePolicy::kRecompute) {
      EXPECT_EQ(outcome.error_message, "");
      EXPECT_EQ(outcome.text, reference_text(text, 8));
    } else {
      EXPECT_EQ(outcome.finish_reason, FinishReason::kError);
      EXPECT_EQ(outcome.text, "");
    }
  }

  World world;
};

inline constexpr LoadFailurePolicy kPolicies[] = {LoadFailurePolicy::kRecompute,
                                                  LoadFailurePolicy::kFail};

inline std::string edited(const std::string& params,
                          const std::function<void(KvTransferParams&)>& edit) {
  auto parsed = parse_kv_transfer_params(params, 1 << 20);
  EXPECT_TRUE(parsed.has_value());
  edit(*parsed);
  return to_json(*parsed);
}

}  // namespace kvlease::pairs
