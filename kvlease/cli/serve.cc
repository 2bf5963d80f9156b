// `kvlease serve`: one prefill or decode instance as a process. Options have vLLM's names where
// vLLM has them; all are listed in docs/configuration.md.
#include <CLI/CLI.hpp>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "kvlease/cli/access_flags.h"
#include "kvlease/cli/arguments.h"
#include "kvlease/cli/command.h"
#include "kvlease/cli/output.h"
#include "kvlease/cli/run_server.h"
#include "kvlease/cli/validators.h"
#include "kvlease/runtime/log.h"
#include "kvlease/runtime/loop.h"
#include "kvlease/runtime/process.h"
#include "kvlease/serving/access.h"
#include "kvlease/serving/instance.h"
#include "kvlease/synthetic/tokenizer.h"

namespace kvlease {
namespace {

// What the flags hold before they are checked together.
struct Flags {
  std::string model = "synthetic";
  AccessFlags access{.allow_peers = {"127.0.0.1", "localhost", "::1"}};
  std::string served_model_name;
  std::string advertise_host;
  std::string kv_transfer_config = "{}";
  std::string nixl_path;
  std::uint32_t tp = 1;
  KvLayout layout{.num_layers = 4,
                  .num_kv_heads = 4,
                  .head_dim = 64,
                  .element_bytes = 2,
                  .block_size = 16,
                  .num_blocks = 1024,
                  .tp = 1};
  std::uint32_t max_num_seqs = 256;
  std::uint32_t max_num_waiting = 4096;
  std::uint32_t max_num_batched_tokens = 8192;
  std::uint64_t seed = 0;
  double prefill_seconds_per_token = 0;
  double inter_token_seconds = 0;
  double drain_seconds = 30;
  bool log_events = false;
  std::string otlp_traces_file;
  bool no_prefix_caching = false;
  // Faults for tests and the demo.
  bool drop_heartbeats = false;
  double post_delay_seconds = 0;
  bool accept_unvalidated = false;
};

void add_options(CLI::App& app, Flags& flags) {
  app.add_option("MODEL", flags.model, "synthetic is the only model so far")->capture_default_str();
  add_access_flags(app, flags.access, "hosts that a decode instance connects to");
  app.add_option("--served-model-name", flags.served_model_name,
                 "name of the model in the API (default: MODEL)");
  app.add_option("--advertise-host", flags.advertise_host,
                 "host that peers are given for the handshake (default: --host)")
      ->transform([](const std::string& text) { return without_brackets(text); })
      ->envname("VLLM_NIXL_SIDE_CHANNEL_HOST");
  app.add_option("--kv-transfer-config", flags.kv_transfer_config, "vLLM's JSON object, or @FILE")
      ->capture_default_str();
  app.add_option("--nixl-path", flags.nixl_path,
                 "libnixl_capi.so or a folder with it (default: KVLEASE_NIXL_PATH)");
  app.add_option("--tensor-parallel-size", flags.tp, "ranks, all in this process")
      ->check(integer_between(1, 64))
      ->capture_default_str();
  app.add_option("--drain-timeout", flags.drain_seconds,
                 "seconds that leases may live on after SIGTERM")
      ->check(number_between(0, 86400))
      ->capture_default_str();
  app.add_flag("--log-events", flags.log_events, "write each event as a JSON line to stdout");
  app.add_option("--otlp-traces-file", flags.otlp_traces_file,
                 "file that each request's spans are added to, as OTLP-JSON lines");
}

void add_model_options(CLI::App& app, Flags& flags) {
  const auto size = [&](const char* name, std::uint32_t& out, std::uint64_t max, const char* text) {
    app.add_option(name, out, text)->check(integer_between(1, max))->capture_default_str();
  };
  size("--block-size", flags.layout.block_size, 1024, "tokens of a block");
  size("--num-gpu-blocks", flags.layout.num_blocks, 1 << 24, "blocks of the KV cache");
  size("--num-layers", flags.layout.num_layers, 1024, "layers of the synthetic model");
  size("--num-kv-heads", flags.layout.num_kv_heads, 1024, "KV heads in all ranks together");
  size("--head-dim", flags.layout.head_dim, 4096, "elements of a head");
  size("--kv-element-bytes", flags.layout.element_bytes, 8, "bytes of an element");
  size("--max-num-seqs", flags.max_num_seqs, 65536, "sequences running at once");
  size("--max-num-waiting", flags.max_num_waiting, 1 << 20, "requests that wait; more get 503");
  size("--max-num-batched-tokens", flags.max_num_batched_tokens, 1 << 24, "tokens of one forward");
  app.add_option("--seed", flags.seed, "the synthetic model's weights, so to speak")
      ->check(integer_between(0, UINT64_MAX))
      ->capture_default_str();
  const auto seconds = [&](const char* name, double& out, const char* text) {
    app.add_option(name, out, text)->check(number_between(0, 3600))->capture_default_str();
  };
  seconds("--prefill-time-per-token", flags.prefill_seconds_per_token, "seconds; 0: none");
  seconds("--inter-token-latency", flags.inter_token_seconds, "seconds; 0: none");
  app.add_flag("--no-enable-prefix-caching", flags.no_prefix_caching,
               "compute every prompt from its first token");
  app.add_flag("--fault-drop-heartbeats", flags.drop_heartbeats, "lose every heartbeat sent")
      ->group("Faults, for tests and the demo");
  seconds("--fault-post-delay", flags.post_delay_seconds, "seconds by which each read starts late");
  app.get_option("--fault-post-delay")->group("Faults, for tests and the demo");
  app.add_flag("--fault-accept-unvalidated", flags.accept_unvalidated,
               "use what was read without looking at the lease: WRONG TEXT, to show why it matters")
      ->group("Faults, for tests and the demo");
}

Result<std::string> read_config(const std::string& text) {
  if (!text.starts_with('@')) return text;
  std::ifstream file(text.substr(1));
  std::stringstream content;
  content << file.rdbuf();
  if (!file || !content) {
    return error(ErrorCode::kInvalidArgument,
                 "--kv-transfer-config: the file " + text.substr(1) + " cannot be read");
  }
  return content.str();
}

Result<InstanceOptions> make_options(const Flags& flags) {
  if (flags.model != "synthetic") {
    return error(ErrorCode::kInvalidArgument,
                 "MODEL " + flags.model + ": synthetic is the only model so far");
  }
  const AccessFlags& access = flags.access;
  const auto checked = check_access(access);
  if (!checked) return std::unexpected(checked.error());
  if (is_wildcard(access.host) && flags.advertise_host.empty()) {
    return error(ErrorCode::kInvalidArgument,
                 "--host " + access.host + " is no address to give to peers: set --advertise-host");
  }
  const std::string& advertised = flags.advertise_host.empty() ? access.host : flags.advertise_host;
  if (!is_host(advertised)) {
    return error(ErrorCode::kInvalidArgument,
                 "--advertise-host " + advertised +
                     " is no host: give a name or an address, without scheme, port or path");
  }
  KvLayout layout = flags.layout;
  layout.tp = flags.tp;
  if (const auto good = layout.check(); !good) {
    return error(good.error().code,
                 "--num-gpu-blocks and the flags of the model's shape: " + good.error().message);
  }
  const auto text = read_config(flags.kv_transfer_config);
  if (!text) return std::unexpected(text.error());
  auto config = parse_kv_transfer_config(*text);
  if (!config) {
    return error(config.error().code, "--kv-transfer-config: " + config.error().message);
  }
  InstanceOptions options{
      .host = access.host, .port = access.port, .drain_timeout = from_seconds(flags.drain_seconds)};
  options.api_key = access.api_key;
  EngineHostOptions& engine = options.engine;
  engine.kv_transfer_config = std::move(*config);
  engine.model.layout = layout;
  engine.model.seed = flags.seed;
  engine.model.prefill_time_per_token = from_seconds(flags.prefill_seconds_per_token);
  engine.model.inter_token_latency = from_seconds(flags.inter_token_seconds);
  engine.scheduler.num_blocks = flags.layout.num_blocks;
  engine.scheduler.block_size = flags.layout.block_size;
  engine.scheduler.max_num_seqs = flags.max_num_seqs;
  engine.scheduler.max_num_waiting = flags.max_num_waiting;
  engine.scheduler.max_num_batched_tokens = flags.max_num_batched_tokens;
  engine.scheduler.enable_prefix_caching = !flags.no_prefix_caching;
  engine.scheduler.eos_token_id = kEndOfText;
  engine.advertise_host = advertised;
  engine.model_name = flags.served_model_name.empty() ? flags.model : flags.served_model_name;
  engine.allow_peers = access.allow_peers;
  engine.peer_key = access.peer_key;
  engine.nixl_path = flags.nixl_path;
  engine.validate_reads = !flags.accept_unvalidated;
  if (flags.drop_heartbeats) engine.faults.drop_notifs_with_prefix = "HB:";
  if (flags.post_delay_seconds > 0) {
    engine.faults.delay_post = fabric::Strikes::always();
    engine.faults.post_delay = from_seconds(flags.post_delay_seconds);
  }
  return options;
}

int serve(InstanceOptions options, bool log_events, const std::string& traces_file) {
  const Log log(LogOptions{});
  const Logger logger = log.component("serve");
  for (const std::string& warning : options.engine.kv_transfer_config.warnings) {
    logger.warning(warning);
  }
  options.on_warning = [&](const std::string& text) { logger.warning(text); };
  EventLines events(logger);
  if (log_events) options.on_event = [&](std::string_view line) { events.write(line); };
  std::optional<LineFile> spans;
  if (!traces_file.empty()) {
    auto file = LineFile::open(traces_file, logger);
    if (!file) {
      std::fprintf(stderr, "kvlease serve: %s\n", file.error().message.c_str());
      return 2;
    }
    spans.emplace(std::move(*file));
    options.on_span = [&](std::string_view line) { spans->write(line); };
  }
  std::signal(SIGPIPE, SIG_IGN);  // whoever reads our events may go away
  raise_open_files_max();
  EventLoop loop;
  const std::string host = options.host;
  auto instance = Instance::start(loop, std::move(options));
  if (!instance) {
    std::fprintf(stderr, "kvlease serve: %s\n", instance.error().message.c_str());
    return 1;
  }
  Instance& running = **instance;
  logger.info(
      "kv_load_failure_policy is " +
      std::string(load_failure_policy_name(running.lease_config().load_failure_policy)));  // F04
  run_server(loop, running, host, running.engine_id().str(), logger);
  if (running.cut_leases() > 0) {
    logger.warning(std::to_string(running.cut_leases()) + " leases cut at the drain limit");
  }
  return 0;
}

}  // namespace

int run_serve(std::span<const std::string> arguments) {
  CLI::App app("One prefill or decode instance with an OpenAI-style API.", "kvlease serve");
  Flags flags;
  add_options(app, flags);
  add_model_options(app, flags);
  if (const auto exit_code = parse_arguments(app, arguments)) return *exit_code;
  auto options = make_options(flags);
  if (!options) {
    std::fprintf(stderr, "kvlease serve: %s\n", options.error().message.c_str());
    return 2;
  }
  return serve(std::move(*options), flags.log_events, flags.otlp_traces_file);
}

}  // namespace kvlease
