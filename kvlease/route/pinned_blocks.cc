// Implements pinned_blocks.h.
#include "kvlease/route/pinned_blocks.h"

#include <cmath>
#include <utility>

#include "kvlease/base/check.h"

namespace kvlease {
namespace {

constexpr double kNewestWeight = 1.0 / 16;  // so that one odd request does not change the picture

}  // namespace

PinnedBlocks::PinnedBlocks(std::size_t prefills, std::size_t decodes, double share)
    : decodes_(decodes), share_(share), budgets_(prefills), pinned_(prefills * decodes) {
  KVL_CHECK(prefills > 0 && decodes > 0, "a role has at least one instance");
  KVL_CHECK(share > 0 && share <= 1, "a share is a part of the whole");
}

void PinnedBlocks::set_budget(std::size_t prefill, std::size_t blocks) {
  budgets_[prefill] = blocks;
}

bool PinnedBlocks::fits(std::size_t prefill, std::size_t decode, std::size_t blocks) const {
  const std::size_t before = pinned(prefill, decode);
  if (budgets_[prefill] == 0 || before == 0) return true;
  const double most = share_ * static_cast<double>(budgets_[prefill]);
  return static_cast<double>(before + blocks) <= most;
}

std::size_t PinnedBlocks::pinned(std::size_t prefill, std::size_t decode) const {
  return pinned_[prefill * decodes_ + decode];
}

std::size_t PinnedBlocks::estimate(std::size_t body_bytes) const {
  return static_cast<std::size_t>(std::ceil(blocks_per_byte_ * static_cast<double>(body_bytes)));
}

void PinnedBlocks::learn(std::size_t body_bytes, std::size_t blocks) {
  KVL_CHECK(body_bytes > 0, "a body has bytes");
  const double seen = static_cast<double>(blocks) / static_cast<double>(body_bytes);
  const double weight = blocks_per_byte_ == 0 ? 1 : kNewestWeight;
  blocks_per_byte_ += weight * (seen - blocks_per_byte_);
}

PinnedBlocks::Pin::Pin(PinnedBlocks& owner, std::size_t prefill, std::size_t decode,
                       std::size_t blocks)
    : cell_(&owner.pinned_[prefill * owner.decodes_ + decode]), blocks_(blocks) {
  *cell_ += blocks_;
}

PinnedBlocks::Pin::Pin(Pin&& other) noexcept
    : cell_(std::exchange(other.cell_, nullptr)), blocks_(std::exchange(other.blocks_, 0)) {}

PinnedBlocks::Pin& PinnedBlocks::Pin::operator=(Pin&& other) noexcept {
  const Pin old(std::move(*this));
  cell_ = std::exchange(other.cell_, nullptr);
  blocks_ = std::exchange(other.blocks_, 0);
  return *this;
}

PinnedBlocks::Pin::~Pin() {
  if (cell_ != nullptr) *cell_ -= blocks_;
}

}  // namespace kvlease
