// Implements request.h: names.
#include "kvlease/engine/request.h"

#include "kvlease/base/check.h"

namespace kvlease {

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kError:
      return "error";
  }
  KVL_UNREACHABLE("every reason has a name");
}

}  // namespace kvlease
