// The messages of the REST API as plain structs. api_json.h has one decode and one encode function
// for each. docs/protocol-rest.md describes the routes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
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
// The lease that will take the place of replica r has the number kFillingReplica + r at its node
// and in the store.
inline constexpr uint32_t kFillingReplica = kMaxReplicas;
inline constexpr uint32_t kMaxNodes = 4096;  // per cluster
inline constexpr uint32_t kMaxSlabsPerRegion = 1U << 16;

// Heartbeats carry counters; /metrics exports them under the same names.
using Counters = std::map<std::string, uint64_t>;

// ---- nodes ----

enum class NodeState : uint8_t {
  kAlive,
  kCordoned,  // nothing new is placed on it
  kDraining,  // the same, and its borrowers move their slabs elsewhere
  kLost,      // silent for too long
};
std::string_view to_string(NodeState state);
// Its slabs are to be elsewhere.
inline bool is_leaving(NodeState state) {
  return state == NodeState::kDraining || state == NodeState::kLost;
}

// Where a node is, as its operator names it: zone=a, rack=7. Keys and values are names.
using Labels = std::map<std::string, std::string>;
inline constexpr size_t kMaxLabels = 16;
inline constexpr size_t kIdentityDigits = 32;

// POST /v1/nodes. The same id with another incarnation replaces the node once the former process no
// longer answers; the node's leases are then lost.
struct NodeJoin {
  NodeId id;                 // chosen by the node, stable over restarts
  uint64_t incarnation = 0;  // random, new at each process start: the memory is new
  std::string agent_url;     // http://host:port of the agent API
  uint64_t capacity_bytes = 0;
  uint64_t slab_bytes = kDefaultSlabBytes;
  std::string version;
  std::vector<rdma::TransportAddress> transports;
  // Numbers of slabs that have no memory (any more): the others, capacity_bytes in all, have those
  // from 0 on.
  std::vector<uint32_t> withdrawn;
  Labels labels;
  // kIdentityDigits hexadecimal digits that the node keeps over restarts, or empty. The same name
  // with another identity is a stranger, which takes a place that is free only; the same identity
  // in two processes that live is a copy of a disk, and the second one is refused.
  std::string identity;
  // It lends room of a disk, not memory: the last resort. Slabs are there only as long as no memory
  // has room for them.
  bool spill = false;
};

struct NodeInfo {
  NodeJoin join;
  NodeState state = NodeState::kAlive;
  uint32_t total_slabs = 0;
  uint32_t free_slabs = 0;
  std::optional<uint64_t> lend_bytes;  // it is on its way to lend so much (NodeLend)
  std::string lend_refused;  // why the latest NodeLend has ended before; empty: it has not
  Milliseconds last_heartbeat_age{0};
  Counters counters;
};

// PUT /v1/nodes/{id}/lend: from now on the node lends so much, rounded down to slabs. More: as fast
// as the node makes the memory. Less: free slabs go at once, leased ones when their borrowers have
// moved them elsewhere. A restart of the node ends it.
struct NodeLend {
  uint64_t bytes = 0;
};

// POST /v1/rebalance: marks slabs of full nodes as moving, at most so many at a time, as long as
// the shares of lent memory that nodes use differ by more. Repeated until nothing moves any more.
struct Rebalance {
  uint32_t within_percent = 5;
  uint32_t at_most = 16;
};
struct Rebalanced {
  uint32_t moving = 0;  // marked now, or before
  uint32_t left = 0;    // would have to move after these
  // Of all nodes that take part, as it is now.
  uint32_t lowest_percent = 100;
  uint32_t highest_percent = 0;
};

struct NodeHeartbeat {
  uint64_t incarnation = 0;
  uint32_t free_slabs = 0;
  Counters counters;
  // Borrowers with a data session at this node, or with one that recently ended without a close
  // (rdma/session_fences.h). Their regions do not expire, even without heartbeats.
  std::vector<uint32_t> session_groups;
};

// One queue pair exchange relayed by the coordinator.
struct QueuePairExchanged {
  rdma::QueuePairEndpoint peer;
  rdma::QueuePairEndpoint node;
};

// GET /v1/nodes/{id}/rdma/endpoint: the addresses of the node's memory, and the latest exchanges
// with this incarnation.
struct NodeEndpoints {
  NodeId id;
  uint64_t incarnation = 0;
  std::vector<rdma::TransportAddress> transports;
  std::vector<QueuePairExchanged> exchanged;
};

// ---- leases and regions ----

using RemoteKeys = std::map<rdma::TransportKind, RemoteKey>;  // one for each transport of the node

// The right of one region to use one slab.
struct Lease {
  SlabIndex slab;        // inside the region
  uint32_t replica = 0;  // 0 .. replicas - 1
  NodeId node;
  uint32_t node_slab = 0;  // inside the node
  RemoteAddress address;
  uint64_t bytes = 0;
  RemoteKeys rkeys;
  Generation generation;
  bool lost = false;     // the node or its memory is gone: never use it again
  bool stale = false;    // the borrower does not use it any more: it has missed a write
  bool filling = false;  // will take the place of the lease with this number when it is filled
  bool moving = false;   // its borrower is to move it elsewhere, as if its node drained
};

// The number of the lease at its node and in the store.
inline uint32_t number_of(const Lease& lease) {
  return lease.replica + (lease.filling ? kFillingReplica : 0);
}
inline void set_number(Lease& lease, uint32_t number) {
  lease.filling = number >= kFillingReplica;
  lease.replica = number % kFillingReplica;
}

// A lease as its borrower knows it.
struct ReplicaName {
  NodeId node;
  Generation generation;
  friend bool operator==(const ReplicaName&, const ReplicaName&) = default;
};
inline ReplicaName name_of(const Lease& lease) {
  return {lease.node, lease.generation};
}

// POST /v1/regions
struct RegionCreate {
  std::string name;
  uint64_t bytes = 0;  // placed at once, rounded up to slabs; may be 0
  uint32_t replicas = 1;
  uint64_t slab_bytes = kDefaultSlabBytes;
  // Group of the data sessions of this region's pager. 0: no sessions, so only heartbeats keep the
  // region.
  uint32_t session_group = 0;
  // The replicas of each slab are on nodes with different values of this label; those without it
  // count as one value. Empty: as the coordinator was told (StateOptions::spread_by).
  std::string spread_by;
  std::string borrower;  // against whose quota the region counts; empty: none
};

struct RegionInfo {
  RegionId id;
  std::string name;
  uint32_t replicas = 1;
  uint64_t slab_bytes = kDefaultSlabBytes;
  Milliseconds heartbeat_interval{1000};  // requested by the coordinator
  // Time without heartbeats and without a data session at any node until the slabs are revoked.
  Milliseconds time_to_live{60000};
  std::vector<Lease> leases;
  Counters counters;
  ImageId image;          // whose pages it stores; empty: a pager has borrowed it
  std::string spread_by;  // empty: its replicas are on distinct nodes, and no more
  std::string borrower;
};

// POST /v1/regions/{id}/repairs: a replica for a slab that lacks one, or has one on a node that is
// draining or lost. A filling one of an earlier request ends.
struct RepairBegin {
  SlabIndex slab;
  std::vector<ReplicaName> live;  // those that have every page; the others are stale
  std::vector<NodeId> avoid;      // nodes that the borrower cannot reach
};
struct RepairBegun {
  Lease filling;
  ReplicaName replaces;
};

// POST /v1/regions/{id}/repairs/complete: the filling replica has every page. What it replaces
// ends.
struct RepairComplete {
  SlabIndex slab;
  ReplicaName filled;
  bool abandoned = false;  // it is not filled, and will not be: it ends, and nothing is replaced
};

// PUT /v1/regions/{id}/heartbeat
inline constexpr std::string_view kDegradedCounter = "farpage_repair_degraded_slabs";
struct RegionHeartbeat {
  Counters counters;  // kDegradedCounter: slabs without all their replicas, as the borrower sees it
};
struct RegionHeard {
  uint64_t last_event = 0;  // its sequence; a client that has read it has no new events to fetch
};

// ---- images ----

// An image is the memory of a guest, written once and then read by any number of readers. Its pages
// are in a region that ends with the image, not by silence. An image with a base stores the pages
// that differ, and its map names those of the base: so a base stays while others are made of it.
//
//   (create) --> uploading --(complete)--> complete

inline constexpr uint64_t kMaxImageBytes = uint64_t{1} << 40;
inline constexpr uint32_t kMaxGenerations = 16;  // an image, its base, the base of that, ..
inline constexpr size_t kMaxReadersPerImage = 4096;
inline constexpr size_t kMaxDigestBytes = 64;

enum class ImageState : uint8_t { kUploading, kComplete };
std::string_view to_string(ImageState state);

// POST /v1/images. Again for one that is uploading: goes on with it, and whoever uploaded it before
// is refused from then on.
struct ImageCreate {
  ImageId name;
  ImageId base;        // empty: none
  uint64_t bytes = 0;  // of the guest's memory: whole pages
  uint32_t replicas = 1;
  uint64_t slab_bytes = kDefaultSlabBytes;
};

// PUT /v1/images/{id}/checkpoint: the first `pages` stored pages are at every replica.
// POST /v1/images/{id}/complete: all are, and the map behind them.
struct ImageProgress {
  uint64_t upload = 0;  // ImageInfo::upload: of the latest create
  uint64_t pages = 0;   // stored
  std::string digest;   // of them, lower-case hexadecimal digits; complete: of the whole content
};

struct ImageInfo {
  ImageId name;
  ImageState state = ImageState::kUploading;
  ImageId base;
  uint64_t bytes = 0;
  uint32_t replicas = 1;
  uint64_t slab_bytes = kDefaultSlabBytes;
  uint32_t generations = 1;
  RegionId region;
  uint64_t upload = 0;
  uint64_t pages = 0;  // as ImageProgress
  std::string digest;
  uint32_t readers = 0;
  uint32_t lost_leases = 0;
};

// POST /v1/images/{id}/open, PUT /v1/images/{id}/reader, POST /v1/images/{id}/close. Who renews
// less often than OpenedImage::time_to_live is no reader any more.
struct ImageReader {
  std::string name;  // chosen by the reader, different from those of others
};

// Answer of PUT /v1/images/{id}/reader. With another version than before, the leases are others:
// the reader opens the image again. What was replaced can be read for kReaderGrace more.
struct ReaderHeard {
  uint64_t leases_version = 0;
};
inline constexpr Milliseconds kReaderInterval{5000};  // of renewals
inline constexpr Milliseconds kReaderGrace = kReaderInterval * 3;

struct OpenedImage {
  ImageInfo image;
  // The upper half of the session numbers of every reader (rdma/session.h): all images have one.
  uint32_t session_group = 0;
  Milliseconds time_to_live{60000};
  uint64_t leases_version = 0;      // as ReaderHeard
  std::vector<RegionInfo> regions;  // with keys: of the image, of its base, of the base of that, ..
};

// ---- events ----

// A silent node loses no leases: borrowers that still reach it keep using it. When the node comes
// back with new memory or is removed, its leases are lost, with one kLeaseLost each.
enum class EventKind : uint8_t {
  kNodeJoined,  // new, back with new memory, or heard again after kNodeLost
  kNodeCordoned,
  kNodeDraining,
  kNodeOpened,  // neither cordoned nor draining any more
  kNodeLost,    // silent for too long, or back with new memory
  kNodeLeft,
  kRegionCreated,
  kRegionDeleted,
  kLeaseLost,     // one slab replica of one region
  kRepairBegun,   // a replica of a slab is filling on this node
  kSlabRepaired,  // it has taken the place of another one
  kSlabMoving,    // this replica of the slab is to be moved elsewhere
};
std::string_view to_string(EventKind kind);

struct Event {
  uint64_t sequence = 0;
  EventKind kind = EventKind::kNodeJoined;
  NodeId node;
  RegionId region;
  SlabIndex slab;
};

// GET /v1/events?since=N&timeout=S. `missed`: events after `since` were already dropped (or the
// coordinator is a new one); read /v1/nodes and the region again, then continue from next_since.
struct EventBatch {
  std::vector<Event> events;
  uint64_t next_since = 0;
  bool missed = false;
};

// ---- agent API of a node (called only by the coordinator) ----

// POST /v1/slabs/lease: at most kMaxSlabsPerLease of them, each answered on its own, in their
// order. Idempotent: the same request for a slab that it already holds is answered with the lease
// it has (the coordinator repeats it when a reply was lost). A slab that another request holds:
// conflict.
inline constexpr size_t kMaxSlabsPerLease = 256;
struct SlabLeaseRequest {
  RegionId region;
  SlabIndex slab;
  uint32_t replica = 0;
  uint32_t session_group = 0;  // of the region
};

struct NodeSlabRequest {
  uint32_t node_slab = 0;
  SlabLeaseRequest lease;
};

struct SlabLeaseReply {
  RemoteAddress address;
  uint64_t bytes = 0;
  RemoteKeys rkeys;
  Generation generation;  // never 0
};

// POST /v1/slabs/add: these numbers have memory from then on. POST /v1/slabs/withdraw: these have
// none. Both idempotent, and all or nothing. conflict: one of the latter is leased.

// POST /v1/slabs/{node_slab}/revoke -> 204, also if that lease has ended. Another generation: 409.
struct SlabRevokeRequest {
  Generation generation;
};

}  // namespace farpage::coordinator
