// What `kvlease demo` tells: the story as it happens, and at the end a table, or the same as JSON.
#include <algorithm>
#include <cstdarg>

#include "kvlease/cli/demo.h"
#include "kvlease/wire/json_fields.h"

namespace kvlease {
namespace {

// Late by more than this, a lease's end would be a bug, not a busy machine.
constexpr double kReclaimSlackSeconds = 1;

}  // namespace

void Demo::print(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(out_, format, arguments);
  va_end(arguments);
  std::fflush(out_);
}

void Demo::say(const std::string& who, const std::string& what) {
  print("%8.3f s  %-7s %s\n", to_seconds(cluster_.now() - begun_), who.c_str(), what.c_str());
}

// One line for what a reader of the story wants to see; the rest is counted only.
void Demo::on_event(const InstanceEvent& event) {
  if (event.instance == "single") return;
  ++events_seen_[event.kind];
  ++events_seen_[event.instance + ' ' + event.kind];
  on_lease_event(event);
  const std::string blocks = std::to_string(event.count) + " blocks";
  char length[32];
  std::snprintf(length, sizeof length, "%.3f s", event.length_seconds);
  if (event.kind == "lease_granted") {
    say(event.instance, "grants " + event.lease + ": " + blocks + " for " + length);
  } else if (event.kind == "lease_ended") {
    say(event.instance, event.lease + " " + event.detail + " after " + length + ": " + blocks +
                            " fenced and freed");
  } else if (event.kind == "handshake_done") {
    say(event.instance, "handshake with " + event.peer);
  } else if (event.kind == "tracking_started") {
    say(event.instance, "keeps " + event.lease + " of " + event.peer + " alive from now on");
  } else if (event.kind == "heartbeat_sent") {
    say(event.instance,
        "heartbeat to " + event.peer + " for " + std::to_string(event.count) + " lease(s)");
  } else if (event.kind == "read_posted") {
    say(event.instance, "reads " + blocks + " of " + event.lease);
  } else if (event.kind == "read_validated") {
    say(event.instance,
        "has " + std::to_string(event.count) + " bytes of " + event.lease + " after " + length);
  } else if (event.kind == "read_rejected" || event.kind == "load_failed" ||
             event.kind == "handshake_failed" || event.kind == "peer_suspect" ||
             event.kind == "backend_down" || event.kind == "backend_up" ||
             (event.kind == "released" && !event.detail.ends_with("not_found"))) {
    say(event.instance, event.kind + ": " + event.detail);
  } else if (event.kind == "retried" || event.kind == "decode_alone" ||
             event.kind == "decoding_elsewhere") {
    say(event.instance, event.request + " " + event.kind + ": " + event.detail);
  }
}

void Demo::on_lease_event(const InstanceEvent& event) {
  if (event.kind == "lease_granted") {
    DemoLease& lease = leases_[event.lease];  // D may have told of it first
    lease.prefill = event.instance;
    lease.granted_at = event.at;
  } else if (event.kind == "tracking_started") {
    leases_[event.lease].decode = event.instance;
  } else if (event.kind == "lease_ended") {
    leases_[event.lease].ended_at = event.at;
  } else if (event.kind == "heartbeat_sent") {
    last_heartbeat_[event.instance] = event.at;
  }
}

std::size_t Demo::identical() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(requests_, [](const auto& request) { return request->identical; }));
}

bool Demo::good() const {
  return identical() == requests_.size() && blocks_free_after_ == blocks_free_before_ &&
         (moved_ > 0 || !options_.failover) && balanced_ &&
         reclaim_seconds_ <= reclaim_bound_seconds_ + kReclaimSlackSeconds;
}

std::string Demo::json() const {
  JsonWriter ends;
  for (const auto& [end, count] : leases_by_end_) ends.integer(end, count);
  JsonWriter json;
  json.integer("requests", requests_.size());
  json.integer("identical", identical());
  json.integer("leases_granted", leases_granted_);
  json.json("leases_by_end", ends.take());
  json.integer("blocks_free_before", blocks_free_before_);
  json.integer("blocks_free_after", blocks_free_after_);
  json.integer("leases_moved", moved_);
  json.number("reclaim_after_kill_s", reclaim_seconds_);
  json.number("reclaim_bound_s", reclaim_bound_seconds_);
  json.number("seconds", seconds_);
  return json.take();
}

void Demo::print_requests() {
  print("\n%-9s %-10s %9s  %s\n", "request", "text", "seconds", "note");
  for (const auto& request : requests_) {
    print("%-9s %-10s %9.3f  %s\n", request->id.c_str(),
          request->identical ? "identical" : "DIFFERENT", request->seconds.value_or(0),
          request->note.c_str());
  }
}

void Demo::print_figures() {
  const auto line = [this](const char* name, const std::string& value) {
    print("%-28s %s\n", name, value.c_str());
  };
  print("\n");
  line("requests", std::to_string(requests_.size()));
  line("identical texts", std::to_string(identical()));
  line("leases granted by P1 and P2", std::to_string(leases_granted_));
  for (const auto& [end, count] : leases_by_end_) line(("  " + end).c_str(), std::to_string(count));
  line("heartbeats sent by D1, D2", std::to_string(events_seen_["heartbeat_sent"]));
  line("read by another decoder", std::to_string(moved_));
  char reclaim[64];
  std::snprintf(reclaim, sizeof reclaim, "%.2f s (bound: %.2f s)", reclaim_seconds_,
                reclaim_bound_seconds_);
  line("blocks back after the kill", reclaim);
  line("blocks free before, after",
       std::to_string(blocks_free_before_) + ", " + std::to_string(blocks_free_after_));
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.1f", seconds_);
  line("seconds", seconds);
}

bool Demo::summarize() {
  if (options_.json) {
    std::printf("%s\n", json().c_str());
  } else {
    print_requests();
    print_figures();
  }
  return good();
}

}  // namespace kvlease
