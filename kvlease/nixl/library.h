// Finds and loads NIXL's C library at run time. kvlease builds and starts without it; where it is
// missing, the error says what was tried and how to install it.
#pragma once

#include <string>

#include "kvlease/base/result.h"
#include "kvlease/nixl/capi.h"

namespace kvlease::nixl {

struct LibraryOptions {
  // A file, or a directory that holds the library or an unzipped wheel (`--nixl-path`). Empty: the
  // environment's KVLEASE_NIXL_PATH; without it .deps/nixl of the source tree, then the places
  // where pip installs packages.
  std::string explicit_path;
};

// A loaded library. It stays loaded until the process ends, for its threads and plugins do too.
struct Library {
  std::string path;
  capi::Functions functions;
};

// Loads the library and checks that it is a real one that has every function that we call.
// Errors: kUnavailable when no candidate is usable.
// Threads: call it before others start: it sets UCX_MEM_EVENTS=n in the environment, unless that is
// set, so that UCX does not hook memory calls (it need not: our registrations outlive the agent).
Result<Library> load_library(const LibraryOptions& options);

}  // namespace kvlease::nixl
