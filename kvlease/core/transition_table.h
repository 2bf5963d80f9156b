// A state machine as a table in plain sight: rows of (state, event, next state). What has no row is
// illegal and is a value, not a crash. The same table makes the code, the committed snapshot of
// every state × event, and the picture.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace kvlease {

template <typename State, typename Event>
struct Transition {
  State from;
  Event on;
  State to;
};

// The state that `event` leads to, nullopt when the pair is illegal. O(rows).
template <typename State, typename Event>
constexpr std::optional<State> next_state(std::span<const Transition<State, Event>> table,
                                          State state, Event event) {
  for (const Transition<State, Event>& row : table) {
    if (row.from == state && row.on == event) return row.to;
  }
  return std::nullopt;
}

// One line a state × event, `state event -> state` or `state event -> illegal`, for snapshots.
// Requires: enumerators 0 … count - 1; name functions that cover them.
template <typename State, typename Event, typename StateName, typename EventName>
std::string describe_transitions(std::span<const Transition<State, Event>> table,
                                 std::size_t state_count, std::size_t event_count,
                                 StateName state_name, EventName event_name) {
  std::string text;
  for (std::size_t s = 0; s < state_count; ++s) {
    for (std::size_t e = 0; e < event_count; ++e) {
      const auto state = static_cast<State>(s);
      const auto event = static_cast<Event>(e);
      const std::optional<State> to = next_state(table, state, event);
      text += std::string(state_name(state)) + ' ' + std::string(event_name(event)) + " -> " +
              std::string(to ? state_name(*to) : std::string_view("illegal")) + '\n';
    }
  }
  return text;
}

// The same table as a picture in the Graphviz language, one edge a row.
template <typename State, typename Event, typename StateName, typename EventName>
std::string graph_transitions(std::string_view machine,
                              std::span<const Transition<State, Event>> table, StateName state_name,
                              EventName event_name) {
  std::string text = "digraph " + std::string(machine) + " {\n";
  for (const Transition<State, Event>& row : table) {
    text += "  " + std::string(state_name(row.from)) + " -> " + std::string(state_name(row.to)) +
            " [label=\"" + std::string(event_name(row.on)) + "\"];\n";
  }
  return text + "}\n";
}

}  // namespace kvlease
