// Lets an operator be told of each kind of trouble at most once a minute (H07).
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "kvlease/base/time.h"

namespace kvlease {

class RareWarnings {
 public:
  // Whether a warning of this kind may be given now; if so, the next one may after a minute.
  bool may_warn(std::string_view kind, Instant now) {
    const auto [it, is_new] = next_.try_emplace(std::string(kind), now);
    if (now < it->second) return false;
    it->second = now + kInterval;
    return true;
  }

 private:
  static constexpr Duration kInterval = std::chrono::minutes{1};
  std::map<std::string, Instant> next_;  // by kind
};

}  // namespace kvlease
