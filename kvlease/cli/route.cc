// `kvlease route`: the routing proxy as a process, before prefill and decode instances.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <optional>
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
#include "kvlease/runtime/random.h"
#include "kvlease/serving/proxy.h"

namespace kvlease {
namespace {

struct RouteFlags {
  AccessFlags access;
  std::vector<std::string> prefill;
  std::vector<std::string> decode;
  std::string release_by = "auto";
  std::string prefill_policy = "least-outstanding";
  std::string decode_policy = "least-outstanding";
  double decode_share = 0.7;
  double connect_seconds = 2;
  double prefill_seconds = 120;
  double decode_seconds = 600;
  double drain_seconds = 30;
  std::size_t requests_max = 4096;
  bool log_events = false;
  std::string otlp_traces_file;
};

void add_options(CLI::App& app, RouteFlags& flags) {
  add_access_flags(app, flags.access,
                   "hosts beside those of --prefill that x-prefiller-host-port may name");
  app.add_option("--prefill", flags.prefill, "URLs of prefill instances")->required();
  app.add_option("--decode", flags.decode, "URLs of decode instances")->required();
  app.add_option("--release-by", flags.release_by,
                 "who tells P of a lease that is not read: decoder, router, or auto: the router "
                 "where there is another decoder to read it")
      ->check(CLI::IsMember({"auto", "decoder", "router"}))
      ->capture_default_str();
  const auto policy = [&](const char* name, std::string& out) {
    app.add_option(name, out, "round-robin, least-outstanding or prefix-affine")
        ->check(CLI::IsMember(
            std::vector<std::string>(std::begin(kRoutePolicyNames), std::end(kRoutePolicyNames))))
        ->capture_default_str();
  };
  policy("--prefill-policy", flags.prefill_policy);
  policy("--decode-policy", flags.decode_policy);
  app.add_option("--decode-share", flags.decode_share,
                 "share of a prefill instance's leased blocks that one of several decoders may pin")
      ->check(number_between(0.01, 1))
      ->capture_default_str();
  const auto seconds = [&](const char* name, double& out, double min, const char* text) {
    app.add_option(name, out, text)->check(number_between(min, 86400))->capture_default_str();
  };
  seconds("--connect-timeout", flags.connect_seconds, 0.001, "seconds to reach an instance");
  seconds("--prefill-timeout", flags.prefill_seconds, 0.001, "seconds for a prefill");
  seconds("--decode-timeout", flags.decode_seconds, 0.001, "seconds for a whole answer");
  seconds("--drain-timeout", flags.drain_seconds, 0,
          "seconds that requests may go on after SIGTERM");
  app.add_option("--max-requests", flags.requests_max, "requests under way at once; more get 503")
      ->check(integer_between(1, 1'000'000))
      ->capture_default_str();
  app.add_flag("--log-events", flags.log_events, "write each event as a JSON line to stdout");
  app.add_option("--otlp-traces-file", flags.otlp_traces_file,
                 "file that each request's spans are added to, as OTLP-JSON lines");
}

Result<std::vector<HttpUrl>> parse_urls(const char* flag, const std::vector<std::string>& texts) {
  std::vector<HttpUrl> urls;
  for (const std::string& text : texts) {
    auto url = parse_http_url(text.find("://") == std::string::npos ? "http://" + text : text);
    if (!url) {
      return error(ErrorCode::kInvalidArgument, std::string(flag) + ": " + url.error().message);
    }
    if (url->target != "/") {
      return error(ErrorCode::kInvalidArgument,
                   std::string(flag) + " " + text + ": give http://HOST:PORT without a path");
    }
    if (std::ranges::find(urls, *url) != urls.end()) {
      return error(ErrorCode::kInvalidArgument, std::string(flag) + " names " + text + " twice");
    }
    urls.push_back(std::move(*url));
  }
  return urls;
}

// Requires: one of the names.
RoutePolicy parse_policy(std::string_view name) {
  return static_cast<RoutePolicy>(std::ranges::find(kRoutePolicyNames, name) -
                                  std::begin(kRoutePolicyNames));
}

Result<ProxyOptions> make_options(const RouteFlags& flags) {
  const AccessFlags& access = flags.access;
  const auto checked = check_access(access);
  if (!checked) return std::unexpected(checked.error());
  auto prefill = parse_urls("--prefill", flags.prefill);
  if (!prefill) return std::unexpected(prefill.error());
  auto decode = parse_urls("--decode", flags.decode);
  if (!decode) return std::unexpected(decode.error());
  const bool by_router =
      flags.release_by == "router" || (flags.release_by == "auto" && flags.decode.size() > 1);
  return ProxyOptions{.host = access.host,
                      .port = access.port,
                      .prefill = std::move(*prefill),
                      .decode = std::move(*decode),
                      .allow_peers = access.allow_peers,
                      .api_key = access.api_key,
                      .peer_key = access.peer_key,
                      .release_by = by_router ? ReleaseBy::kRouter : ReleaseBy::kDecoder,
                      .connect_timeout = from_seconds(flags.connect_seconds),
                      .prefill_timeout = from_seconds(flags.prefill_seconds),
                      .decode_timeout = from_seconds(flags.decode_seconds),
                      .drain_timeout = from_seconds(flags.drain_seconds),
                      .requests_max = flags.requests_max,
                      .prefill_policy = parse_policy(flags.prefill_policy),
                      .decode_policy = parse_policy(flags.decode_policy),
                      .decode_share = flags.decode_share,
                      .seed = random_u64()};
}

int route(ProxyOptions options, bool log_events, const std::string& traces_file) {
  const Log log(LogOptions{});
  const Logger logger = log.component("route");
  EventLines events(logger);
  options.on_warning = [&](const std::string& text) { logger.warning(text); };
  if (log_events) options.on_event = [&](std::string_view line) { events.write(line); };
  std::optional<LineFile> spans;
  if (!traces_file.empty()) {
    auto file = LineFile::open(traces_file, logger);
    if (!file) {
      std::fprintf(stderr, "kvlease route: %s\n", file.error().message.c_str());
      return 2;
    }
    spans.emplace(std::move(*file));
    options.on_span = [&](std::string_view line) { spans->write(line); };
  }
  std::signal(SIGPIPE, SIG_IGN);  // whoever reads our events may go away
  raise_open_files_max();
  EventLoop loop;
  const std::string host = options.host;
  auto proxy = Proxy::start(loop, std::move(options));
  if (!proxy) {
    std::fprintf(stderr, "kvlease route: %s\n", proxy.error().message.c_str());
    return 1;
  }
  run_server(loop, **proxy, host, "router", logger);
  return 0;
}

}  // namespace

int run_route(std::span<const std::string> arguments) {
  CLI::App app("The routing proxy: prefill on one instance, decode on another.", "kvlease route");
  RouteFlags flags;
  add_options(app, flags);
  if (const auto exit_code = parse_arguments(app, arguments)) return *exit_code;
  auto options = make_options(flags);
  if (!options) {
    std::fprintf(stderr, "kvlease route: %s\n", options.error().message.c_str());
    return 2;
  }
  return route(std::move(*options), flags.log_events, flags.otlp_traces_file);
}

}  // namespace kvlease
