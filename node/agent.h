// Agent: the node's HTTP API. The coordinator lends and revokes through it; people look at it.
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
  std::string token;  // bearer token that every call but /healthz must bring; empty: none
};

// Routes (bodies and replies as in coordinator/api_json.h, failures as in coordinator/problem.h,
// limits and refused headers as in coordinator/http_server.h):
//   POST /v1/slabs/{node_slab}/lease    SlabLeaseRequest -> 200 SlabLeaseReply
//   POST /v1/slabs/{node_slab}/revoke   SlabRevokeRequest -> 204; 409 on another generation
//   POST /v1/connect                    QueuePairEndpoint -> 200 QueuePairEndpoint
//   GET  /v1/status                     the node's report as JSON
//   GET  /metrics                       the same for Prometheus
//   GET  /healthz                       200 while the process answers
// Whoever may call the first three may read and write any slab: protect the port as the
// coordinator's.
//
// Threads: any. Requests are answered on threads of the agent until it is destroyed.
class Agent {
 public:
  // `lender` and what `report` uses must outlive the agent. Fails with kConflict when the port is
  // taken.
  static Result<std::unique_ptr<Agent>> create(const AgentOptions& options, Lender& lender,
                                               std::function<NodeReport()> report);
  virtual ~Agent() = default;
  // The port it listens on.
  virtual uint16_t port() const = 0;
};

}  // namespace farpage::node
