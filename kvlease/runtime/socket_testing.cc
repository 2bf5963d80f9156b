// The POSIX calls behind socket_testing.h.
#include "kvlease/runtime/socket_testing.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "kvlease/base/check.h"

namespace kvlease {
namespace {

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

sockaddr* as_sockaddr(sockaddr_in& address) { return reinterpret_cast<sockaddr*>(&address); }

}  // namespace

RawConnection RawConnection::connect(std::uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = loopback(port);
  KVL_CHECK(::connect(fd, as_sockaddr(address), sizeof address) == 0, "the test's server listens");
  return RawConnection(fd);
}

RawConnection::RawConnection(int fd) : fd_(fd) {
  KVL_CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0, "the socket is open");
}

RawConnection::RawConnection(RawConnection&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      received_(std::move(other.received_)),
      ended_(other.ended_) {}

RawConnection::~RawConnection() { close(); }

std::size_t RawConnection::send(std::string_view bytes) {
  const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  return sent > 0 ? static_cast<std::size_t>(sent) : 0;
}

void RawConnection::receive() {
  char bytes[64 * 1024];
  while (!ended_) {
    const ssize_t got = recv(fd_, bytes, sizeof bytes, 0);
    if (got > 0) {
      received_.append(bytes, static_cast<std::size_t>(got));
    } else if (got == 0 || errno != EAGAIN) {
      ended_ = true;
    } else {
      return;
    }
  }
}

const std::string& RawConnection::received() {
  receive();
  return received_;
}

bool RawConnection::ended() {
  receive();
  return ended_;
}

void RawConnection::receive_little() {
  const int bytes = 4096;
  KVL_CHECK(setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes) == 0, "it is a socket");
}

void RawConnection::shutdown_send() { shutdown(fd_, SHUT_WR); }

void RawConnection::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

void RawConnection::reset() {
  const linger now{.l_onoff = 1, .l_linger = 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close();
}

RawListener::RawListener(int backlog) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  KVL_CHECK(bind(fd_, as_sockaddr(address), size) == 0 && listen(fd_, backlog) == 0 &&
                getsockname(fd_, as_sockaddr(address), &size) == 0 &&
                fcntl(fd_, F_SETFL, O_NONBLOCK) == 0,
            "loopback has a free port");
  port_ = ntohs(address.sin_port);
}

RawListener::~RawListener() { ::close(fd_); }

std::optional<RawConnection> RawListener::accept() {
  const int fd = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) return std::nullopt;
  return RawConnection(fd);
}

}  // namespace kvlease
