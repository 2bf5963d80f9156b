// Tests of seal.h: golden vectors, computed with Python's hashlib, and what a seal tells apart
// (L52).
#include "kvlease/wire/seal.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <functional>

#include "kvlease/base/hex.h"

namespace kvlease {
namespace {

template <std::size_t kSize>
std::array<std::byte, kSize> counting_bytes() {
  std::array<std::byte, kSize> bytes{};
  for (std::size_t i = 0; i < kSize; ++i) bytes[i] = static_cast<std::byte>(i);
  return bytes;
}

std::vector<BlockId> blocks(std::initializer_list<std::uint32_t> ids) {
  std::vector<BlockId> result;
  for (const std::uint32_t id : ids) result.emplace_back(id);
  return result;
}

SealedReference example() {
  return {.engine_id = EngineId("pre-7f_dp0"),
          .incarnation = Incarnation(0x0123456789abcdef),
          .remote_request_id = LeaseId("cmpl-9b1d-0-3c5e7a90"),
          .remote_num_tokens = 37,
          .remote_block_ids = {blocks({41, 42, 43}), {}},
          .slot = SlotId(5),
          .word = 0xc0ffee0000000007,
          .lease_duration_ms = 30'000,
          .heartbeat_interval_ms = 5'000,
          .digest_tokens = 37,
          .digest = counting_bytes<16>()};
}

TEST(Digest, GoldenVectors) {  // L52
  const std::vector<TokenId> tokens{1, 2, 70'000};
  const std::vector<std::string> cache_keys{"lora", ""};
  // python3: from hashlib import blake2b; from struct import pack; t = pack('<3I', 1, 2, 70000)
  // blake2b(b'', digest_size=16).hexdigest()
  EXPECT_EQ(to_hex(digest_tokens({}, {})), "cae66941d9efbd404e4d88758ea67670");
  // blake2b(t, digest_size=16).hexdigest()
  EXPECT_EQ(to_hex(digest_tokens(tokens, {})), "64add97e97a8e23d60a4ea405258b5c1");
  // blake2b(t + pack('<I', 4) + b'lora' + pack('<I', 0), digest_size=16).hexdigest()
  EXPECT_EQ(to_hex(digest_tokens(tokens, cache_keys)), "6094ef3eccf6ac237ae7a49dddec2fb1");
}

TEST(Digest, CacheKeysDoNotRunTogether) {
  const std::vector<std::string> a{"ab", "c"};
  const std::vector<std::string> b{"a", "bc"};
  EXPECT_NE(digest_tokens({}, a), digest_tokens({}, b));
}

TEST(Seal, GoldenVector) {  // L52
  // python3: from hashlib import blake2b; from struct import pack
  // u = lambda v: pack('<Q', v); s = lambda t: pack('<I', len(t)) + t
  // blake2b(s(b'pre-7f_dp0') + u(0x0123456789abcdef) + s(b'cmpl-9b1d-0-3c5e7a90') + u(37) +
  //   pack('<2I', 2, 3) + u(41) + u(42) + u(43) + pack('<I', 0) + u(5) + u(0xc0ffee0000000007) +
  //   u(30000) + u(5000) + u(37) + bytes(range(16)), digest_size=16,
  //   key=bytes(range(32))).hexdigest()
  EXPECT_EQ(to_hex(seal_reference(counting_bytes<32>(), example())),
            "c6e68125446ed51dd48387f1c01989b1");
}

TEST(Seal, F01_AnyEditedFieldBreaksTheSeal) {
  const SealKey key = counting_bytes<32>();
  const Seal sealed = seal_reference(key, example());
  EXPECT_TRUE(seal_matches(sealed, seal_reference(key, example())));
  const std::vector<std::pair<const char*, std::function<void(SealedReference&)>>> edits{
      {"engine_id", [](SealedReference& r) { r.engine_id = EngineId("pre-7f_dp1"); }},
      {"incarnation", [](SealedReference& r) { r.incarnation = Incarnation(1); }},
      {"remote_request_id",
       [](SealedReference& r) { r.remote_request_id = LeaseId("cmpl-9b1d-0-3c5e7a91"); }},
      {"remote_num_tokens", [](SealedReference& r) { r.remote_num_tokens = 38; }},
      {"a block id", [](SealedReference& r) { r.remote_block_ids[0][2] = BlockId(44); }},
      {"the order of blocks",
       [](SealedReference& r) { std::swap(r.remote_block_ids[0][0], r.remote_block_ids[0][1]); }},
      {"a block in another group",
       [](SealedReference& r) { r.remote_block_ids = {blocks({41, 42}), blocks({43})}; }},
      {"a group less", [](SealedReference& r) { r.remote_block_ids.pop_back(); }},
      {"slot", [](SealedReference& r) { r.slot = SlotId(6); }},
      {"word", [](SealedReference& r) { ++r.word; }},
      {"lease_duration_ms", [](SealedReference& r) { r.lease_duration_ms = 480'000; }},
      {"heartbeat_interval_ms", [](SealedReference& r) { r.heartbeat_interval_ms = 5'001; }},
      {"digest_tokens", [](SealedReference& r) { r.digest_tokens = 36; }},
      {"digest", [](SealedReference& r) { r.digest[15] = std::byte{0}; }},
  };
  for (const auto& [what, edit] : edits) {
    SealedReference edited = example();
    edit(edited);
    EXPECT_FALSE(seal_matches(sealed, seal_reference(key, edited))) << what;
  }
  SealKey other_key = key;
  other_key[31] = std::byte{0};
  EXPECT_FALSE(seal_matches(sealed, seal_reference(other_key, example()))) << "key";
}

TEST(Seal, StringsDoNotRunTogether) {
  SealedReference a = example();
  a.engine_id = EngineId("p");
  a.remote_request_id = LeaseId("qr");
  SealedReference b = example();
  b.engine_id = EngineId("pq");
  b.remote_request_id = LeaseId("r");
  EXPECT_NE(seal_reference(counting_bytes<32>(), a), seal_reference(counting_bytes<32>(), b));
}

TEST(Seal, OneFlippedBitNeverMatches) {
  EXPECT_TRUE(rc::check([] {
    Seal seal{};
    for (std::byte& byte : seal) byte = static_cast<std::byte>(*rc::gen::inRange(0, 256));
    RC_ASSERT(seal_matches(seal, seal));
    Seal flipped = seal;
    flipped[*rc::gen::inRange<std::size_t>(0, seal.size())] ^= std::byte{1}
                                                               << *rc::gen::inRange(0, 8);
    RC_ASSERT(!seal_matches(seal, flipped));
  }));
}

}  // namespace
}  // namespace kvlease
