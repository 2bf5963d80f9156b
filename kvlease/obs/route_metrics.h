// What the routing proxy tells Prometheus. docs/metrics.md lists the families.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "kvlease/base/time.h"

namespace kvlease {

// How a client's request ended, as the client saw it.
enum class RouteOutcome : std::uint8_t {
  kCompleted,    // D's whole answer was passed on
  kClientError,  // 4xx, the router's own or an instance's
  kUnavailable,  // 502, 503 or 504: no instance could, or the router would not
  kCutShort,     // D was lost after the client had seen a byte
  kClientGone,   // the client closed first
};
std::string_view route_outcome_name(RouteOutcome outcome);

// Why D computed the prompt itself.
enum class DecodeAloneCause : std::uint8_t {
  kPrefillError,        // P answered neither 2xx nor 4xx
  kPrefillUnreachable,  // no connection to P, or it broke
  kPrefillTimeout,      // P took longer than the limit
  kNoParams,            // P answered without kv_transfer_params
};
std::string_view decode_alone_cause_name(DecodeAloneCause cause);

// What became of a lease that the router gave back (L10).
enum class ReleaseResult : std::uint8_t {
  kReleased,
  kNotFound,  // it had ended already
  kFailed,    // P could not be told; the lease expires
};
std::string_view release_result_name(ReleaseResult result);

enum class BackendRole : std::uint8_t { kPrefill, kDecode };
std::string_view backend_role_name(BackendRole role);

struct BackendHealth {
  std::string_view url;
  BackendRole role = BackendRole::kPrefill;
  bool is_up = false;
};

class RouteMetrics {
 public:
  RouteMetrics();
  RouteMetrics(const RouteMetrics&) = delete;
  RouteMetrics& operator=(const RouteMetrics&) = delete;
  ~RouteMetrics();

  // A client's request arrives, and ends. Requires: each that ended had begun.
  void on_request_begun();
  void on_request_ended(RouteOutcome outcome);

  void on_prefilled();  // P answered with kv_transfer_params
  void on_decoded_alone(DecodeAloneCause cause);
  void on_retried();  // another pair is tried
  void on_released(ReleaseResult result);
  // The client got the first byte of D's answer, `since_arrival` after its request arrived.
  void on_first_byte(Duration since_arrival);

  // A backend's state, when it changes and once at the start.
  void set_backend(const BackendHealth& health);

  // Prometheus text format 0.0.4.
  std::string scrape() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvlease
