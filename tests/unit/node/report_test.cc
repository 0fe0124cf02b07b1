#include "node/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace farpage::node {
namespace {

NodeReport example() {
  NodeReport report;
  report.id = NodeId{"n1"};
  report.incarnation = 99;
  report.joined = true;
  report.slab_bytes = 1 << 26;
  report.slabs = {5, 2, 1};
  report.addresses = {{rdma::TransportKind::kTcp, "10.0.0.2:7072"}};
  rdma::HostCounters counters;
  counters.reads = 11;
  counters.writes = 12;
  counters.bytes_read = 13;
  counters.bytes_written = 14;
  counters.bytes_saved = 9;
  counters.refused = 15;
  counters.malformed = 16;
  counters.peers = 17;
  report.transports = {{rdma::TransportKind::kTcp, counters}};
  return report;
}

// docs/operations.md lists these; a rename breaks dashboards.
TEST(NodeReport, MetricsHaveTheirPublishedNames) {
  const std::string text = prometheus_text(example());
  for (const char* line :
       {"farpage_node_info{node=\"n1\",version=\"" FARPAGE_VERSION "\"} 1", "farpage_node_joined 1",
        "farpage_node_leaving 0", "farpage_node_slab_bytes 67108864",
        "farpage_node_slabs{state=\"free\"} 5", "farpage_node_slabs{state=\"leased\"} 2",
        "farpage_node_slabs{state=\"scrubbing\"} 1",
        "farpage_node_reads_total{transport=\"tcp\"} 11",
        "farpage_node_writes_total{transport=\"tcp\"} 12",
        "farpage_node_read_bytes_total{transport=\"tcp\"} 13",
        "farpage_node_written_bytes_total{transport=\"tcp\"} 14",
        "farpage_node_saved_bytes_total{transport=\"tcp\"} 9",
        "farpage_node_refused_total{transport=\"tcp\"} 15",
        "farpage_node_malformed_total{transport=\"tcp\"} 16",
        "farpage_node_peers{transport=\"tcp\"} 17"})
    EXPECT_NE(text.find(std::string(line) + "\n"), std::string::npos) << line << "\n" << text;
}

TEST(NodeReport, HeartbeatCountersAreThoseOfTheMetrics) {
  const std::string text = prometheus_text(example());
  const coordinator::Counters counters = counters_of(example());
  EXPECT_EQ(counters.size(), 8U);
  for (const auto& [name, value] : counters)
    EXPECT_NE(text.find(name + " " + std::to_string(value) + "\n"), std::string::npos) << name;
}

TEST(NodeReport, StatusIsJsonEvenWithANameThatIsNotUtf8) {
  NodeReport report = example();
  report.id = NodeId{"n\xff"};
  const auto status = nlohmann::json::parse(status_json(report), nullptr, false);
  ASSERT_TRUE(status.is_object());
  EXPECT_EQ(status["slabs"]["free"], 5);
  EXPECT_EQ(status["transports"][0]["address"], "10.0.0.2:7072");
  EXPECT_EQ(status["transports"][0]["counters"]["malformed"], 16);
}

}  // namespace
}  // namespace farpage::node
