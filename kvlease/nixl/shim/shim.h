// Controls a stand-in for libnixl_capi.so that moves no byte: a test scripts what its functions
// answer (refuse, stay in progress, finish late) and reads what was called and what was given back.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "kvlease/nixl/capi.h"

namespace kvlease::nixl {

struct ShimControl {
  bool is_stub = false;
  // By function name without its prefix: the answers of the next calls, in order; the last one
  // stays. Without an entry post_xfer_req answers kInProgress and all others kSuccess.
  std::map<std::string, std::deque<capi::Status>> answers;
  // Every call that took effect on a transfer or a peer, by function name.
  std::vector<std::string> calls;
  // Objects that were made and not given back, by the function that makes them.
  std::map<std::string, int> live;
  // What real NIXL answers with undefined behaviour.
  std::vector<std::string> violations;
};

// The exported function `kvlease_shim_control` has this type.
using ShimControlFunction = ShimControl* (*)();

}  // namespace kvlease::nixl
