// What decode instances hold for the next turns, by conversation, so that a client need not carry
// it: bounded, kept for less than they hold it, used once (L39).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "kvlease/base/time.h"

namespace kvlease {

class ConversationStore {
 public:
  // At the bound the one that was put in first gives way (L43). Requires: entries_max > 0.
  explicit ConversationStore(std::size_t entries_max) : entries_max_(entries_max) {}

  // Keeps the kv_transfer_params (JSON) of a conversation's last answer, in place of older ones.
  void put(const std::string& conversation, std::string params, Instant now);

  // Takes them out; nullopt when there are none, or they have been kept for too long.
  std::optional<std::string> take(const std::string& conversation, Instant now);

  std::size_t size() const { return by_conversation_.size(); }

 private:
  struct Entry {
    std::string conversation;
    std::string params;
    Instant until{};
  };
  void erase(std::map<std::string, std::uint64_t>::iterator it);

  std::size_t entries_max_;
  std::map<std::uint64_t, Entry> entries_;  // in order of arrival
  std::map<std::string, std::uint64_t> by_conversation_;
  std::uint64_t next_ = 0;
};

// How long such params are worth keeping: 15/16 of what their holder says, as vLLM's own proxy does
// (450 s of 480 s), and no longer than 450 s.
Duration keep_params_for(std::string_view params);

}  // namespace kvlease
