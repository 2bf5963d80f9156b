// The loop of the world, its handshakes and its requests.
#include "tests/pairs/world.h"

#include <algorithm>

#include "kvlease/base/check.h"
#include "kvlease/synthetic/tokenizer.h"
#include "kvlease/wire/proxy_testing.h"

namespace kvlease::pairs {
namespace {

constexpr std::size_t kParamsBytesMax = 1 << 20;
// More turns than this at one instant are an engine that asks to be turned for nothing.
constexpr int kTurnsAtOnceMax = 10'000;

}  // namespace

std::string prompt(std::size_t length, char kind) {
  std::string text;
  for (std::size_t i = 0; text.size() < length; ++i) text += kind + std::to_string(i) + ' ';
  text.resize(length);
  return text;
}

std::string reference_text(const std::string& prompt, std::uint32_t max_tokens) {
  static std::map<std::pair<std::string, std::uint32_t>, std::string> known;
  const auto [it, is_new] = known.try_emplace({prompt, max_tokens});
  if (is_new) {
    World world;
    world.add("alone", {.scheduler = {.num_blocks = 256, .block_size = kBlockSize}});
    const Ticket ticket = world.complete("alone", prompt, max_tokens);
    EXPECT_TRUE(world.finishes(ticket, std::chrono::seconds(10)));
    it->second = world.outcome(ticket).text;
  }
  return it->second;
}

World::World(const fabric::NetworkConfig& config) : network_(config), seed_(config.seed) {}

World::~World() = default;

void World::add(const std::string& name, const InstanceOptions& options) {
  const auto port = static_cast<std::uint16_t>(8100 + hosts_.size());
  const auto [it, is_new] =
      hosts_.try_emplace(name, Host{.options = options, .port = port, .answered_by = name});
  KVL_CHECK(is_new, "an engine's name is used once");
  start(name);
}

Instance& World::engine(const std::string& name) {
  KVL_CHECK(is_alive(name), "a killed engine has no state");
  return *hosts_.at(name).instance;
}

void World::start(const std::string& name) {
  Host& host = hosts_.at(name);
  ++host.starts;
  const std::uint64_t random = mix64(mix64(seed_ ^ host.port) + host.starts);
  host.instance = std::make_unique<Instance>(
      host.options, InstanceIdentity{.name = name, .port = host.port, .start = random}, network_);
}

void World::stop(const std::string& name) {
  hosts_.at(name).stopped = true;
  for (const AgentName& agent : engine(name).agents()) network_.stop(agent);
}

void World::cont(const std::string& name) {
  hosts_.at(name).stopped = false;
  for (const AgentName& agent : engine(name).agents()) network_.cont(agent);
}

void World::kill(const std::string& name) {
  if (is_stopped(name)) cont(name);
  for (const AgentName& agent : engine(name).agents()) network_.kill(agent);
  hosts_.at(name).instance.reset();
  std::erase_if(handshakes_, [&](const auto& entry) { return entry.first.first == name; });
  std::erase_if(tickets_, [&](const auto& entry) { return entry.first.first == name; });
  for (Outcome& outcome : outcomes_) {
    if (outcome.engine != name || outcome.finish_reason) continue;
    outcome.finish_reason = FinishReason::kError;
    outcome.error_message = "killed";
    outcome.finished_at = now_;
  }
}

void World::restart(const std::string& name, const InstanceOptions& options) {
  KVL_CHECK(!is_alive(name), "only a killed engine is started again");
  hosts_.at(name).options = options;
  start(name);
}

void World::set_handshake(const std::string& name, HandshakeBehaviour behaviour, Duration delay) {
  Host& host = hosts_.at(name);
  host.behaviour = behaviour;
  host.handshake_delay = delay;
}

void World::redirect(const std::string& name, const std::string& by) {
  hosts_.at(name).answered_by = by;
}

std::size_t World::count_events(const std::string& name, EventKind kind) const {
  return static_cast<std::size_t>(std::ranges::count_if(events_, [&](const auto& entry) {
    return entry.first == name && entry.second.kind == kind;
  }));
}

// --- requests

Ticket World::add_request(const std::string& name, NewRequest request) {
  const Ticket ticket = outcomes_.size();
  outcomes_.push_back({.engine = name});
  const Result<RequestId> id = engine(name).core().add_request(std::move(request), now_);
  if (id) {
    outcomes_.back().id = *id;
    tickets_.emplace(std::pair(name, *id), ticket);
  } else {
    outcomes_.back().finish_reason = FinishReason::kError;
    outcomes_.back().error_message = id.error().message;
    outcomes_.back().finished_at = now_;
  }
  turn_unless_stopped(name);
  return ticket;
}

Ticket World::prefill(const std::string& name, const std::string& text) {
  return add_request(name, {.client_id = "client",
                            .prompt_token_ids = tokenize(text),
                            .sampling = {.max_tokens = 1},
                            .kv_transfer_params = KvTransferParams{.do_remote_decode = true}});
}

Ticket World::prefill_with(const std::string& name, const std::string& text,
                           const std::string& held) {
  return held.empty() ? prefill(name, text) : decode(name, text, held, 1);
}

Ticket World::decode(const std::string& name, const std::string& text, const std::string& params,
                     std::uint32_t max_tokens) {
  auto parsed = parse_kv_transfer_params(params, kParamsBytesMax);
  KVL_CHECK(parsed.has_value(), "the test's params can be read");
  return add_request(name, {.client_id = "client",
                            .prompt_token_ids = tokenize(text),
                            .sampling = {.max_tokens = max_tokens},
                            .kv_transfer_params = std::move(*parsed)});
}

Ticket World::complete(const std::string& name, const std::string& text, std::uint32_t max_tokens) {
  return add_request(name, {.client_id = "client",
                            .prompt_token_ids = tokenize(text),
                            .sampling = {.max_tokens = max_tokens}});
}

void World::abort(Ticket ticket) {
  const Outcome& outcome = outcomes_[ticket];
  if (outcome.finish_reason) return;
  engine(outcome.engine).core().abort(outcome.id, now_);
  turn_unless_stopped(outcome.engine);
}

bool World::release(const std::string& name, const LeaseId& lease) {
  const bool found = engine(name).core().release(lease);
  turn_unless_stopped(name);
  return found;
}

std::size_t World::cut_leases(const std::string& name) {
  const std::size_t cut = engine(name).connector().cut_leases();
  turn_unless_stopped(name);
  return cut;
}

void World::refuse_request(const std::string& name, NewRequest request) {
  engine(name).core().refuse_request(std::move(request), now_);
  turn_unless_stopped(name);
}

std::string World::params_of_prefill(const std::string& name, const std::string& text) {
  const Ticket ticket = prefill(name, text);
  EXPECT_TRUE(finishes(ticket, std::chrono::seconds(60)));
  EXPECT_FALSE(outcome(ticket).params.empty()) << outcome(ticket).error_message;
  return outcome(ticket).params;
}

// --- time

bool World::run_until(const std::function<bool()>& condition, Duration limit) {
  const Instant end = now_ + limit;
  for (;;) {
    turn_all_due();
    if (condition()) return true;
    const Instant next = next_instant();
    if (next > end) break;
    now_ = next;
  }
  now_ = end;
  network_.advance_to(now_);
  return false;
}

void World::run_for(Duration length) {
  run_until([] { return false; }, length);
}

void World::run_to(Instant end) { run_for(end - now_); }

::testing::AssertionResult World::finishes(Ticket ticket, Duration limit) {
  if (run_until([&] { return finished(ticket); }, limit)) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << outcome(ticket).id.str() << " has not ended at " << to_seconds(now_ - at(0)) << " s";
}

void World::turn_all_due() {
  network_.advance_to(now_);
  for (int turns = 0;; ++turns) {
    KVL_CHECK(turns < kTurnsAtOnceMax, "an engine asks for ever to be turned at once");
    carry_due_handshakes();
    bool turned = false;
    for (auto& [name, host] : hosts_) {
      if (!host.instance || host.stopped || host.instance->next_deadline(now_) > now_) continue;
      turn(name, host);
      turned = true;
    }
    network_.advance_to(now_);
    if (!turned) return;
  }
}

// The host's loop was given something: the next turn is due at once.
void World::turn_unless_stopped(const std::string& name) {
  if (!is_stopped(name)) turn(name, hosts_.at(name));
}

void World::turn(const std::string& name, Host& host) {
  host.instance->turn(now_);
  for (RequestOutput& output : host.instance->core().take_outputs()) take(name, std::move(output));
  for (Event& event : host.instance->connector().take_events()) {
    mix(static_cast<std::uint64_t>(now_.time_since_epoch().count()));
    for (const std::string_view text :
         {std::string_view(name), event_kind_name(event.kind),
          std::string_view(event.request.str()), std::string_view(event.lease.str()),
          std::string_view(event.peer), std::string_view(event.detail)}) {
      mix(text);
    }
    mix(event.count);
    mix(static_cast<std::uint64_t>(event.length.count()));
    events_.emplace_back(name, std::move(event));
  }
  for (auto& handshake : host.instance->connector().take_handshakes(now_)) {
    begin_handshake(name, std::move(handshake));
  }
}

void World::take(const std::string& name, RequestOutput output) {
  const auto it = tickets_.find({name, output.request});
  if (it == tickets_.end()) {
    ADD_FAILURE() << "an output of a request that is over: " << output.request.str();
    return;
  }
  Outcome& outcome = outcomes_[it->second];
  outcome.text += detokenize(output.new_token_ids);
  mix(outcome.text);
  if (!output.finish_reason) return;
  mix(finish_reason_name(*output.finish_reason));
  outcome.finish_reason = output.finish_reason;
  outcome.error_message = output.error_message;
  if (output.kv_transfer_params) {
    outcome.params = through_doubles(to_json(*output.kv_transfer_params));
  }
  outcome.num_cached_tokens = output.num_cached_tokens;
  outcome.finished_at = now_;
  tickets_.erase(it);
}

Instant World::next_instant() {
  Instant next = network_.next_event();
  for (const auto& [key, pending] : handshakes_) {
    if (!waits_for_stopped(key)) next = earlier(next, pending.due);
  }
  for (auto& [name, host] : hosts_) {
    if (host.instance && !host.stopped) next = earlier(next, host.instance->next_deadline(now_));
  }
  return next;
}

void World::expect_all_back() {
  run_for(std::chrono::seconds(2));
  for (const auto& [name, host] : hosts_) {
    if (!host.instance) continue;
    SCOPED_TRACE(name);
    host.instance->expect_all_back();
  }
}

void World::mix(std::string_view bytes) {
  mix(bytes.size());
  for (const char byte : bytes) mix(static_cast<unsigned char>(byte));
}

// --- handshakes

World::Host* World::host_at(std::uint16_t port) {
  for (auto& [name, host] : hosts_) {
    if (host.port == port) return &hosts_.at(host.answered_by);
  }
  return nullptr;
}

void World::begin_handshake(const std::string& asker,
                            SchedulerConnector::HandshakeToMake handshake) {
  const Host* const host = host_at(handshake.address.port);
  PendingHandshake pending{.due = now_, .request = std::move(handshake.request), .refused = true};
  if (host != nullptr) {
    pending.due = host->behaviour == HandshakeBehaviour::kSilent
                      ? kNever
                      : saturating_add(now_, host->handshake_delay);
    pending.refused = host->behaviour == HandshakeBehaviour::kRefuses;
  }
  // Asked anew: the older call is cancelled.
  handshakes_.insert_or_assign({asker, handshake.address}, std::move(pending));
}

bool World::waits_for_stopped(const HandshakeKey& key) {
  const Host* const answerer = host_at(key.second.port);
  return is_stopped(key.first) || (answerer != nullptr && answerer->stopped);
}

void World::carry_due_handshakes() {
  for (auto it = handshakes_.begin(); it != handshakes_.end();) {
    if (it->second.due > now_ || waits_for_stopped(it->first)) {
      ++it;
      continue;
    }
    const auto taken = handshakes_.extract(it++);
    const auto& [asker, address] = taken.key();
    const PendingHandshake& pending = taken.mapped();
    Host& asking = hosts_.at(asker);
    asking.instance->connector().on_handshake(
        address,
        pending.refused ? error(ErrorCode::kUnavailable, "connection refused")
                        : answer(address, pending.request),
        now_);
    turn(asker, asking);
  }
}

// Everything is carried as text, as by the HTTP server of the other side.
Result<HandshakeReply> World::answer(const PeerAddress& address, const HandshakeRequest& request) {
  Host* const host = host_at(address.port);
  if (host == nullptr || !host->instance) {
    return error(ErrorCode::kUnavailable, "connection refused");
  }
  const auto parsed = parse_handshake_request(to_json(request), host->options.protocol);
  if (!parsed) return std::unexpected(parsed.error());
  const HandshakeReply reply = host->instance->connector().handshake_reply(now_);
  const auto good =
      check_handshake_request(*parsed, reply, host->options.lease.enforce_handshake_compat);
  if (!good) return std::unexpected(good.error());
  return parse_handshake_reply(to_json(reply), request.protocol);
}

}  // namespace kvlease::pairs
