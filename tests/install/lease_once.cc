// The README's example: one lease is granted, renewed, and expires exactly when it should. The host
// brings the time and the memory; nothing here waits, reads a clock or opens a socket.
#include <array>
#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>

#include "kvlease/core/lease_table.h"

int main() {
  using namespace std::chrono_literals;

  // In an engine this memory is registered, so that readers can check a lease one-sidedly.
  std::array<kvlease::LeaseEntry, 8> memory{};
  kvlease::LeaseEntries entries(memory, 0x5eed);
  kvlease::LeaseTable leases(kvlease::LeaseTableLimits{}, entries);

  kvlease::Instant now = kvlease::kTimeZero;
  const kvlease::LeaseId id("chat-42-0badcafe");
  leases.grant({.id = id,
                .slot = kvlease::kFirstLeaseSlot,
                .word = entries.word(kvlease::kFirstLeaseSlot),
                .remaining = 30s,
                .extension = 20s},
               now);

  now += 25s;
  const std::array<std::string_view, 1> heartbeat{id.str()};
  leases.renew(heartbeat, now);  // live until 45 s

  while (leases.live() > 0) {
    now = leases.next_deadline();  // a host does its other work until then
    leases.sweep(now);
  }
  for (const kvlease::LeaseEnded& ended : leases.take_ended()) {
    const std::string end(kvlease::lease_end_name(ended.end));
    std::printf("%s %s after %.0f s\n", ended.id.str().c_str(), end.c_str(),
                kvlease::to_seconds(ended.held));
  }
  return now == kvlease::kTimeZero + 45s ? 0 : 1;
}
