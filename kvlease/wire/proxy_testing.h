// A proxy between P and D, for tests: what it may do to a JSON body on its way.
#pragma once

#include <string>
#include <string_view>

namespace kvlease {

// The same JSON after a proxy that holds its numbers as doubles. Requires: valid JSON.
std::string through_doubles(std::string_view json);

}  // namespace kvlease
