// Implements kv_layout.h: sizes and places.
#include "kvlease/synthetic/kv_layout.h"

#include <string>
#include <string_view>
#include <utility>

#include "kvlease/base/check.h"

namespace kvlease {
namespace {

// What a process can address, on x86-64.
constexpr std::size_t kRankBytesMax = std::size_t{1} << 46;

}  // namespace

Result<void> KvLayout::check() const {
  const std::pair<std::string_view, std::uint32_t> sizes[] = {{"num_layers", num_layers},
                                                              {"num_kv_heads", num_kv_heads},
                                                              {"head_dim", head_dim},
                                                              {"element_bytes", element_bytes},
                                                              {"block_size", block_size},
                                                              {"num_blocks", num_blocks},
                                                              {"tp", tp}};
  for (const auto& [name, value] : sizes) {
    if (value == 0) {
      return error(ErrorCode::kInvalidArgument, std::string(name) + " is 0; it must be positive");
    }
  }
  if (num_kv_heads % tp != 0 && tp % num_kv_heads != 0) {
    return error(ErrorCode::kInvalidArgument,
                 std::to_string(num_kv_heads) + " KV heads do not divide among " +
                     std::to_string(tp) +
                     " ranks: choose a tensor-parallel size that divides them, or a multiple");
  }
  std::size_t bytes = 2;  // of one rank: the factors of rank_bytes(), none of them overflowing
  for (const std::uint32_t factor :
       {head_dim, element_bytes, heads_per_rank(), block_size, num_blocks, num_layers}) {
    if (bytes <= kRankBytesMax) bytes *= factor;
  }
  if (bytes > kRankBytesMax) {
    return error(ErrorCode::kInvalidArgument,
                 "a KV cache of " + std::to_string(num_blocks) + " blocks of " +
                     std::to_string(block_size) + " tokens, in " + std::to_string(num_layers) +
                     " layers of " + std::to_string(num_kv_heads) + " heads of " +
                     std::to_string(head_dim) + " elements of " + std::to_string(element_bytes) +
                     " bytes, has more than " + std::to_string(kRankBytesMax >> 40) +
                     " TiB a rank: choose less of them");
  }
  return {};
}

std::size_t KvLayout::offset(const Place& place) const {
  const std::size_t head = std::size_t{place.value} * heads_per_rank() + place.head_of_rank;
  return place.layer * region_bytes() + place.block.value() * block_len_bytes() +
         head * block_size * head_bytes();
}

std::vector<KvRegion> KvLayout::regions(std::span<const std::byte> memory) const {
  KVL_CHECK(memory.size() == rank_bytes(), "the memory of one rank's KV cache");
  std::vector<KvRegion> regions;
  for (std::uint32_t layer = 0; layer < num_layers; ++layer) {
    regions.push_back({.base_address = reinterpret_cast<std::uint64_t>(
                           memory.subspan(layer * region_bytes()).data()),
                       .block_len_bytes = block_len_bytes()});
  }
  return regions;
}

}  // namespace kvlease
