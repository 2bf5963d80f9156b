// What the protocol counts, by cause (L5, L43, L44): one enum, one table of names, one bag of
// numbers that every part fills and metrics print.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kvlease {

enum class Counter : std::uint8_t {
  // P: notifications received.
  kHeartbeatsReceived,  // messages
  kLeasesRenewed,       // ids that named a live lease
  // Ids that named no live lease (L5), by cause:
  kHeartbeatEarly,       // of a request that is still in batch
  kHeartbeatExpired,     // its lease has expired
  kHeartbeatEnded,       // its lease has ended otherwise
  kHeartbeatUnknown,     // never granted here, or ended long ago
  kCompletionsReceived,  // reports counted towards a lease
  kCompletionUnknown,  // for an id that is not live (L5); NIXL metrics: notifications after expiry
  kCompletionDuplicate,     // a second report of the same rank (L7)
  kCompletionMismatch,      // another n than the first of its group (L7)
  kHeartbeatHold,           // named a hold that is not renewable (L39)
  kCompletionEarly,         // kept for a grant to come (L8)
  kCompletionEarlyDropped,  // bound or 60 s reached, or no grant came (L8)
  kNotifMalformed,          // not of the wire's forms (L44)
  kNotifEmptyId,            // empty pieces of a heartbeat (L17)
  kSlotMismatch,            // a grant whose word differed (L23)
  kStallGraces,             // turns that began late (L47)
  kSignsLate,               // the first sign for a lease that had expired
  kSignsForeign,            // from readers that keep an interval of their own (L28)
  // D: sent and read.
  kHeartbeatsSent,  // messages
  kCompletionsSent,
  kSendFailures,
  kReadsPosted,
  kReadsValidated,
  kReadsRejected,     // the entry's word had changed (L24)
  kReadsFailed,       // transport error
  kReadsTimedOut,     // kv_load_timeout (L48)
  kUnvalidatedReads,  // foreign peers (L28)
  kProbes,
  kLeasesLost,                // found by the probe (L25)
  kHeartbeatsUnacknowledged,  // (L25)
  kHandshakesStarted,
  kHandshakesDone,
  kHandshakesFailed,
  kPeersForgotten,     // engine_ttl (L32)
  kPeersSuspect,       // (L21)
  kInvalidReferences,  // (L52, L28)
  kStaleReferences,    // (L31)
  kLateReports,        // reports about requests that are gone (L35)
  kRefusedAdmissions,  // 503 for slots or budget (L22, L43)
  kHoldsNotKept,       // no slot or no room in their budget (L39, L49)
  kHoldsDeclined,      // not read: about to end, by its owner's clock (L41)
  kHoldsTooShort,      // not read: fewer tokens than kv_recompute_threshold (L42)
  kFallbacks,          // a remote prefill that was computed here instead (H07)
  kEventsDropped,      // nobody took them (L43)
  kCount,
};

inline constexpr std::size_t kCounterCount = static_cast<std::size_t>(Counter::kCount);

// The name used in metrics and events, snake_case without prefix, for example `heartbeat_unknown`.
std::string_view counter_name(Counter counter);

class Counters {
 public:
  void add(Counter counter, std::uint64_t n) { values_[static_cast<std::size_t>(counter)] += n; }
  void add(Counter counter) { add(counter, 1); }
  std::uint64_t value(Counter counter) const { return values_[static_cast<std::size_t>(counter)]; }
  void merge(const Counters& other) {
    for (std::size_t i = 0; i < kCounterCount; ++i) values_[i] += other.values_[i];
  }
  const std::array<std::uint64_t, kCounterCount>& values() const { return values_; }
  std::array<std::uint64_t, kCounterCount>& values() { return values_; }
  bool operator==(const Counters&) const = default;

 private:
  std::array<std::uint64_t, kCounterCount> values_{};
};

}  // namespace kvlease
