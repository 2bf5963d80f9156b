// See router_testing.h.
#include "tests/processes/router_testing.h"

#include <csignal>
#include <utility>

namespace kvlease {

std::vector<std::string> RouterTest::instance_arguments(const std::string& name,
                                                        const StackOptions& options) const {
  const std::string lease = R"("kv_lease_duration":)" + std::to_string(options.lease_seconds);
  return name.starts_with('P')
             ? joined(transfer_config("kv_producer", lease, name), options.prefill_arguments)
             : joined(transfer_config("kv_consumer", lease + R"(,"kv_load_timeout":3)", name),
                      options.decode_arguments);
}

std::vector<std::string> RouterTest::route_arguments(const StackOptions& options) {
  std::vector<std::string> arguments = options.route_arguments;
  const auto add = [&](const char* flag, char letter, std::uint32_t count) {
    for (std::uint32_t i = 1; i <= count; ++i) {
      const std::uint16_t port = cluster_.port(letter + std::to_string(i));
      arguments.insert(arguments.end(), {flag, "http://127.0.0.1:" + std::to_string(port)});
    }
  };
  add("--prefill", 'P', options.prefills);
  add("--decode", 'D', options.decodes);
  return arguments;
}

void RouterTest::start_stack(const StackOptions& options) {
  std::vector<std::pair<std::string, Cluster::StartOptions>> instances;
  const auto add = [&](char letter, std::uint32_t count) {
    for (std::uint32_t i = 1; i <= count; ++i) {
      const std::string name = letter + std::to_string(i);
      instances.emplace_back(name,
                             Cluster::StartOptions{.arguments = instance_arguments(name, options),
                                                   .environment = options.environment});
    }
  };
  add('P', options.prefills);
  add('D', options.decodes);
  const auto started = cluster_.start_all(std::move(instances));
  ASSERT_TRUE(started) << started.error().message;
  const auto routing = cluster_.start("router", {.command = "route",
                                                 .arguments = route_arguments(options),
                                                 .environment = options.environment});
  ASSERT_TRUE(routing) << routing.error().message;
  // It knows all of them, so that it takes them in turn from the first request on.
  std::string state;
  const Instant end = cluster_.now() + kLimit;
  do {
    const auto ready = cluster_.call("router", {.target = "/health/ready"});
    ASSERT_TRUE(ready) << ready.error().message;
    state = ready->body;
  } while (state.find("unprobed") != std::string::npos && cluster_.now() < end);
  ASSERT_EQ(state.find("unprobed"), std::string::npos) << state;
}

RouterTest::Pending RouterTest::begin(const std::string& prompt, bool stream) {
  return cluster_.begin_completion("router", {.prompt = prompt,
                                              .max_tokens = kMaxTokens,
                                              .request_id = "c" + std::to_string(next_id_++),
                                              .kv_transfer_params = "",
                                              .stream = stream});
}

void RouterTest::expect_router_works(std::uint32_t prompt_number) {
  for (const bool stream : {false, true}) {
    const std::string prompt = prompt_text(prompt_number++);
    EXPECT_EQ(text_of(*begin(prompt, stream)), expected_text(prompt)) << "streamed: " << stream;
  }
}

void RouterTest::expect_all_quiet(const std::vector<std::string>& names, Duration limit) {
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    expect_all_blocks_back(name, limit);
  }
}

void RouterTest::kill_and_wait(const std::string& name) {
  cluster_.signal(name, SIGKILL);
  ASSERT_TRUE(cluster_.wait_until([&] { return !cluster_.running(name); }, kLimit));
}

std::string RouterTest::decoder_with(std::string_view kind) {
  const auto has_one = [&] { return count("D1", kind) + count("D2", kind) > 0; };
  EXPECT_TRUE(cluster_.wait_until(has_one, kLimit)) << "no decoder has told of " << kind;
  return count("D1", kind) > 0 ? "D1" : "D2";
}

}  // namespace kvlease
