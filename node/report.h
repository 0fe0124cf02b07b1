// A node's report: as numbers for Prometheus and heartbeats, as JSON for operators.
#pragma once

#include <string>
#include <vector>

#include "base/strong.h"
#include "coordinator/api.h"
#include "node/lender.h"
#include "node/slab_pool.h"

namespace farpage::node {

struct NodeReport {
  NodeId id;
  uint64_t incarnation = 0;
  bool joined = false;   // the coordinator answered the latest heartbeat
  bool leaving = false;  // no new leases
  uint64_t slab_bytes = 0;
  SlabCounts slabs;
  std::vector<rdma::TransportAddress> addresses;
  std::vector<TransportReport> transports;
};

// The counters of a heartbeat, under the names and labels of /metrics
// (farpage_node_reads_total{transport="tcp"}); docs/operations.md lists them.
coordinator::Counters counters_of(const NodeReport& report);

// Prometheus' text format 0.0.4: the counters, and the gauges that heartbeats omit
// because the coordinator already knows them.
std::string prometheus_text(const NodeReport& report);

// GET /v1/status
std::string status_json(const NodeReport& report);

}  // namespace farpage::node
