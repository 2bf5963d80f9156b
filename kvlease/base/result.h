// How a function says that a peer, the environment or a user got something wrong: Result<T>, a
// value or an Error whose message names the thing, the value and the way out. Bugs of ours use
// check.h.
#pragma once

#include <expected>
#include <string>
#include <utility>

namespace kvlease {

// An error code exists only if a caller reacts to it; everything else is its message.
enum class ErrorCode {
  kInvalidArgument,    // the input is wrong and stays wrong: refuse it (HTTP 400, refused start)
  kInvalidReference,   // kv_transfer_params that do not hold (L28, L52)
  kStaleReference,     // they name an incarnation that is gone (L31)
  kIncompatible,       // a handshake's identity or geometry differs (L30)
  kPermissionDenied,   // not on the allow-list, wrong key (L51)
  kNotFound,           // the named thing does not exist (any more)
  kResourceExhausted,  // a bound is reached: try again later (HTTP 503, L43)
  kUnavailable,        // a peer or a library cannot be reached or loaded
  kTimeout,            // a limit passed (L48)
  kSuspectPeer,        // the transport refused or failed: the peer must be made anew (L21)
};

struct Error {
  ErrorCode code;
  std::string message;
  bool operator==(const Error&) const = default;
};

template <typename T>
using Result = std::expected<T, Error>;

inline std::unexpected<Error> error(ErrorCode code, std::string message) {
  return std::unexpected<Error>(Error{code, std::move(message)});
}

}  // namespace kvlease
