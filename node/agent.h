// Agent: the node's HTTP API. The coordinator leases and revokes through it; operators read it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "node/lender.h"
#include "node/report.h"

namespace farpage::node {

struct AgentOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: any free one
  std::string token;  // bearer token required on every call but /healthz; empty: none
  // Begins to copy what the image lacks; returns at once. Empty: this node does not.
  std::function<void(const ImageId&)> repair_image;
};

// Routes (bodies and replies as in coordinator/api_json.h, failures as in http/problem.h,
// limits and refused headers as in http/server.h):
//   POST /v1/slabs/lease                NodeSlabRequest each -> 200 SlabLeaseReply each
//   POST /v1/slabs/{node_slab}/revoke   SlabRevokeRequest -> 204; 409 on another generation
//   POST /v1/slabs/add?in_all=N         node slabs -> 204: they can be lent
//   POST /v1/slabs/withdraw             node slabs -> 204: memory given up; 409 on a leased one
//   POST /v1/images/{image}/repair      -> 204: it copies what the image lacks
//   POST /v1/connect                    QueuePairEndpoint -> 200 QueuePairEndpoint
//   GET  /v1/status                     the node's report as JSON
//   GET  /metrics                       the report for Prometheus
//   GET  /healthz                       200 while the process runs
// A client of the POST routes can read and write any slab: protect the port like the
// coordinator's.
//
// Threads: any. The agent's own threads answer requests until it is destroyed.
class Agent {
 public:
  // `lender` and all that `report` uses must outlive the agent. kConflict: the port is taken.
  static Result<std::unique_ptr<Agent>> create(const AgentOptions& options, Lender& lender,
                                               std::function<NodeReport()> report);
  virtual ~Agent() = default;
  // The port it listens on.
  virtual uint16_t port() const = 0;
};

}  // namespace farpage::node
