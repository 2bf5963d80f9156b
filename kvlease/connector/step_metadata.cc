// Encodes and decodes the step's values. One list of fields per struct serves both directions, so
// they cannot drift apart; the byte form is internal to one engine and carries no version.
#include "kvlease/connector/step_metadata.h"

#include <concepts>
#include <tuple>
#include <type_traits>

namespace kvlease {
namespace {

template <typename T, typename Struct>
concept Like = std::same_as<std::remove_const_t<T>, Struct>;

auto fields(Like<KvRegion> auto& v) {
  return std::tie(v.base_address, v.block_len_bytes, v.kind, v.device);
}
auto fields(Like<RankMetadata> auto& v) {
  return std::tie(v.rank, v.agent_name, v.agent_metadata, v.num_blocks, v.regions,
                  v.entries_address, v.entries_count);
}
auto fields(Like<PeerToAdd> auto& v) { return std::tie(v.peer, v.engine, v.block_size, v.ranks); }
auto fields(Like<RecvRequest> auto& v) {
  return std::tie(v.request, v.peer, v.lease, v.slot, v.word, v.local_block_ids,
                  v.remote_block_ids);
}
auto fields(Like<ProbedLease> auto& v) { return std::tie(v.lease, v.slot, v.word); }
auto fields(Like<HeartbeatInfo> auto& v) {
  return std::tie(v.peer, v.leases, v.probes, v.interval, v.late);
}
auto fields(Like<CompletionToSend> auto& v) { return std::tie(v.peer, v.lease); }
auto fields(Like<LeaseGrant> auto& v) {
  return std::tie(v.id, v.slot, v.word, v.remaining, v.extension, v.lifetime_max, v.observed);
}
auto fields(Like<LeaseEndOrder> auto& v) { return std::tie(v.id, v.end); }
auto fields(Like<ConnectorMetadata> auto& v) {
  return std::tie(v.peers_to_remove, v.peers_to_add, v.reqs_to_recv, v.completions_to_send,
                  v.heartbeat_by_engine, v.reqs_in_batch, v.reqs_not_processed, v.reqs_to_send,
                  v.leases_to_end, v.leases_to_renew);
}
auto fields(Like<LeaseEnded> auto& v) {
  return std::tie(v.id, v.end, v.slot_mismatch, v.readers_done, v.readers_expected, v.held, v.left,
                  v.silent);
}
auto fields(Like<LeaseWait> auto& v) { return std::tie(v.needed, v.late); }
auto fields(Like<FailedRecv> auto& v) { return std::tie(v.request, v.failure); }
auto fields(Like<LostLease> auto& v) { return std::tie(v.peer, v.lease); }
auto fields(Like<SuspectPeer> auto& v) { return std::tie(v.peer, v.reason); }
auto fields(Like<Counters> auto& v) { return std::tie(v.values()); }
auto fields(Like<Event> auto& v) {
  return std::tie(v.kind, v.request, v.lease, v.peer, v.detail, v.count, v.length, v.left, v.silent,
                  v.posting, v.descriptors);
}
auto fields(Like<WorkerOutput> auto& v) {
  return std::tie(v.finished_sending, v.finished_recving, v.failed_recving, v.quiet_recving,
                  v.lost_leases, v.suspect_peers, v.renewed_metadata, v.counters, v.events,
                  v.lease_waits);
}

class Encoder {
 public:
  template <typename T>
  void put(const T& value) {
    if constexpr (std::is_enum_v<T>) {
      out_.put(static_cast<std::underlying_type_t<T>>(value));
    } else if constexpr (std::integral<T>) {
      out_.put(value);
    } else {
      std::apply([this](const auto&... field) { (this->put(field), ...); }, fields(value));
    }
  }
  template <typename Tag>
  void put(const StringId<Tag>& id) {
    out_.put_string(id.str());
  }
  template <typename Tag, typename Rep>
  void put(const IntId<Tag, Rep>& id) {
    out_.put(id.value());
  }
  void put(const Duration& length) { out_.put(length.count()); }
  void put(const std::string& text) { out_.put_string(text); }
  void put(const Bytes& bytes) { out_.put_bytes(bytes); }
  template <typename T, std::size_t N>
  void put(const std::array<T, N>& values) {
    for (const T& value : values) put(value);
  }
  template <typename T>
  void put(const std::vector<T>& values) {
    out_.put(static_cast<std::uint32_t>(values.size()));
    for (const T& value : values) put(value);
  }
  Bytes take() { return out_.take(); }

 private:
  ByteWriter out_;
};

class Decoder {
 public:
  explicit Decoder(std::span<const std::byte> in) : in_(in) {}

  template <typename T>
  void get(T& value) {
    if constexpr (std::is_enum_v<T>) {
      value = static_cast<T>(in_.get<std::underlying_type_t<T>>());
    } else if constexpr (std::integral<T>) {
      value = in_.get<T>();
    } else {
      std::apply([this](auto&... field) { (this->get(field), ...); }, fields(value));
    }
  }
  template <typename Tag>
  void get(StringId<Tag>& id) {
    id = StringId<Tag>(in_.get_string());
  }
  template <typename Tag, typename Rep>
  void get(IntId<Tag, Rep>& id) {
    id = IntId<Tag, Rep>(in_.get<Rep>());
  }
  void get(Duration& length) { length = Duration(in_.get<Duration::rep>()); }
  void get(std::string& text) { text = in_.get_string(); }
  void get(Bytes& bytes) {
    const auto raw = in_.get_bytes();
    bytes.assign(raw.begin(), raw.end());
  }
  template <typename T, std::size_t N>
  void get(std::array<T, N>& values) {
    for (T& value : values) get(value);
  }
  template <typename T>
  void get(std::vector<T>& values) {
    values.resize(in_.get_count(1));
    for (T& value : values) get(value);
  }
  bool finished() const { return in_.finished(); }

 private:
  ByteReader in_;
};

template <typename T>
Bytes encode_value(const T& value) {
  Encoder encoder;
  encoder.put(value);
  return encoder.take();
}

template <typename T>
Result<T> decode_value(std::span<const std::byte> bytes, const char* what) {
  Decoder decoder(bytes);
  T value;
  decoder.get(value);
  if (!decoder.finished()) {
    return error(ErrorCode::kInvalidArgument,
                 std::string(what) + " of " + std::to_string(bytes.size()) +
                     " bytes is cut short or too long: both halves must be of one build");
  }
  return value;
}

}  // namespace

Bytes encode(const ConnectorMetadata& metadata) { return encode_value(metadata); }
Bytes encode(const WorkerOutput& output) { return encode_value(output); }

Result<ConnectorMetadata> decode_connector_metadata(std::span<const std::byte> bytes) {
  return decode_value<ConnectorMetadata>(bytes, "step metadata");
}
Result<WorkerOutput> decode_worker_output(std::span<const std::byte> bytes) {
  return decode_value<WorkerOutput>(bytes, "worker output");
}

}  // namespace kvlease
