#include <gtest/gtest.h>

#include "cli/status_tables.h"
#include "cli/table.h"

namespace farpage::cli {
namespace {

TEST(Table, ColumnsLineUpAndLinesDoNotEndInSpaces) {
  EXPECT_EQ(format_table({"A", "LONG"}, {{"xyz", "1"}, {"", ""}}), "A    LONG\nxyz  1\n\n");
}

TEST(Table, ControlCharactersOfOthersAreNotPrinted) {
  EXPECT_EQ(format_table({"A"}, {{"x\x1b[2J\n"}}), "A\nx?[2J?\n");
}

TEST(Status, ShowsTheProgramsOfAPager) {
  const serve::TargetStatus sort{"sort", 12, "shm", 8 << 20, 7 << 20, 90 << 20, 1500, 42.26};
  serve::TargetStatus earlier = sort;
  earlier.faults = 500;
  const serve::TargetStatus fresh{"child", 13, "", 0, 0, 0, 3, 0.0};
  const serve::PagerStatus before{7, "farpage", 64 << 20, {{"sort", 11, 0, 16 << 20, {earlier}}}};
  const serve::PagerStatus now{7, "farpage", 64 << 20, {{"sort", 11, 0, 16 << 20, {sort, fresh}}}};
  EXPECT_EQ(pager_text(before, now, Milliseconds(500)),
            "RUN  LOCAL  PROGRAM  PID  LIMIT  RESIDENT  REMOTE  FAULTS/S  P99 US  TRANSPORTS\n"
            "11   16M    sort     12   8M     7M        90M     2000      42.3    shm\n"
            "11   16M    child    13   0      0         0       6         0.0     -\n"
            "\n"
            "runs: 1, processes: 2, local memory: 48M of 64M free\n");
}

TEST(Status, ShowsNodesRegionsAndTotals) {
  coordinator::NodeInfo node;
  node.join.id = NodeId{"n1"};
  node.join.agent_url = "http://127.0.0.1:7071";
  node.join.slab_bytes = uint64_t{64} << 20;
  node.total_slabs = 16;
  node.free_slabs = 12;
  node.last_heartbeat_age = Milliseconds(340);
  for (const auto kind : {rdma::TransportKind::kShm, rdma::TransportKind::kTcp}) {
    node.join.transports.push_back({kind, "somewhere"});
  }
  coordinator::NodeInfo lost = node;
  lost.join.id = NodeId{"n2"};
  lost.state = coordinator::NodeState::kLost;
  coordinator::RegionInfo region;
  region.id = RegionId{"r1"};
  region.name = "sort";
  region.leases.resize(4);
  for (uint32_t i = 0; i < 4; ++i) region.leases[i].slab = SlabIndex{i / 2};
  region.leases[2].stale = true;
  region.leases[3].lost = true;
  region.counters = {{"farpage_faults_total{kind=\"remote\"}", 9},
                     {"farpage_evictions_total{kind=\"written\"}", 7},
                     {"farpage_resident_bytes", uint64_t{3} << 20},
                     {"farpage_remote_bytes", uint64_t{5} << 20}};
  coordinator::RegionInfo idle;  // it has not told its counters
  idle.id = RegionId{"r2"};

  EXPECT_EQ(status_text({node, lost}, {region, idle}),
            "NODE  STATE  TRANSPORTS  FREE  TOTAL  HEARTBEAT  AGENT\n"
            "n1    alive  shm,tcp     768M  1G     0.3s       http://127.0.0.1:7071\n"
            "n2    lost   shm,tcp     768M  1G     0.3s       http://127.0.0.1:7071\n"
            "\n"
            "REGION  NAME  REPLICAS  SLABS  LOST  MEMORY  RESIDENT  REMOTE  FAULTS  WRITTEN\n"
            "r1      sort  1         4      2     256M    3M        5M      9       7\n"
            "r2      -     1         0      0     0       -         -       -       -\n"
            "\n"
            "1 of 2 nodes alive, 768M of 1G free, 2 regions, degraded slabs: 1\n");
  node.join.labels = {{"zone", "a"}, {"rack", "7"}};
  node.lend_bytes = uint64_t{2} << 30;
  const std::string labeled = status_text({node, lost}, {});
  EXPECT_EQ(
      labeled.substr(0, labeled.find("\n\n") + 1),
      "NODE  STATE  TRANSPORTS  FREE  TOTAL     HEARTBEAT  AGENT                  LABELS\n"
      "n1    alive  shm,tcp     768M  1G -> 2G  0.3s       http://127.0.0.1:7071  rack=7,zone=a\n"
      "n2    lost   shm,tcp     768M  1G        0.3s       http://127.0.0.1:7071  -\n");
}

TEST(Status, ShowsWhichNodesLendRoomOfADisk) {
  coordinator::NodeInfo memory;
  memory.join.id = NodeId{"m"};
  memory.join.agent_url = "http://h:1";
  memory.join.slab_bytes = uint64_t{64} << 20;
  memory.join.transports.push_back({rdma::TransportKind::kTcp, "somewhere"});
  memory.total_slabs = 16;
  coordinator::NodeInfo disk = memory;
  disk.join.id = NodeId{"d"};
  disk.join.spill = true;
  disk.free_slabs = 12;
  const std::string text = status_text({memory, disk}, {});
  EXPECT_EQ(text.substr(0, text.find("\n\n") + 1),
            "NODE  STATE  TRANSPORTS  FREE  TOTAL  HEARTBEAT  AGENT       LENDS\n"
            "m     alive  tcp         0     1G     0.0s       http://h:1  memory\n"
            "d     alive  tcp         768M  1G     0.0s       http://h:1  disk\n");
  EXPECT_NE(text.find("2 of 2 nodes alive, 0 of 1G free, 768M of 1G free on disks, 0 regions"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace farpage::cli
