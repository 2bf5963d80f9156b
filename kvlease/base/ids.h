// Strong ids: an engine's own request id, the lease's id on the wire, an engine, a block and a slot
// are different types, so that one cannot be sent where another is meant (L20; scenario C04).
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace kvlease {

template <typename Tag>
class StringId {
 public:
  StringId() = default;
  explicit StringId(std::string text) : text_(std::move(text)) {}
  const std::string& str() const { return text_; }
  bool empty() const { return text_.empty(); }
  auto operator<=>(const StringId&) const = default;

 private:
  std::string text_;
};

template <typename Tag, typename Rep>
class IntId {
 public:
  using rep = Rep;
  constexpr IntId() = default;
  explicit constexpr IntId(Rep value) : value_(value) {}
  constexpr Rep value() const { return value_; }
  constexpr auto operator<=>(const IntId&) const = default;

 private:
  Rep value_ = 0;
};

// A request inside one engine. Never leaves it (L20).
using RequestId = StringId<struct RequestIdTag>;
// A lease, named by the engine that holds the blocks: `remote_request_id` in kv_transfer_params and
// the id in every notification (L45).
using LeaseId = StringId<struct LeaseIdTag>;
// One scheduler plus its ranks: `engine_id`. Contains no '/' (L7).
using EngineId = StringId<struct EngineIdTag>;
// A transport agent's name, `<engine_id>/<rank>/<incarnation>.<agent number>` (L7).
using AgentName = StringId<struct AgentNameTag>;

// A block of the engine's KV cache, the same number on every rank.
using BlockId = IntId<struct BlockIdTag, std::uint32_t>;
// A place in the table of lease entries (L22).
using SlotId = IntId<struct SlotIdTag, std::uint32_t>;
// One start of one engine, random (L30, L31).
using Incarnation = IntId<struct IncarnationTag, std::uint64_t>;
// A tensor-parallel rank, 0 … tp - 1.
using Rank = IntId<struct RankTag, std::uint32_t>;
// A token of the vocabulary.
using TokenId = std::uint32_t;

}  // namespace kvlease

template <typename Tag>
struct std::hash<kvlease::StringId<Tag>> {
  std::size_t operator()(const kvlease::StringId<Tag>& id) const noexcept {
    return std::hash<std::string>{}(id.str());
  }
};

template <typename Tag, typename Rep>
struct std::hash<kvlease::IntId<Tag, Rep>> {
  std::size_t operator()(kvlease::IntId<Tag, Rep> id) const noexcept {
    return std::hash<Rep>{}(id.value());
  }
};
