// Compares what a state machine's table says with the committed text under kvlease/core/snapshots.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "kvlease/core/transition_table.h"

namespace kvlease {

// Fails the running test when snapshots/<file> is not `text`; with KVL_UPDATE_SNAPSHOTS=1 in the
// environment it writes the file instead.
void expect_snapshot(std::string_view file, const std::string& text);

// Both snapshots of one machine: every state × event as <machine>.txt, the picture as
// <machine>.dot.
template <typename State, typename Event, typename StateName, typename EventName>
void expect_transition_snapshots(std::string_view machine,
                                 std::span<const Transition<State, Event>> table,
                                 std::size_t state_count, std::size_t event_count,
                                 StateName state_name, EventName event_name) {
  const std::string name(machine);
  expect_snapshot(name + ".txt",
                  describe_transitions(table, state_count, event_count, state_name, event_name));
  expect_snapshot(name + ".dot", graph_transitions(machine, table, state_name, event_name));
}

}  // namespace kvlease
