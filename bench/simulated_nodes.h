// SimulatedNodes: the agents of any number of memory nodes without memory, in one HTTP server on
// loopback: each node has an address of its own in 127.0.0.0/8. They grant every slab that they are
// asked for, and remember what is leased.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "base/result.h"
#include "coordinator/api.h"
#include "http/server.h"

namespace farpage::bench {

// Threads: any.
class SimulatedNodes {
 public:
  static Result<std::unique_ptr<SimulatedNodes>> create(uint32_t nodes, uint32_t slabs_per_node,
                                                        uint64_t slab_bytes);

  // What node number `index` sends when it joins.
  coordinator::NodeJoin join_of(uint32_t index) const;
  uint64_t leased() const;
  // Revocations of a slab that was not leased with this generation.
  uint64_t wrong_revocations() const;

 private:
  struct Lease {
    RegionId region;
    SlabIndex slab;
    uint32_t replica = 0;
    uint32_t node_slab = 0;
    auto operator<=>(const Lease&) const = default;  // NOLINT(modernize-use-nullptr): false alarm
  };
  SimulatedNodes(uint32_t slabs_per_node, uint64_t slab_bytes)
      : slabs_per_node_(slabs_per_node), slab_bytes_(slab_bytes) {}
  http::Reply lease(const http::Request& request);
  http::Reply revoke(const http::Request& request);

  const uint32_t slabs_per_node_;
  const uint64_t slab_bytes_;
  mutable Mutex mutex_;
  // Generations are unique among all nodes, so that each names a lease.
  uint32_t last_generation_ FARPAGE_GUARDED_BY(mutex_) = 0;
  std::map<uint32_t, Lease> leases_ FARPAGE_GUARDED_BY(mutex_);       // by generation
  std::map<Lease, uint32_t> generations_ FARPAGE_GUARDED_BY(mutex_);  // of the same
  uint64_t wrong_revocations_ FARPAGE_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<http::Server> server_;  // last: its threads use the others
};

}  // namespace farpage::bench
