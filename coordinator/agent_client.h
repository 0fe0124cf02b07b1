// AgentClient: the coordinator's side of the agent API that every memory node serves.
//
//   POST {agent_url}/v1/slabs/lease               NodeSlabRequest each -> SlabLeaseReply each
//   POST {agent_url}/v1/slabs/{node_slab}/revoke  SlabRevokeRequest -> 204
//   POST {agent_url}/v1/slabs/add?in_all=N        numbers of slabs -> 204
//   POST {agent_url}/v1/slabs/withdraw            numbers of slabs -> 204
//   POST {agent_url}/v1/images/{image}/repair     -> 204
//   POST {agent_url}/v1/connect                   QueuePairEndpoint -> QueuePairEndpoint
//   GET  {agent_url}/v1/status                    -> the node's incarnation, among other fields
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "coordinator/api.h"

namespace farpage::coordinator {

// Threads: any; each call blocks up to the timeout. kUnavailable: the node was not reached, or
// answered so. kTimedOut: no answer; the node may have executed the call. kConflict: see api.h.
class AgentClient {
 public:
  virtual ~AgentClient() = default;
  // One result for each slab, in their order. When the request itself fails, all have its error.
  virtual std::vector<Result<SlabLeaseReply>> lease(const std::string& agent_url,
                                                    std::span<const NodeSlabRequest> slabs) = 0;
  virtual Status revoke(const std::string& agent_url, uint32_t node_slab,
                        Generation generation) = 0;
  // From then on these slabs can be leased; the node takes its time for their memory. They are the
  // next ones of `in_all`: a node that has no memory for so many refuses the first ones already.
  virtual Status add_slabs(const std::string& agent_url, std::span<const uint32_t> node_slabs,
                           uint32_t in_all) = 0;
  // Their memory is free. kConflict: one is leased, and nothing has changed.
  virtual Status withdraw_slabs(const std::string& agent_url,
                                std::span<const uint32_t> node_slabs) = 0;
  // The node copies what the image lacks, in the background. Again while it does so: no change.
  // kUnsupported: it does not.
  virtual Status repair_image(const std::string& agent_url, const ImageId& image) = 0;
  virtual Result<rdma::QueuePairEndpoint> connect(const std::string& agent_url,
                                                  const rdma::QueuePairEndpoint& peer) = 0;
  // The node that answers at this URL. kUnavailable: none. kTimedOut: the connection was, or may
  // have been, accepted, but no answer came in time.
  virtual Result<uint64_t> incarnation(const std::string& agent_url) = 0;
};

struct AgentClientOptions {
  std::string token;  // sent as bearer token: the agents of a cluster share the coordinator's
  Milliseconds timeout{2000};
  Milliseconds memory_timeout{15000};  // of the calls that make, or free, memory
};

std::unique_ptr<AgentClient> make_http_agent_client(AgentClientOptions options);

}  // namespace farpage::coordinator
