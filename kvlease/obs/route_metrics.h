// What the routing proxy tells Prometheus. docs/metrics.md lists the families.
#pragma once

#include <cstddef>
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

// What a router's renewal of a lease found (L2).
enum class RenewResult : std::uint8_t {
  kRenewed,
  kUnknown,  // D has read it, as a rule
  kFailed,   // P could not be told
};
std::string_view renew_result_name(RenewResult result);

// How a request went on whose first way did not work.
enum class RetryKind : std::uint8_t {
  kOtherPrefill,  // P was busy
  kOtherDecode,   // the same lease, another D (H12)
  kNewPair,       // a second prefill
};
std::string_view retry_kind_name(RetryKind kind);

// Why the router itself answered 503.
enum class RefusalCause : std::uint8_t {
  kDraining,
  kMaxRequests,
  kDecodeShare,  // every decoder has its share of leased blocks (F14)
};
std::string_view refusal_cause_name(RefusalCause cause);

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
  void on_retried(RetryKind kind);
  void on_refused(RefusalCause cause);
  void on_released(ReleaseResult result, std::size_t leases);
  void on_renewed(RenewResult result, std::size_t leases);
  // The client got the first byte of D's answer, `since_arrival` after its request arrived.
  void on_first_byte(Duration since_arrival);

  // A backend's state, when it changes and once at the start.
  void set_backend(const BackendHealth& health);

  // Requests under way at an instance, and leases that the router keeps alive, when scraped.
  void set_outstanding(std::string_view url, BackendRole role, std::size_t requests);
  void set_bridged(std::size_t leases);
  // Blocks of the first that requests for the second pin, as the router counts them.
  void set_pinned(std::string_view prefill_url, std::string_view decode_url, std::size_t blocks);

  // Prometheus text format 0.0.4.
  std::string scrape() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvlease
