// Golden frames of top_frame.h: wide, narrow and low, with what does not answer and with texts that
// want to steer the terminal.
#include "kvlease/obs/top_frame.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <vector>

namespace kvlease {
namespace {

LeaseView lease(std::string id, double age_s, double slack_s, std::string reader) {
  return {.id = std::move(id),
          .blocks = 26,
          .age_s = age_s,
          .slack_s = slack_s,
          .duration_s = 30,
          .reader = std::move(reader)};
}

ClusterView cluster() {
  InstanceRow p1{
      .url = "http://127.0.0.1:8100",
      .role = "prefill",
      .engine = "P1",
      .view = InstanceView{
          .engine = "P1",
          .role = "kv_producer",
          .status = "ready",
          .blocks = {.free = 500, .cached = 268, .in_use = 250, .leased = 200, .quarantined = 6},
          .running = 1,
          .known_peers = 2,
          .prompt_tokens = 123'456,
          .generated_tokens = 321,
          .leases_live = 3,
          .leases = {lease("cmpl-a-00000001", 41, 19.5, "D1"),
                     lease("cmpl-b-00000002", 28.7, 1.26, "D1"),
                     lease("cmpl-c-00000003", 0.04, 29.96, "")}}};
  p1.events = {{.number = 9,
                .age_s = 0.04,
                .event = "lease_granted",
                .lease = "cmpl-c-00000003",
                .count = 26,
                .length_s = 30},
               {.number = 8, .age_s = 2, .event = "leases_renewed", .peer = "D1", .count = 2},
               {.number = 7,
                .age_s = 75,
                .event = "lease_ended",
                .lease = "cmpl-0-0000000a",
                .detail = "expired",
                .count = 11,
                .length_s = 30}};
  InstanceRow d1{.url = "http://10.0.0.7:8200",
                 .role = "decode",
                 .engine = "D1",
                 .view = InstanceView{
                     .engine = "D1",
                     .role = "kv_consumer",
                     .status = "draining",
                     .blocks = {.free = 0, .cached = 63, .in_use = 1, .running = 1, .leased = 1},
                     .running = 1,
                     .waiting = 2,
                     .waiting_for_remote_kvs = 1,
                     .known_peers = 1,
                     .prompt_tokens = 1'234'567'890,
                     .cached_tokens = 99'000,
                     .generated_tokens = 12'345'678,
                     .leases_live = 1,
                     .leases = {{.id = "cmpl-h-00000004",
                                 .blocks = 1,
                                 .age_s = 7200,
                                 .slack_s = 400,
                                 .duration_s = 480,
                                 .hold = true}}}};
  d1.events = {{.number = 1,
                .age_s = 1.5,
                .event = "load_failed",
                .request = "cmpl-x-0",
                .peer = "P1",
                .detail = "read_rejected: recompute"}};
  const InstanceRow d2{.url = "http://10.0.0.8:8200",
                       .role = "decode",
                       .problem = "GET http://10.0.0.8:8200/kvlease/v1/leases: Connection refused"};
  return {.instances = {p1, d1, d2}};
}

std::vector<std::string> lines_of(std::string_view frame) {
  std::vector<std::string> lines;
  while (!frame.empty()) {
    const std::size_t end = frame.find('\n');
    lines.emplace_back(frame.substr(0, end));
    frame.remove_prefix(end + 1);
  }
  return lines;
}

TEST(TopFrame, Wide) {
  EXPECT_EQ(top_frame(cluster(), {.width = 100}),
            R"( kvlease top  2 of 3 instances, 4 leases, 201 of 1088 blocks leased
INSTANCE  ADDRESS         ROLE     STATE     BLOCKS               LEASED   RUN  WAIT  CACHED  OUTPUT
P1        127.0.0.1:8100  prefill  ready     ###=!++++........  200/1024     1     0       0     321
D1        10.0.0.7:8200   decode   draining  #++++++++++++++++      1/64     1     3     99k   12.3M
10.0.0.8:8200             decode   GET http://10.0.0.8:8200/kvlease/v1/leases: Connection refused
# leased  = computing  + cached  . free  ! quarantined

LEASE             HELD BY  READER  BLOCKS    AGE  EXPIRES IN
cmpl-b-00000002   P1       D1          26    29s        1.3s
cmpl-a-00000001   P1       D1          26    41s         20s
cmpl-c-00000003   P1       -           26   0.0s         30s
cmpl-h-00000004   D1       hold -       1     2h          7m

  AGO  WHERE  EVENT              WHAT
 0.0s  P1     lease_granted      cmpl-c-00000003  26 blocks  30s
 1.5s  D1     load_failed        cmpl-x-0  P1  read_rejected: recompute
  75s  P1     lease_ended        cmpl-0-0000000a  expired  11 blocks  30s
)");
}

TEST(TopFrame, Narrow) {
  EXPECT_EQ(top_frame(cluster(), {.width = 60}),
            R"( kvlease top  2 of 3 instances, 4 leases, 201 of 1088 blocks
INSTANCE  STATE     BLOCKS                LEASED   RUN  WAIT
P1        ready     ####=!+++++.......  200/1024     1     0
D1        draining  #+++++++++++++++++      1/64     1     3
10.0.0.8:8200  decode   GET http://10.0.0.8:8200/kvlease/v1/
# leased  = computing  + cached  . free  ! quarantined

LEASE             HELD BY  READER  BLOCKS    AGE  EXPIRES IN
cmpl-b-00000002   P1       D1          26    29s        1.3s
cmpl-a-00000001   P1       D1          26    41s         20s
cmpl-c-00000003   P1       -           26   0.0s         30s
cmpl-h-00000004   D1       hold -       1     2h          7m

  AGO  WHERE  EVENT              WHAT
 0.0s  P1     lease_granted      cmpl-c-00000003  26 bloc...
 1.5s  D1     load_failed        cmpl-x-0  P1  read_rejec...
  75s  P1     lease_ended        cmpl-0-0000000a  expired...
)");
}

// Half of what is left for the leases, the nearest to their ends, and for the newest events.
TEST(TopFrame, Low) {
  EXPECT_EQ(top_frame(cluster(), {.width = 80, .height = 14, .interactive = true}),
            R"( kvlease top  2 of 3 instances, 4 leases, 201 of 1088 blocks leased     q quits
INSTANCE  ADDRESS         ROLE     STATE     BLOCKS           LEASED   RUN  WAIT
P1        127.0.0.1:8100  prefill  ready     ###=!+++.....  200/1024     1     0
D1        10.0.0.7:8200   decode   draining  #++++++++++++      1/64     1     3
10.0.0.8:8200             decode   GET http://10.0.0.8:8200/kvlease/v1/leases: C
# leased  = computing  + cached  . free  ! quarantined

LEASE 2/4         HELD BY  READER  BLOCKS    AGE  EXPIRES IN
cmpl-b-00000002   P1       D1          26    29s        1.3s
cmpl-a-00000001   P1       D1          26    41s         20s

  AGO  WHERE  EVENT              WHAT
 0.0s  P1     lease_granted      cmpl-c-00000003  26 blocks  30s
 1.5s  D1     load_failed        cmpl-x-0  P1  read_rejected: recompute
)");
}

TEST(TopFrame, NobodyIsThere) {
  EXPECT_EQ(top_frame({}, {.width = 70}),
            R"( kvlease top  0 of 0 instances, 0 leases, 0 of 0 blocks leased
INSTANCE  ADDRESS   ROLE     STATE     BLOCKS       LEASED   RUN  WAIT

LEASE             HELD BY  READER  BLOCKS    AGE  EXPIRES IN

  AGO  WHERE  EVENT              WHAT
)");
}

TEST(TopFrame, ColorTakesNoRoom) {
  const std::string plain = top_frame(cluster(), {.width = 100, .height = 24});
  std::string colored = top_frame(cluster(), {.width = 100, .height = 24, .color = true});
  EXPECT_NE(colored.find("\x1b[31m"), std::string::npos);  // what does not answer
  for (std::size_t at = 0; (at = colored.find('\x1b')) != std::string::npos;) {
    colored.erase(at, colored.find('m', at) - at + 1);
  }
  std::vector<std::string> bare = lines_of(colored);
  for (std::string& line : bare) line.erase(line.find_last_not_of(' ') + 1);
  EXPECT_EQ(bare, lines_of(plain));
}

TEST(TopFrame, FitsEveryTerminal) {
  for (const std::size_t width : {1u, 2u, 5u, 20u, 39u, 40u, 60u, 79u, 80u, 133u, 500u}) {
    for (const std::size_t height : {1u, 2u, 5u, 8u, 10u, 24u, 100u}) {
      const auto lines = lines_of(top_frame(cluster(), {.width = width, .height = height}));
      EXPECT_LE(lines.size(), height);
      for (const std::string& line : lines) EXPECT_LE(line.size(), width) << line;
    }
  }
}

TEST(TopFrame, NoTextSteersTheTerminal) {  // L44
  const std::string bad =
      "\x1b]0;owned\x07\x1b[2J\r\n\t\x9b"
      "31m\xc2\x9b\xe2\x80\xae<b>";
  ClusterView view = cluster();
  for (InstanceRow& row : view.instances) {
    row.url = row.role = row.engine = row.problem = bad;
    if (row.view) {
      row.view->engine = row.view->status = row.view->role = bad;
      for (LeaseView& lease : row.view->leases) lease.id = lease.reader = bad;
    }
    for (EventView& event : row.events) {
      event.event = event.lease = event.request = event.peer = event.detail = bad;
    }
  }
  view.instances[0].view->leases[0].slack_s = 1e300;
  view.instances[0].view->leases[1].age_s = -1e300;
  view.instances[1].view->blocks = {.free = UINT64_MAX, .in_use = 1, .leased = UINT64_MAX};
  const std::string frame = top_frame(view, {.width = 200});
  for (const char c : frame) EXPECT_TRUE(c == '\n' || (c >= ' ' && c <= '~')) << int{c};
  EXPECT_NE(frame.find("?]0;owned??[2J"), std::string::npos);
  EXPECT_NE(frame.find("never"), std::string::npos);
  for (const std::string& line : lines_of(frame)) EXPECT_LE(line.size(), 200u);
}

TEST(TopFrame, MoreLeasesThanAreListedAreSaid) {
  ClusterView view = cluster();
  view.instances[0].view->leases_live = 12'000;
  const std::string frame = top_frame(view, {.width = 100});
  EXPECT_NE(frame.find("LEASE 4/12k"), std::string::npos) << frame;
}

}  // namespace
}  // namespace kvlease
