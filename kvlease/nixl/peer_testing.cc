// Both ends of the second process, and main(): `nixl_tests --nixl-peer` is the peer.
#include "kvlease/nixl/peer_testing.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <string>
#include <string_view>
#include <thread>

#include "kvlease/base/check.h"
#include "kvlease/nixl/nixl_testing.h"

namespace kvlease::nixl {
namespace {

constexpr const char* kPeerFlag = "--nixl-peer";

void write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    KVL_CHECK(written > 0, "the other process takes what is written");
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

Bytes read_exactly(int fd, std::size_t size) {
  Bytes bytes(size);
  for (std::size_t have = 0; have < size;) {
    const ssize_t got = read(fd, bytes.data() + have, size - have);
    KVL_CHECK(got > 0, "the other process says what was asked");
    have += static_cast<std::size_t>(got);
  }
  return bytes;
}

// A frame is its length as u32, then the bytes.
void write_frame(int fd, std::span<const std::byte> bytes) {
  ByteWriter writer;
  writer.put_bytes(bytes);
  write_all(fd, writer.bytes());
}

Bytes read_frame(int fd) {
  const Bytes length = read_exactly(fd, sizeof(std::uint32_t));
  return read_exactly(fd, ByteReader(length).get<std::uint32_t>());
}

bool input_ended(int fd) {
  pollfd waiting{.fd = fd, .events = 0, .revents = 0};
  return ::poll(&waiting, 1, 0) > 0 && (waiting.revents & POLLHUP) != 0;
}

int run_peer() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // even a stopped peer must not outlive its test
  const Library* library = library_for_test();
  if (library == nullptr) return EXIT_FAILURE;
  TestAgent agent = make_test_agent(*library, "peer/0/" + std::to_string(getpid()) + ".0",
                                    PeerProcess::kMemoryBytes, 1u << 20);
  fill_pattern(agent.memory, 1);
  ByteWriter hello;
  hello.put(agent.pieces(agent.memory.size()).front().address);
  hello.put_raw(agent.transport->local_metadata().value());
  write_frame(STDOUT_FILENO, hello.bytes());

  const AgentName other = agent.transport->add_peer(read_frame(STDIN_FILENO)).value();
  while (!input_ended(STDIN_FILENO)) {
    for (const Notification& notif : agent.transport->take_notifs()) {
      if (notif.sender == other) (void)agent.transport->send_notif(other, notif.payload);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return EXIT_SUCCESS;
}

}  // namespace

PeerProcess::PeerProcess() {
  std::array<int, 2> to_peer{};
  std::array<int, 2> from_peer{};
  KVL_CHECK(pipe2(to_peer.data(), O_CLOEXEC) == 0, "pipes can be made");
  KVL_CHECK(pipe2(from_peer.data(), O_CLOEXEC) == 0, "pipes can be made");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to_peer[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, from_peer[1], STDOUT_FILENO);
  std::string program = "/proc/self/exe";
  std::string flag = kPeerFlag;
  std::array<char*, 3> arguments{program.data(), flag.data(), nullptr};
  const int failure =
      posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments.data(), environ);
  KVL_CHECK(failure == 0, "the test program can be started again");
  posix_spawn_file_actions_destroy(&actions);
  close(to_peer[0]);
  close(from_peer[1]);
  input_ = to_peer[1];
  output_ = from_peer[0];

  const Bytes hello = read_frame(output_);
  hello_.region = {.address = ByteReader(hello).get<std::uint64_t>(), .length_bytes = kMemoryBytes};
  hello_.metadata.assign(hello.begin() + sizeof(std::uint64_t), hello.end());
}

PeerProcess::~PeerProcess() {
  kill_and_wait();
  close(input_);
  close(output_);
}

void PeerProcess::introduce(std::span<const std::byte> metadata) { write_frame(input_, metadata); }

void PeerProcess::signal(int number) { kill(pid_, number); }

void PeerProcess::kill_and_wait() {
  if (pid_ < 0) return;
  signal(SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

}  // namespace kvlease::nixl

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == kvlease::nixl::kPeerFlag) {
    return kvlease::nixl::run_peer();
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
