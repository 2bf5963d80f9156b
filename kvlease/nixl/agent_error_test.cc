// What the adapter makes of a NIXL that refuses, fails, hangs or finishes late, and that it gives
// back all it took; over the shim, so every answer is literal.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvlease/nixl/agent.h"
#include "kvlease/nixl/shim/shim.h"

namespace kvlease::nixl {
namespace {

using capi::Status;
using std::chrono::microseconds;
using std::chrono::milliseconds;

class AgentErrors : public testing::Test {
 protected:
  AgentErrors() {
    *shim_ = ShimControl{};
    start();
  }
  ~AgentErrors() override {
    agent_.reset();
    for (const auto& [maker, count] : shim_->live) EXPECT_EQ(count, 0) << maker;
    EXPECT_EQ(shim_->violations, std::vector<std::string>{});
  }

  static ShimControl* find_shim() {
    void* handle = dlopen(KVL_NIXL_SHIM, RTLD_NOW | RTLD_LOCAL);
    return reinterpret_cast<ShimControlFunction>(dlsym(handle, "kvlease_shim_control"))();
  }

  Result<std::unique_ptr<Transport>> make() {
    return make_agent(library_, {.name = AgentName("reader/0/1.0"), .post_bytes_max = 100});
  }

  void start() {
    agent_ = make().value();
    peer_ = agent_->add_peer(as_byte_span("source/0/1.0")).value();
    local_ = agent_->prepare_local(pieces_).value();
    remote_ = agent_->prepare_remote(peer_, pieces_).value();
  }

  // One request per piece: two do not fit into a post.
  Result<TransferHandle> read(std::vector<std::uint32_t> pieces) {
    return agent_->post_read(local_, remote_, {.local = pieces, .remote = pieces});
  }

  void script(const std::string& function, std::deque<Status> answers) {
    shim_->answers[function] = std::move(answers);
  }
  auto count(const std::string& call) const { return std::ranges::count(shim_->calls, call); }

  const std::vector<MemoryRegion> pieces_{{.address = 1000, .length_bytes = 60},
                                          {.address = 2000, .length_bytes = 60},
                                          {.address = 3000, .length_bytes = 60},
                                          {.address = 4000, .length_bytes = 10}};
  ShimControl* const shim_ = find_shim();
  const Library library_ = load_library({.explicit_path = KVL_NIXL_SHIM}).value();
  std::unique_ptr<Transport> agent_;
  AgentName peer_;
  DescListHandle local_;
  DescListHandle remote_;
};

TEST_F(AgentErrors, ARefusedStartLeavesNothingBehind) {
  agent_.reset();
  for (const char* function : {"create_configured_agent", "create_params", "create_backend",
                               "create_opt_args", "opt_args_add_backend", "create_notif_map"}) {
    script(function, {Status::kBackend});
    const auto agent = make();
    ASSERT_FALSE(agent) << function;
    EXPECT_EQ(agent.error().code, ErrorCode::kUnavailable);
    EXPECT_NE(agent.error().message.find("reader/0/1.0"), std::string::npos);
    for (const auto& [maker, live] : shim_->live) EXPECT_EQ(live, 0) << function << ": " << maker;
    shim_->answers.clear();
  }
}

TEST_F(AgentErrors, RegistrationAndMetadataNameTheRefusal) {
  script("register_mem", {Status::kBackend});
  EXPECT_EQ(agent_->register_memory(pieces_[0]).error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(agent_->register_memory({.address = 1, .length_bytes = 0}).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(agent_->register_memory({.address = ~0ull, .length_bytes = 2}).error().code,
            ErrorCode::kInvalidArgument);
  script("get_local_md", {Status::kBackend});
  EXPECT_EQ(agent_->local_metadata().error().code, ErrorCode::kUnavailable);
}

TEST_F(AgentErrors, RefusedMetadataAndALoadedPeerAreIncompatible) {
  EXPECT_EQ(agent_->add_peer(as_byte_span("source/0/1.0")).error().code, ErrorCode::kIncompatible);
  script("load_remote_md", {Status::kInvalidParam});
  EXPECT_EQ(agent_->add_peer(as_byte_span("other/0/1.0")).error().code, ErrorCode::kIncompatible);
}

TEST_F(AgentErrors, UnpreparableListsAreRefused) {
  script("prep_xfer_dlist", {Status::kNotFound});
  EXPECT_EQ(agent_->prepare_local(pieces_).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(agent_->prepare_remote(peer_, pieces_).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(agent_->prepare_remote(AgentName("unknown"), pieces_).error().code,
            ErrorCode::kNotFound);
  shim_->answers.clear();
  EXPECT_EQ(agent_->prepare_local({}).error().code, ErrorCode::kInvalidArgument);
  const std::vector<MemoryRegion> mixed{
      pieces_[0], {.address = 1, .length_bytes = 1, .kind = MemoryKind::kVram, .device = 0}};
  EXPECT_EQ(agent_->prepare_local(mixed).error().code, ErrorCode::kInvalidArgument);
}

// L21
TEST_F(AgentErrors, ARefusedPostIsASuspectPeerAndStartsNothing) {
  script("post_xfer_req", {Status::kBackend});
  EXPECT_EQ(read({0, 1}).error().code, ErrorCode::kSuspectPeer);
  EXPECT_EQ(shim_->live["make_xfer_req"], 0);
  EXPECT_EQ(count("release_unfinished"), 0);
}

TEST_F(AgentErrors, ARefusedRequestPostsNothing) {
  script("make_xfer_req", {Status::kSuccess, Status::kNotFound});
  EXPECT_EQ(read({0, 1}).error().code, ErrorCode::kSuspectPeer);
  EXPECT_EQ(shim_->live["make_xfer_req"], 0);
  EXPECT_EQ(count("post_xfer_req"), 0);
}

TEST_F(AgentErrors, AReadThatFinishesInsideItsPostIsDoneOnlyInPoll) {
  script("post_xfer_req", {Status::kSuccess});
  const TransferHandle transfer = read({0, 1}).value();
  EXPECT_EQ(count("post_xfer_req"), 1);
  EXPECT_EQ(agent_->poll(transfer), TransferState::kDone);
  EXPECT_EQ(count("post_xfer_req"), 2);
  EXPECT_EQ(count("get_xfer_status"), 0);
  agent_->release(transfer);
}

TEST_F(AgentErrors, SmallPiecesShareAPost) {
  script("post_xfer_req", {Status::kSuccess});
  agent_->release([&] {
    const TransferHandle transfer = read({3, 3, 3, 3, 0}).value();  // exactly 100 bytes
    EXPECT_EQ(agent_->poll(transfer), TransferState::kDone);
    return transfer;
  }());
  EXPECT_EQ(count("post_xfer_req"), 1);
}

TEST_F(AgentErrors, EachPollPostsOneMore) {
  script("get_xfer_status", {Status::kInProgress});
  const TransferHandle transfer = read({0, 1, 2}).value();
  EXPECT_EQ(count("post_xfer_req"), 1);
  EXPECT_EQ(agent_->poll(transfer), TransferState::kInProgress);
  EXPECT_EQ(count("post_xfer_req"), 2);
  EXPECT_EQ(agent_->poll(transfer), TransferState::kInProgress);
  EXPECT_EQ(agent_->poll(transfer), TransferState::kInProgress);
  EXPECT_EQ(count("post_xfer_req"), 3);
}

// L26
TEST_F(AgentErrors, AFailedReadIsFinalOnlyWhenAllItsPostsAre) {
  const TransferHandle transfer = read({0, 1, 2}).value();
  script("get_xfer_status", {Status::kInProgress});
  script("post_xfer_req", {Status::kBackend});
  for (int polls = 0; polls < 10; ++polls) {
    EXPECT_EQ(agent_->poll(transfer), TransferState::kInProgress);
  }
  EXPECT_EQ(count("post_xfer_req"), 2);  // the third was given up
  EXPECT_EQ(count("release_unfinished"), 0);
  script("get_xfer_status", {Status::kSuccess});
  EXPECT_EQ(agent_->poll(transfer), TransferState::kError);
  EXPECT_EQ(agent_->poll(transfer), TransferState::kError);
  agent_->release(transfer);
}

TEST_F(AgentErrors, AFailedStatusIsAnErrorForEver) {
  script("get_xfer_status", {Status::kBackend, Status::kSuccess});
  const TransferHandle transfer = read({0}).value();
  EXPECT_EQ(agent_->poll(transfer), TransferState::kError);
  EXPECT_EQ(agent_->poll(transfer), TransferState::kError);
  EXPECT_EQ(count("get_xfer_status"), 1);
  agent_->release(transfer);
}

// L26
TEST_F(AgentErrors, AHungReadStaysInProgressAndMayFinishLate) {
  script("get_xfer_status", {Status::kInProgress});
  const TransferHandle transfer = read({0}).value();
  for (int polls = 0; polls < 1000; ++polls) {
    ASSERT_EQ(agent_->poll(transfer), TransferState::kInProgress);
  }
  EXPECT_EQ(shim_->live["make_xfer_req"], 1);
  script("get_xfer_status", {Status::kSuccess});
  EXPECT_EQ(agent_->poll(transfer), TransferState::kDone);
  agent_->release(transfer);
}

TEST_F(AgentErrors, OnlyTheEndOfTheAgentReleasesAnUnfinishedRead) {
  script("get_xfer_status", {Status::kInProgress});
  const TransferHandle transfer = read({0, 1, 2}).value();
  EXPECT_EQ(agent_->poll(transfer), TransferState::kInProgress);
  EXPECT_DEATH(agent_->release(transfer), "a released read is final");
  EXPECT_EQ(count("release_unfinished"), 0);
  agent_.reset();
  EXPECT_EQ(count("release_unfinished"), 2);
}

// L26, L31
TEST_F(AgentErrors, ARemovedPeerIsInvalidatedWhenItsLastReadIsFinal) {
  script("get_xfer_status", {Status::kInProgress});
  const TransferHandle transfer = read({0}).value();
  agent_->remove_peer(peer_);
  agent_->remove_peer(peer_);
  EXPECT_EQ(count("invalidate_remote_md"), 0);
  EXPECT_EQ(shim_->live["prep_xfer_dlist"], 1);  // the local list
  EXPECT_EQ(agent_->send_notif(peer_, {}).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(agent_->prepare_remote(peer_, pieces_).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(agent_->add_peer(as_byte_span(peer_.str())).error().code, ErrorCode::kUnavailable);

  script("get_xfer_status", {Status::kSuccess});
  EXPECT_EQ(agent_->poll(transfer), TransferState::kDone);
  EXPECT_EQ(count("invalidate_remote_md"), 1);
  EXPECT_EQ(agent_->add_peer(as_byte_span(peer_.str())), peer_);
  EXPECT_DEATH((void)read({0}), "after its peer was removed");
  agent_->release_list(remote_);
  agent_->release(transfer);
}

TEST_F(AgentErrors, AQuietPeerIsInvalidatedAtOnce) {
  agent_->remove_peer(peer_);
  EXPECT_EQ(count("invalidate_remote_md"), 1);
  agent_->remove_peer(AgentName("unknown"));
  EXPECT_EQ(count("invalidate_remote_md"), 1);
}

// L21
TEST_F(AgentErrors, ARefusedNotificationIsASuspectPeer) {
  const Bytes largest(8192);
  EXPECT_TRUE(agent_->send_notif(peer_, largest));
  EXPECT_EQ(agent_->send_notif(peer_, Bytes(8193)).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(agent_->send_notif(AgentName("unknown"), {}).error().code, ErrorCode::kNotFound);
  script("gen_notif", {Status::kBackend});
  EXPECT_EQ(agent_->send_notif(peer_, largest).error().code, ErrorCode::kSuspectPeer);
  script("get_notifs", {Status::kBackend});
  EXPECT_TRUE(agent_->take_notifs().empty());
}

// L11
TEST_F(AgentErrors, NextPollBacksOffUntilSomethingMoves) {
  Instant now = kTimeZero + std::chrono::seconds(5);
  EXPECT_EQ(agent_->next_poll(false, now), now + milliseconds(1));
  EXPECT_EQ(agent_->next_poll(false, now), now + milliseconds(1));

  script("get_xfer_status", {Status::kInProgress});
  const TransferHandle transfer = read({0}).value();
  for (const int delay_us : {20, 40, 80, 160, 320, 640, 1000, 1000}) {
    const Instant next = agent_->next_poll(true, now);
    EXPECT_EQ(next, now + microseconds(delay_us));
    EXPECT_EQ(agent_->next_poll(true, now + microseconds(1)), next);
    now = next;
    EXPECT_EQ(agent_->poll(transfer), TransferState::kInProgress);
  }
  script("get_xfer_status", {Status::kSuccess});
  EXPECT_EQ(agent_->poll(transfer), TransferState::kDone);
  EXPECT_EQ(agent_->next_poll(true, now), now + microseconds(20));
  agent_->release(transfer);
}

}  // namespace
}  // namespace kvlease::nixl
