// Little-endian reader and writer over bytes: how values of the step metadata, the lease entries
// and the sealed reference are laid out. The reader never reads past its end; one failed read makes
// every later one fail, so a decoder checks once.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvlease {

static_assert(std::endian::native == std::endian::little, "kvlease runs on little-endian machines");

using Bytes = std::vector<std::byte>;

inline std::span<const std::byte> as_byte_span(std::string_view text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}
inline std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class ByteWriter {
 public:
  template <std::integral T>
  void put(T value) {
    const std::size_t end = out_.size();
    out_.resize(end + sizeof value);
    std::memcpy(out_.data() + end, &value, sizeof value);
  }
  void put_raw(std::span<const std::byte> bytes) {
    out_.insert(out_.end(), bytes.begin(), bytes.end());
  }
  // A length as u32, then the bytes.
  void put_bytes(std::span<const std::byte> bytes) {
    put(static_cast<std::uint32_t>(bytes.size()));
    put_raw(bytes);
  }
  void put_string(std::string_view text) { put_bytes(as_byte_span(text)); }

  const Bytes& bytes() const { return out_; }
  Bytes take() { return std::move(out_); }

 private:
  Bytes out_;
};

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> in) : in_(in) {}

  template <std::integral T>
  T get() {
    T value{};
    if (const auto raw = take(sizeof value); ok_) std::memcpy(&value, raw.data(), sizeof value);
    return value;
  }
  // A view into the input: a length as u32, then that many bytes.
  std::span<const std::byte> get_bytes() { return take(get<std::uint32_t>()); }
  std::string get_string() { return std::string(as_text(get_bytes())); }
  // A count as u32 whose elements take at least `element_bytes_min` bytes each in what is left; 0
  // and failed when they cannot fit, so that no count from outside makes us reserve memory.
  std::size_t get_count(std::size_t element_bytes_min) {
    const std::size_t count = get<std::uint32_t>();
    if (count * element_bytes_min > in_.size()) ok_ = false;
    return ok_ ? count : 0;
  }

  bool ok() const { return ok_; }
  // True when every read succeeded and nothing is left over.
  bool finished() const { return ok_ && in_.empty(); }

 private:
  std::span<const std::byte> take(std::size_t size) {
    if (!ok_ || size > in_.size()) {
      ok_ = false;
      return {};
    }
    const auto head = in_.first(size);
    in_ = in_.subspan(size);
    return head;
  }

  std::span<const std::byte> in_;
  bool ok_ = true;
};

}  // namespace kvlease
