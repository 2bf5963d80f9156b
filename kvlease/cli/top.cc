// `kvlease top`: running instances in the terminal, as they are now, or once as text.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvlease/cli/arguments.h"
#include "kvlease/cli/command.h"
#include "kvlease/cli/validators.h"
#include "kvlease/obs/top_frame.h"
#include "kvlease/runtime/http_client.h"
#include "kvlease/runtime/loop.h"
#include "kvlease/runtime/terminal.h"
#include "kvlease/serving/cluster_watch.h"

namespace kvlease {
namespace {

constexpr Duration kRefresh = std::chrono::seconds{1};
constexpr std::size_t kPlainWidth = 120;  // where there is no terminal

struct TopFlags {
  std::vector<std::string> urls;
  std::string peer_key;
  std::string peer_key_file;
  bool once = false;
};

struct TopOptions {
  std::vector<HttpUrl> urls;
  std::string peer_key;
  bool once = false;
};

class Top {
 public:
  explicit Top(TopOptions options)
      : options_(std::move(options)), watch_(loop_, options_.peer_key) {}

  // Returns the exit code of the process.
  int run() {
    loop_.on_termination_signal([this](int) { loop_.stop(); });
    if (!options_.once) {
      auto screen = TerminalScreen::open(
          loop_, {.on_key = [this](char key) { on_key(key); }, .on_resize = [this] { draw(); }});
      if (!screen) {
        std::fprintf(stderr, "kvlease top: %s; --once prints one picture\n",
                     screen.error().message.c_str());
        return 1;
      }
      screen_.emplace(std::move(*screen));
      draw();
    }
    loop_.run([this](Instant now) { return turn(now); });
    if (!options_.once) return 0;
    print();
    const ClusterView seen = watch_.view(loop_.now());
    return std::ranges::any_of(seen.instances,
                               [](const InstanceRow& row) { return row.view.has_value(); })
               ? 0
               : 1;
  }

 private:
  // One round: each URL is asked whether it is a router's, then all instances how they are.
  Instant turn(Instant now) {
    if (in_round_) return kNever;
    if (now < next_round_) return next_round_;
    next_round_ = now + kRefresh;
    in_round_ = true;
    found_.assign(options_.urls.size(), {});
    open_looks_ = options_.urls.size();
    looks_.clear();
    for (std::size_t i = 0; i < options_.urls.size(); ++i) {
      looks_.push_back(HttpCall::start(
          loop_,
          {.host = options_.urls[i].host,
           .port = options_.urls[i].port,
           .target = "/health/ready",
           .connect_timeout = ClusterWatch::kAnswerTimeout,
           .timeout = ClusterWatch::kAnswerTimeout},
          [this, i](const Result<HttpResponse>& response) { on_look(i, response); }));
    }
    return kNever;
  }

  void on_look(std::size_t url, const Result<HttpResponse>& response) {
    found_[url] = {{.url = options_.urls[url], .role = ""}};
    if (response) {
      const auto named = instances_of_router(response->body);
      if (named && *named) found_[url] = **named;
    }
    if (--open_looks_ > 0) return;
    std::vector<WatchedInstance> all;
    for (const auto& instances : found_) {
      for (const WatchedInstance& instance : instances) {
        const auto known = std::ranges::find(all, instance.url, &WatchedInstance::url);
        if (known == all.end()) all.push_back(instance);
      }
    }
    watch_.set_instances(all);
    if (all.empty()) return on_round_over();
    watch_.ask([this] { on_round_over(); });
  }

  void on_round_over() {
    in_round_ = false;
    if (options_.once) return loop_.stop();
    draw();
  }

  void on_key(char key) {
    if (key == 'q' || key == 'Q') loop_.stop();
  }

  void draw() {
    if (!screen_) return;
    const TerminalSize size = terminal_size();
    screen_->draw(top_frame(watch_.view(loop_.now()), {.width = size.columns,
                                                       .height = size.rows,
                                                       .color = std::getenv("NO_COLOR") == nullptr,
                                                       .interactive = true}));
  }

  void print() {
    const std::size_t width = stdout_is_terminal() ? terminal_size().columns : kPlainWidth;
    const std::string frame = top_frame(watch_.view(loop_.now()), {.width = width});
    std::fwrite(frame.data(), 1, frame.size(), stdout);
  }

  EventLoop loop_;
  TopOptions options_;
  ClusterWatch watch_;
  std::optional<TerminalScreen> screen_;
  Instant next_round_ = kTimeZero;
  bool in_round_ = false;
  std::vector<HttpCall> looks_;
  std::size_t open_looks_ = 0;
  std::vector<std::vector<WatchedInstance>> found_;  // by URL
};

Result<std::string> read_secret(const std::string& path) {
  std::ifstream file(path);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  if (!file.is_open()) {
    return error(ErrorCode::kInvalidArgument,
                 "--peer-key-file: the file " + path + " cannot be read");
  }
  if (const std::string problem = secret()(text); !problem.empty()) {
    return error(ErrorCode::kInvalidArgument, "--peer-key-file " + path + ": " + problem);
  }
  return text;
}

Result<TopOptions> make_options(const TopFlags& flags) {
  TopOptions options{.urls = {}, .peer_key = flags.peer_key, .once = flags.once};
  for (const std::string& text : flags.urls) {
    auto url = parse_http_url(text.find("://") == std::string::npos ? "http://" + text : text);
    if (!url) return std::unexpected(url.error());
    if (url->target != "/") {
      return error(ErrorCode::kInvalidArgument, text + ": give http://HOST:PORT without a path");
    }
    options.urls.push_back(std::move(*url));
  }
  if (!flags.peer_key_file.empty()) {
    auto key = read_secret(flags.peer_key_file);
    if (!key) return std::unexpected(key.error());
    options.peer_key = std::move(*key);
  }
  if (!stdout_is_terminal()) options.once = true;
  return options;
}

}  // namespace

int run_top(std::span<const std::string> arguments) {
  CLI::App app("Shows running instances: their blocks, leases and last events.", "kvlease top");
  TopFlags flags;
  app.add_option("URL", flags.urls, "instances, or a router, which stands for its instances")
      ->required();
  app.add_option("--peer-key", flags.peer_key, "secret that the instances' lease calls ask for")
      ->check(secret())
      ->envname("KVLEASE_PEER_KEY");
  app.add_option("--peer-key-file", flags.peer_key_file, "a file with that secret");
  app.add_flag("--once", flags.once,
               "print one picture and end, as without a terminal; the exit code is 0 if an "
               "instance has answered");
  if (const auto exit_code = parse_arguments(app, arguments)) return *exit_code;
  auto options = make_options(flags);
  if (!options) {
    std::fprintf(stderr, "kvlease top: %s\n", options.error().message.c_str());
    return 2;
  }
  return Top(std::move(*options)).run();
}

}  // namespace kvlease
