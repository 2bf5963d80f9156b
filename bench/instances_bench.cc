// What whole instances cost, as processes over real NIXL: the memory of a prefill instance beside
// its KV cache, and how long after the death of a decoder the last of its blocks is free. Prints a
// line `NAME VALUE` for each figure.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kvlease/base/check.h"
#include "kvlease/nixl/agent.h"
#include "kvlease/serving/cluster.h"
#include "kvlease/wire/json_fields.h"

namespace kvlease {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kLease = seconds(2);
constexpr Duration kExtension = kLease * 2 / 3;  // L12
constexpr Duration kLimit = seconds(30);
constexpr std::uint64_t kPoolBytes = std::uint64_t{64} << 20;  // 1024 blocks of 64 KiB
constexpr double kMiB = 1 << 20;

std::vector<std::string> arguments(const std::string& role) {
  JsonWriter config;
  config.string("kv_connector", "NixlConnector");
  config.string("kv_role", role);
  config.json("kv_connector_extra_config",
              R"({"kv_lease_duration":)" + std::to_string(to_seconds(kLease)) + "}");
  return {"--kv-transfer-config",  config.take(),
          "--inter-token-latency", "0.002",
          "--max-num-seqs",        "1"};
}

// Of 64 blocks, and different from the first on.
std::string prompt(std::size_t number) {
  std::string text = "Prompt " + std::to_string(number) + ": ";
  while (text.size() < 1024) text += "word " + std::to_string(number * 31 + text.size()) + ' ';
  text.resize(1024);
  return text;
}

// What the system says that the process holds in memory.
std::uint64_t resident_bytes() {
  std::uint64_t mapped_pages = 0;
  std::uint64_t resident_pages = 0;
  std::ifstream("/proc/self/statm") >> mapped_pages >> resident_pages;
  return resident_pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

// What one NIXL agent alone adds to a process, in a process of its own.
void measure_nixl() {
  const pid_t child = fork();
  if (child == 0) {
    const std::uint64_t before = resident_bytes();
    const nixl::Library library = nixl::load_library({}).value();
    const auto agent = nixl::make_agent(library, {.name = AgentName("alone")}).value();
    std::printf("rss_of_nixl_alone_mib %.1f\n",
                static_cast<double>(resident_bytes() - before) / kMiB);
    std::fflush(stdout);
    _exit(EXIT_SUCCESS);
  }
  int status = 0;
  KVL_CHECK(waitpid(child, &status, 0) == child && status == 0, "NIXL can be loaded");
}

class Bench {
 public:
  Bench()
      : cluster_({.binary = std::string(KVL_BINARY_DIR) + "/bin/kvlease",
                  .on_event = [this](const InstanceEvent& event) { on_event(event); }}) {
    start("P", "kv_producer");
    std::ifstream("/proc/self/task/" + std::to_string(gettid()) + "/children") >> pid_of_p_;
    KVL_CHECK(pid_of_p_ > 0, "P is this process's only child so far");
  }

  // Hands prompts over, far more than fit at once, then looks.
  void measure_memory() {
    start("D", "kv_consumer");
    for (std::size_t i = 0; i < 64; ++i) take("D", hand_off("D", i));
    stop("D");
    std::uint64_t resident = 0;
    std::uint64_t resident_of_pool = 0;
    std::ifstream maps("/proc/" + std::to_string(pid_of_p_) + "/smaps");
    std::uint64_t kib = 0;
    std::uint64_t mapping_kib = 0;
    for (std::string word; maps >> word;) {
      if (word == "Size:") maps >> mapping_kib;
      if (word != "Rss:") continue;
      maps >> kib;
      resident += kib << 10;
      if (mapping_kib << 10 >= kPoolBytes) resident_of_pool += kib << 10;
    }
    KVL_CHECK(resident_of_pool >= kPoolBytes, "every block has been written");
    std::printf("rss_beside_pool_mib %.1f\n", static_cast<double>(resident - kPoolBytes) / kMiB);
  }

  // Kills a decoder with leases in its queue, which it has kept alive for longer than the first
  // lease; how much later than the rule allows the last block is back.
  void measure_reclaim(std::size_t round) {
    const std::string d = "D" + std::to_string(round);
    start(d, "kv_consumer");
    const auto occupying = cluster_.begin_completion(
        d,
        {.prompt = "Occupies it.", .max_tokens = 15'000, .request_id = "busy", .ignore_eos = true});
    wait(cluster_.wait_for_ledger(d, kLimit, [](const auto& now) { return now.blocks_in_use > 0; })
             .has_value());
    latest_end_.clear();
    leases_ended_ = 0;
    std::vector<std::unique_ptr<Cluster::PendingCompletion>> queued;
    const Instant begun = cluster_.now();
    for (std::size_t i = 0; i < 8; ++i) queued.push_back(hand_off(d, 100 * round + i));
    cluster_.wait_until([&] { return cluster_.now() > begun + kLease + kExtension; }, kLimit);
    wait(latest_end_.size() == queued.size() && leases_ended_ == 0);  // kept alive by heartbeats

    cluster_.signal(d, SIGKILL);
    const auto ledger = cluster_.wait_for_ledger(
        "P", kLimit, [](const InstanceLedger& now) { return now.all_blocks_back(); });
    wait(ledger && ledger->all_blocks_back());
    Instant bound = kTimeZero;
    for (const auto& [lease, end] : latest_end_) bound = std::max(bound, end);
    std::printf("reclaim_over_bound_s %.3f\n", to_seconds(cluster_.now() - bound));
  }

 private:
  void start(const std::string& name, const std::string& role) {
    const auto started = cluster_.start(name, {.arguments = arguments(role)});
    if (!started) fail(started.error().message);
  }
  void stop(const std::string& name) {
    if (const auto stopped = cluster_.stop(name); !stopped) fail(stopped.error().message);
  }
  [[noreturn]] static void fail(const std::string& why) {
    std::fprintf(stderr, "%s\n", why.c_str());
    std::exit(EXIT_FAILURE);
  }
  static void wait(bool in_time) {
    if (!in_time) fail("what was waited for did not come in time");
  }

  // L2, L3: when each lease ends at the latest unless it is renewed once more.
  void on_event(const InstanceEvent& event) {
    if (event.instance != "P") return;
    if (event.kind == "lease_granted") latest_end_[event.lease] = event.at + kLease;
    if (event.kind == "lease_ended") ++leases_ended_;
    if (event.kind == "leases_renewed") {
      for (auto& [lease, end] : latest_end_) end = std::max(end, event.at + kExtension);
    }
  }

  std::unique_ptr<Cluster::PendingCompletion> hand_off(const std::string& d, std::size_t number) {
    const std::string request = "r" + std::to_string(number);
    const auto prefilled = cluster_.complete(
        "P", {.prompt = prompt(number),
              .max_tokens = 1,
              .request_id = request,
              .kv_transfer_params = R"({"do_remote_decode":true,"do_remote_prefill":false})"});
    if (!prefilled) fail(prefilled.error().message);
    return cluster_.begin_completion(d, {.prompt = prompt(number),
                                         .max_tokens = 4,
                                         .request_id = request,
                                         .kv_transfer_params = prefilled->kv_transfer_params});
  }
  void take(const std::string& d, std::unique_ptr<Cluster::PendingCompletion> pending) {
    wait(cluster_.wait_until([&] { return pending->result.has_value(); }, kLimit));
    if (!*pending->result) fail(d + ": " + pending->result->error().message);
  }

  std::map<std::string, Instant> latest_end_;  // by lease of this round
  std::size_t leases_ended_ = 0;               // in this round
  Cluster cluster_;
  int pid_of_p_ = 0;
};

}  // namespace
}  // namespace kvlease

int main() {
  kvlease::measure_nixl();
  kvlease::Bench bench;
  bench.measure_memory();
  for (std::size_t round = 1; round <= 3; ++round) bench.measure_reclaim(round);
}
