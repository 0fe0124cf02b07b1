// The interface to persistent state: nodes, regions, leases, images, and pending revocations.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "coordinator/api.h"

namespace farpage::coordinator {

// What the operator wants of a node.
enum class NodeService : uint8_t {
  kFull,
  kDraining,
  kCordoned
};  // the numbers are those of stores

struct NodeRecord {
  NodeJoin join;
  NodeService service = NodeService::kFull;
  std::optional<uint32_t> lend_slabs;  // how many it is to lend; nullopt: as many as it does
};

struct RegionRecord {
  RegionId id;
  std::string name;
  uint32_t replicas = 1;
  uint64_t slab_bytes = kDefaultSlabBytes;
  uint32_t session_group = 0;
  std::string spread_by;  // RegionInfo
  std::string borrower;   // RegionInfo
};

struct LeaseKey {
  RegionId region;
  SlabIndex slab;
  uint32_t replica = 0;
  auto operator<=>(const LeaseKey&) const = default;  // NOLINT(modernize-use-nullptr): false alarm
};

struct ImageRecord {
  ImageId id;
  RegionId region;
  ImageId base;
  uint64_t bytes = 0;
  ImageState state = ImageState::kUploading;
  uint64_t upload = 1;
  uint64_t pages = 0;
  std::string digest;
};

// A slab that the node may hold without a lease: the coordinator tells the node to revoke it.
struct Revocation {
  uint64_t id = 0;
  NodeId node;
  uint64_t incarnation = 0;
  std::string agent_url;
  uint32_t node_slab = 0;
  // 0: the node was asked to lend the slab and the answer is not known. A retry returns the
  // generation (POST .../lease is idempotent).
  Generation generation;
  SlabLeaseRequest asked;
};

// What to write: a value stores a record, nullopt removes it. Later ones override earlier ones.
struct Changes {
  std::map<NodeId, std::optional<NodeRecord>> nodes;
  std::map<RegionId, std::optional<RegionRecord>> regions;
  std::map<LeaseKey, std::optional<Lease>> leases;
  std::map<uint64_t, std::optional<Revocation>> revocations;
  std::map<ImageId, std::optional<ImageRecord>> images;
  uint64_t last_sequence = 0;  // of the event log

  bool empty() const {
    return nodes.empty() && regions.empty() && leases.empty() && revocations.empty() &&
           images.empty();
  }
  void add(Changes later);
};

struct Snapshot {
  std::vector<NodeRecord> nodes;
  std::vector<RegionRecord> regions;
  std::map<LeaseKey, Lease> leases;
  std::vector<Revocation> revocations;
  std::vector<ImageRecord> images;
  uint64_t last_sequence = 0;  // 0: a new store
};

// What writes the snapshot into an empty store.
Changes changes_of(const Snapshot& snapshot);

// Threads: one at a time.
class Store {
 public:
  virtual ~Store() = default;
  // "memory", "sqlite", "etcd": for /v1/cluster.
  virtual std::string_view kind() const = 0;
  // All stored records. Fails when a record cannot be decoded.
  virtual Result<Snapshot> load() = 0;
  // Atomic, and durable when it returns.
  virtual Status write(const Changes& changes) = 0;
  // The bytes of a file with all that is written, which open_sqlite_store() opens. A secret: it has
  // keys. kUnsupported: this store has no file.
  virtual Result<std::string> copy() {
    return fail(ErrorCode::kUnsupported,
                "this coordinator keeps nothing: --store sqlite: or etcd:");
  }
};

}  // namespace farpage::coordinator
