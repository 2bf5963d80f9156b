// Implements conversations.h.
#include "kvlease/route/conversations.h"

#include <algorithm>
#include <utility>

#include "kvlease/base/check.h"
#include "kvlease/wire/kv_transfer_params.h"

namespace kvlease {
namespace {

constexpr Duration kKeepMax = std::chrono::seconds{450};

}  // namespace

Duration keep_params_for(std::string_view params) {
  const auto parsed = parse_kv_transfer_params(params, params.size());
  if (!parsed || !parsed->kvlease) return kKeepMax;
  const std::chrono::milliseconds held(parsed->kvlease->lease_duration_ms);
  return std::min<Duration>(kKeepMax, held / 16 * 15);
}

void ConversationStore::put(const std::string& conversation, std::string params, Instant now) {
  KVL_CHECK(entries_max_ > 0, "a store has room");
  if (const auto old = by_conversation_.find(conversation); old != by_conversation_.end()) {
    erase(old);
  }
  if (entries_.size() >= entries_max_) {
    erase(by_conversation_.find(entries_.begin()->second.conversation));
  }
  const Instant until = saturating_add(now, keep_params_for(params));
  by_conversation_.emplace(conversation, next_);
  entries_.emplace(next_++, Entry{conversation, std::move(params), until});
}

std::optional<std::string> ConversationStore::take(const std::string& conversation, Instant now) {
  const auto it = by_conversation_.find(conversation);
  if (it == by_conversation_.end()) return {};
  Entry entry = std::move(entries_.at(it->second));
  erase(it);
  if (now >= entry.until) return {};
  return std::move(entry.params);
}

void ConversationStore::erase(std::map<std::string, std::uint64_t>::iterator it) {
  entries_.erase(it->second);
  by_conversation_.erase(it);
}

}  // namespace kvlease
