// Implements seal.h with libsodium's generichash, which is BLAKE2b.
#include "kvlease/wire/seal.h"

#include <sodium/crypto_generichash.h>
#include <sodium/utils.h>

#include "kvlease/base/bytes.h"
#include "kvlease/base/check.h"

namespace kvlease {
namespace {

const unsigned char* as_sodium(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

// BLAKE2b-128 of what is put in; keyed when `key` is not empty.
class Blake2b {
 public:
  explicit Blake2b(std::span<const std::byte> key) {
    const int status = crypto_generichash_init(
        &state_, key.empty() ? nullptr : as_sodium(key.data()), key.size(), sizeof(Digest));
    KVL_CHECK(status == 0, "libsodium takes keys and digests of these sizes");
  }

  void put(std::span<const std::byte> bytes) {
    const int status = crypto_generichash_update(&state_, as_sodium(bytes.data()), bytes.size());
    KVL_CHECK(status == 0, "a started hash takes any bytes");
  }

  Digest finish() {
    Digest digest{};
    const int status = crypto_generichash_final(
        &state_, reinterpret_cast<unsigned char*>(digest.data()), digest.size());
    KVL_CHECK(status == 0, "a hash is finished once");
    return digest;
  }

 private:
  crypto_generichash_state state_{};
};

}  // namespace

Digest digest_tokens(std::span<const TokenId> tokens, std::span<const std::string> cache_keys) {
  Blake2b hash({});
  hash.put(std::as_bytes(tokens));  // in memory as on the wire: little-endian (bytes.h)
  for (const std::string& cache_key : cache_keys) {
    ByteWriter writer;
    writer.put_string(cache_key);
    hash.put(writer.bytes());
  }
  return hash.finish();
}

// L52
Seal seal_reference(const SealKey& key, const SealedReference& reference) {
  ByteWriter writer;
  writer.put_string(reference.engine_id.str());
  writer.put(reference.incarnation.value());
  writer.put_string(reference.remote_request_id.str());
  writer.put(reference.remote_num_tokens);
  writer.put(static_cast<std::uint32_t>(reference.remote_block_ids.size()));
  for (const std::vector<BlockId>& group : reference.remote_block_ids) {
    writer.put(static_cast<std::uint32_t>(group.size()));
    for (const BlockId block : group) writer.put(std::uint64_t{block.value()});
  }
  writer.put(std::uint64_t{reference.slot.value()});
  writer.put(reference.word);
  writer.put(reference.lease_duration_ms);
  writer.put(reference.heartbeat_interval_ms);
  writer.put(reference.digest_tokens);
  writer.put_raw(reference.digest);
  Blake2b hash(key);
  hash.put(writer.bytes());
  return hash.finish();
}

bool seal_matches(const Seal& a, const Seal& b) {
  return sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace kvlease
