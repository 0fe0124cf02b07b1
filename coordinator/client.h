// C++ client of the coordinator's REST API. Nodes and pagers use it, never on the fault path.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "coordinator/api.h"

namespace farpage::coordinator {

struct ClientOptions {
  std::string url;    // http://host:port; of several coordinators: all, with commas between
  std::string token;  // bearer token; empty: none
  Milliseconds timeout{2000};
};

// create_region(), lease_slabs(), release_slabs() and exchange() make the coordinator call nodes:
// their deadline is longer than the timeout by this much, and by more for each slab and replica.
inline constexpr Milliseconds kAgentAllowance{10000};
inline constexpr Milliseconds kTimePerSlab{50};

// Threads: any; each call makes its own request and blocks up to the timeout (events(): plus the
// poll's own timeout). kUnavailable: the coordinator cannot be reached, or of several
// none leads (leader_caller.h). kTimedOut: it did not
// answer (it may have executed the request). Else the code and the text of its problem+json answer.
class Client {
 public:
  static Result<std::unique_ptr<Client>> create(const ClientOptions& options);
  virtual ~Client() = default;

  // -- as a memory node --
  virtual Result<NodeInfo> join(const NodeJoin& node) = 0;
  // kNotFound (HTTP 410): join again.
  virtual Status heartbeat_node(const NodeId& node, const NodeHeartbeat& heartbeat) = 0;
  // Fails with kConflict while slabs are lent, unless `force`.
  virtual Status remove_node(const NodeId& node, bool force) = 0;
  // Refuses new leases from now on; the borrowers move their slabs elsewhere.
  virtual Status drain_node(const NodeId& node) = 0;

  // -- as an operator --
  // Nothing new is placed there.
  virtual Status cordon_node(const NodeId& node) = 0;
  // Ends a cordon or a drain.
  virtual Status uncordon_node(const NodeId& node) = 0;

  // -- as a borrower --
  virtual Result<RegionInfo> create_region(const RegionCreate& region) = 0;
  virtual Result<RegionInfo> region(const RegionId& region) = 0;  // with its rkeys
  // Leases the given slabs of the region on every replica; a region may have holes. Idempotent:
  // returns existing leases unchanged. All or nothing: kExhausted names what is missing.
  virtual Result<std::vector<Lease>> lease_slabs(const RegionId& region,
                                                 const std::vector<SlabIndex>& slabs) = 0;
  // Releases slabs; ignores unknown ones.
  virtual Status release_slabs(const RegionId& region, const std::vector<SlabIndex>& slabs) = 0;
  // See RepairBegin. kConflict: all replicas are there. kExhausted: no node can have another one.
  virtual Result<RepairBegun> begin_repair(const RegionId& region, const RepairBegin& repair) = 0;
  // Idempotent. kNotFound: it is not filling (any more).
  virtual Status complete_repair(const RegionId& region, const RepairComplete& repair) = 0;
  virtual Result<RegionHeard> heartbeat_region(const RegionId& region,
                                               const RegionHeartbeat& heartbeat) = 0;
  virtual Status delete_region(const RegionId& region) = 0;
  virtual Result<rdma::QueuePairEndpoint> exchange(const NodeId& node,
                                                   const rdma::QueuePairEndpoint& ours) = 0;

  // -- as any client --
  virtual Result<std::vector<NodeInfo>> nodes() = 0;
  // kNotFound: no such node, or it has left.
  virtual Result<NodeInfo> node(const NodeId& node) = 0;
  virtual Result<std::vector<RegionInfo>> regions() = 0;  // without rkeys
  virtual Result<EventBatch> events(uint64_t since, Milliseconds timeout) = 0;
  // The raw body of a GET, for `farpage status` and tests.
  virtual Result<std::string> get(const std::string& path) = 0;
};

}  // namespace farpage::coordinator
