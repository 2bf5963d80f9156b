// The names of a lease's ends.
#include "kvlease/core/lease.h"

#include "kvlease/base/check.h"

namespace kvlease {

std::string_view lease_end_name(LeaseEnd end) {
  switch (end) {
    case LeaseEnd::kCompleted:
      return "completed";
    case LeaseEnd::kReleased:
      return "released";
    case LeaseEnd::kRecalled:
      return "recalled";
    case LeaseEnd::kDrained:
      return "drained";
    case LeaseEnd::kExpired:
      return "expired";
  }
  KVL_UNREACHABLE("a lease's end has a name");
}

}  // namespace kvlease
