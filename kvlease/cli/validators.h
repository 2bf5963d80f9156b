// Checks of numbers on the command line that CLI11's own let pass: its Range takes NaN for a number
// within any range, and its unsigned types wrap.
#pragma once

#include <charconv>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "kvlease/base/text.h"

namespace kvlease {

// As CLI11 takes checks: an empty answer for a good text, else what is wrong with it.
using TextCheck = std::function<std::string(const std::string& text)>;

// As a user would write it: 0.001, 86400.
template <typename Number>
std::string number_text(Number number) {
  char text[64];
  return {text, std::to_chars(text, text + sizeof text, number).ptr};
}

template <typename Number>
TextCheck between(Number min, Number max, const char* what) {
  return [=](const std::string& text) -> std::string {
    const std::optional<Number> value = parse_number<Number>(text);
    if (value && *value >= min && *value <= max) return {};
    return "'" + text + "' is no " + what + " from " + number_text(min) + " to " + number_text(max);
  };
}

// What can stand in a header: an empty secret would let everybody in.
inline TextCheck secret() {
  return [](const std::string& text) -> std::string {
    if (!text.empty() && is_printable_ascii(text)) return {};
    return "a secret is printable ASCII and not empty";
  };
}

// A finite number in [min, max].
inline TextCheck number_between(double min, double max) { return between(min, max, "number"); }

// A decimal integer in [min, max].
inline TextCheck integer_between(std::uint64_t min, std::uint64_t max) {
  return between(min, max, "integer");
}

}  // namespace kvlease
