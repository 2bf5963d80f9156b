// Checks of numbers on the command line that CLI11's own let pass: its Range takes NaN for a number
// within any range, and its unsigned types wrap.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <string>
#include <system_error>

namespace kvlease {

// A finite number in [min, max].
inline CLI::Validator number_between(double min, double max) {
  const auto check = [min, max](std::string& text) -> std::string {
    double value = 0;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool whole = problem == std::errc{} && end == text.data() + text.size();
    if (whole && value >= min && value <= max) return {};
    return "'" + text + "' is no number from " + std::to_string(min) + " to " + std::to_string(max);
  };
  return {check, "NUMBER"};
}

// A decimal integer in [min, max].
inline CLI::Validator integer_between(std::uint64_t min, std::uint64_t max) {
  const auto check = [min, max](std::string& text) -> std::string {
    std::uint64_t value = 0;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool whole = problem == std::errc{} && end == text.data() + text.size();
    if (whole && value >= min && value <= max) return {};
    return "'" + text + "' is no integer from " + std::to_string(min) + " to " +
           std::to_string(max);
  };
  return {check, "INTEGER"};
}

}  // namespace kvlease
