// What server and client share of HTTP/1.1 on the wire: feeding Beast's parsers from a buffer, and
// writing heads. For the .cc files of this room.
#pragma once

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/fields.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "kvlease/base/time.h"
#include "kvlease/runtime/http.h"
#include "kvlease/runtime/loop.h"

namespace kvlease::http_wire {

// How much one read takes at most: of a head, and of a body.
inline constexpr std::size_t kHeadReadBytes = 4 * 1024;
inline constexpr std::size_t kBodyReadBytes = 64 * 1024;

// Parses what `buffer` holds, up to the end of the head unless `parser` is eager, up to the end of
// the message if it is. An incomplete message is not an error. `head_left` is how many bytes the
// head may still have, and is lowered: Beast's own limit is on what it is shown at once, so that a
// head in pieces could be longer than one that came whole. Requires: not eager before the head
// ends.
template <typename Parser>
boost::system::error_code feed(Parser& parser, boost::beast::flat_buffer& buffer,
                               std::size_t& head_left) {
  boost::system::error_code failure;
  while (buffer.size() > 0 && !parser.is_done() && (parser.eager() || !parser.is_header_done())) {
    const bool in_head = !parser.is_header_done();
    if (in_head && head_left == 0) return boost::beast::http::error::header_limit;
    const std::size_t shown = in_head ? std::min(buffer.size(), head_left) : buffer.size();
    const std::size_t used = parser.put(boost::asio::buffer(buffer.cdata().data(), shown), failure);
    buffer.consume(used);
    const bool all_shown = in_head && shown == head_left;
    if (in_head) head_left -= used;
    if (failure == boost::beast::http::error::need_more) {
      return all_shown ? boost::beast::http::error::header_limit : boost::system::error_code{};
    }
    if (failure) return failure;
  }
  return {};
}

// Of Beast's limit, so that it never speaks before feed() does.
inline std::uint32_t beyond(std::size_t head_bytes_max) {
  return static_cast<std::uint32_t>(head_bytes_max + 1);
}

// When a timer that starts in this turn ends; kForever never does.
inline boost::asio::steady_timer::time_point timer_deadline(EventLoop& loop, Duration limit) {
  return boost::asio::steady_timer::time_point(
      saturating_add(loop.now(), limit).time_since_epoch());
}

inline std::string to_string(boost::beast::string_view text) { return {text.data(), text.size()}; }

inline HttpHeaders to_headers(const boost::beast::http::fields& fields) {
  HttpHeaders headers;
  for (const auto& field : fields) {
    headers.add(to_string(field.name_string()), to_string(field.value()));
  }
  return headers;
}

// Headers that belong to one connection, not to the message that is relayed over it (RFC
// 9110, 7.6.1).
inline bool is_of_connection(std::string_view name) {
  constexpr std::string_view kNames[] = {"connection", "content-length",    "keep-alive",
                                         "te",         "transfer-encoding", "upgrade"};
  return std::ranges::any_of(kNames, [&](auto known) { return same_header_name(name, known); });
}

// A control character in a value (only ours could have one: parsed values have none) becomes a
// space, so that no value can start a line of its own.
inline void append_header(std::string& out, std::string_view name, std::string_view value) {
  out.append(name).append(": ");
  for (const char c : value) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
  out += "\r\n";
}

inline void append_headers(std::string& out, const HttpHeaders& headers) {
  for (const HttpHeader& header : headers) {
    if (!is_of_connection(header.name)) append_header(out, header.name, header.value);
  }
}

}  // namespace kvlease::http_wire
