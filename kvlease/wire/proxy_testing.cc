// Implements proxy_testing.h.
#include "kvlease/wire/proxy_testing.h"

#include <boost/json.hpp>

#include "kvlease/base/check.h"

namespace kvlease {
namespace {

boost::json::value as_doubles(const boost::json::value& value) {
  if (value.is_number()) return value.to_number<double>();
  if (const auto* array = value.if_array()) {
    boost::json::array result;
    for (const boost::json::value& element : *array) result.push_back(as_doubles(element));
    return result;
  }
  if (const auto* object = value.if_object()) {
    boost::json::object result;
    for (const auto& [name, field] : *object) result.emplace(name, as_doubles(field));
    return result;
  }
  return value;
}

}  // namespace

std::string through_doubles(std::string_view json) {
  boost::json::error_code problem;
  const boost::json::value value = boost::json::parse({json.data(), json.size()}, problem);
  KVL_CHECK(!problem, "the test's JSON is valid");
  return boost::json::serialize(as_doubles(value));
}

}  // namespace kvlease
