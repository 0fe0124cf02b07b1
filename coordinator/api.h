// The words of the REST API as plain structs, with one decode function and one encode function each
// (api_json.h). docs/protocol-rest.md describes the routes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/strong.h"
#include "rdma/endpoint.h"

namespace farpage::coordinator {

inline constexpr uint64_t kDefaultSlabBytes = uint64_t{64} << 20;
inline constexpr uint64_t kMinSlabBytes = uint64_t{2} << 20;
inline constexpr uint64_t kMaxSlabBytes = uint64_t{1} << 30;
inline constexpr uint32_t kMaxReplicas = 3;
inline constexpr uint32_t kMaxNodes = 4096;  // of a cluster
inline constexpr uint32_t kMaxSlabsPerRegion = 1U << 16;
inline constexpr size_t kMaxNameBytes = 64;  // names and ids: [A-Za-z0-9._-]

// Counters travel in heartbeats and come out of /metrics under the same names.
using Counters = std::map<std::string, uint64_t>;

// ---- nodes ----

enum class NodeState : uint8_t { kAlive, kDraining, kLost };
std::string_view to_string(NodeState state);

// POST /v1/nodes. The same id with another incarnation replaces the node, once the former process
// does not answer any more: its leases are lost.
struct NodeJoin {
  NodeId id;                 // chosen by the node, stable over restarts
  uint64_t incarnation = 0;  // random, new with each start of the process: its memory is new
  std::string agent_url;     // http://host:port of the node's agent API
  uint64_t capacity_bytes = 0;
  uint64_t slab_bytes = kDefaultSlabBytes;
  std::string version;
  std::vector<rdma::TransportAddress> transports;
};

struct NodeInfo {
  NodeJoin join;
  NodeState state = NodeState::kAlive;
  uint32_t total_slabs = 0;
  uint32_t free_slabs = 0;
  Milliseconds last_heartbeat_age{0};
  Counters counters;
};

struct NodeHeartbeat {
  uint64_t incarnation = 0;
  uint32_t free_slabs = 0;
  Counters counters;
  // Borrowers that have a data session here, or had one that ended without a close a short while
  // ago (rdma/session_fences.h). Their regions are not taken back, however silent they are.
  std::vector<uint32_t> session_groups;
};

// One queue pair exchange that went through the coordinator.
struct QueuePairExchanged {
  rdma::QueuePairEndpoint peer;
  rdma::QueuePairEndpoint node;
};

// GET /v1/nodes/{id}/rdma/endpoint: how to reach the node's memory, and the latest exchanges with
// this incarnation of it.
struct NodeEndpoints {
  NodeId id;
  uint64_t incarnation = 0;
  std::vector<rdma::TransportAddress> transports;
  std::vector<QueuePairExchanged> exchanged;
};

// ---- leases and regions ----

// The right of one region to one slab. rkeys: one for each transport the node offers.
struct Lease {
  SlabIndex slab;        // inside the region
  uint32_t replica = 0;  // 0 .. replicas - 1
  NodeId node;
  uint32_t node_slab = 0;  // inside the node
  RemoteAddress address;
  uint64_t bytes = 0;
  std::map<rdma::TransportKind, RemoteKey> rkeys;
  Generation generation;
  bool lost = false;  // the node or its memory is gone: never use it again
};

// POST /v1/regions
struct RegionCreate {
  std::string name;
  uint64_t bytes = 0;  // placed at once, rounded up to slabs; may be 0
  uint32_t replicas = 1;
  uint64_t slab_bytes = kDefaultSlabBytes;
  // Of the data sessions of this region's pager. 0: it has none, so only heartbeats keep the
  // region.
  uint32_t session_group = 0;
};

struct RegionInfo {
  RegionId id;
  std::string name;
  uint32_t replicas = 1;
  uint64_t slab_bytes = kDefaultSlabBytes;
  Milliseconds heartbeat_interval{1000};  // what the coordinator asks for
  // Silence, without a data session at any node, after which the slabs are taken back.
  Milliseconds time_to_live{60000};
  std::vector<Lease> leases;
  Counters counters;
};

// PUT /v1/regions/{id}/heartbeat
struct RegionHeartbeat {
  Counters counters;
};
struct RegionHeard {
  uint64_t last_event = 0;  // its sequence: who has read that far need not ask for events
};

// ---- events ----

// A silent node loses no lease: whoever still reaches it goes on using it. Leases are lost one by
// one (kLeaseLost), when the node comes back with new memory or is removed.
enum class EventKind : uint8_t {
  kNodeJoined,  // new, back with new memory, or heard again after kNodeLost
  kNodeDraining,
  kNodeLost,  // silent for too long, or back with new memory
  kNodeLeft,
  kRegionCreated,
  kRegionDeleted,
  kLeaseLost,  // one slab replica of one region
};
std::string_view to_string(EventKind kind);

struct Event {
  uint64_t sequence = 0;
  EventKind kind = EventKind::kNodeJoined;
  NodeId node;
  RegionId region;
  SlabIndex slab;
};

// GET /v1/events?since=N&timeout=S. `missed`: events after `since` were already forgotten (or the
// coordinator is a new one); read /v1/nodes and the region again, then go on from next_since.
struct EventBatch {
  std::vector<Event> events;
  uint64_t next_since = 0;
  bool missed = false;
};

// ---- agent API of a node (called by the coordinator alone) ----

// POST /v1/slabs/{node_slab}/lease. Idempotent: the same request for a slab that it already holds
// is answered with the lease it has (the coordinator repeats it when a reply was lost). A slab that
// another request holds: 409.
struct SlabLeaseRequest {
  RegionId region;
  SlabIndex slab;
  uint32_t replica = 0;
  uint32_t session_group = 0;  // of the region
};

struct SlabLeaseReply {
  RemoteAddress address;
  uint64_t bytes = 0;
  std::map<rdma::TransportKind, RemoteKey> rkeys;
  Generation generation;  // never 0
};

// POST /v1/slabs/{node_slab}/revoke -> 204, also when that lease is over. Another generation: 409.
struct SlabRevokeRequest {
  Generation generation;
};

}  // namespace farpage::coordinator
