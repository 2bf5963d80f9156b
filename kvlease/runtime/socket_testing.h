// Plain TCP sockets on loopback for tests that must say exactly which bytes go over a connection,
// and when it ends.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvlease {

// One end of a connection. Nothing blocks once it is connected.
class RawConnection {
 public:
  // Connects to 127.0.0.1; the listener need not have accepted yet.
  static RawConnection connect(std::uint16_t port);
  explicit RawConnection(int fd);
  RawConnection(RawConnection&& other) noexcept;
  RawConnection& operator=(RawConnection&&) = delete;
  ~RawConnection();

  // Sends what the other side takes; returns how much that was.
  std::size_t send(std::string_view bytes);
  // Everything that has been received so far.
  const std::string& received();
  bool received_contains(std::string_view text) {
    return received().find(text) != std::string::npos;
  }
  // The other side has ended the connection, orderly or not.
  bool ended();

  // From now on the kernel takes no more than some KiB that received() has not fetched.
  void receive_little();

  void shutdown_send();
  void close();
  // Ends the connection by RST.
  void reset();

 private:
  void receive();

  int fd_;
  std::string received_;
  bool ended_ = false;
};

class RawListener {
 public:
  // Listens on a free port of 127.0.0.1.
  explicit RawListener(int backlog);
  RawListener(const RawListener&) = delete;
  RawListener& operator=(const RawListener&) = delete;
  ~RawListener();

  std::uint16_t port() const { return port_; }
  // The next connection, if one is there.
  std::optional<RawConnection> accept();

 private:
  int fd_;
  std::uint16_t port_ = 0;
};

}  // namespace kvlease
