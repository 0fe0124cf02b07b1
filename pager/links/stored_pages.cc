#include "pager/links/stored_pages.h"

#include <map>
#include <string>

namespace farpage::pager {

Status publish_leases(const std::vector<coordinator::Lease>& leases, LeaseMap& map,
                      const IndexOfNode& index_of) {
  std::map<SlabIndex, std::vector<std::unique_ptr<const ReplicaLease>>> slabs;
  for (const coordinator::Lease& lease : leases) {
    if (lease.slab.value >= map.slabs())
      return fail(ErrorCode::kInvalid,
                  "the coordinator leased a slab that the image does not have");
    if (map.find(lease.slab) != nullptr) continue;
    auto& replicas = slabs[lease.slab];
    FARPAGE_TRY(node, index_of(lease.node));
    if (!node) continue;
    if (replicas.size() == coordinator::kMaxReplicas)
      return fail(ErrorCode::kInvalid, "the coordinator leased too many replicas");
    auto replica = std::make_unique<ReplicaLease>();
    replica->node = *node;
    replica->address = lease.address;
    replica->generation = lease.generation;
    if (lease.lost) (void)replica->end(ReplicaState::kLost);
    for (const auto& [kind, key] : lease.rkeys) replica->keys[static_cast<size_t>(kind)] = key;
    replicas.push_back(std::move(replica));
  }
  for (auto& [slab, replicas] : slabs) {
    bool any = false;
    for (const auto& replica : replicas) any = any || replica->is_read();
    if (!any)
      return fail(ErrorCode::kUnavailable,
                  "slab " + std::to_string(slab.value) + ": every replica of it is lost");
    map.publish(slab, std::move(replicas));
    (void)map.touch(PageIndex{uint64_t{slab.value} * map.pages_per_slab()});
  }
  return {};
}

}  // namespace farpage::pager
