#include "pager/links/stored_pages.h"

#include <algorithm>
#include <map>
#include <string>

#include "pager/links/region_repair.h"

namespace farpage::pager {

Status publish_leases(const std::vector<coordinator::Lease>& leases, LeaseMap& map,
                      const IndexOfNode& index_of, DeadSlabs dead) {
  std::map<SlabIndex, std::vector<std::unique_ptr<const ReplicaLease>>> slabs;
  for (const coordinator::Lease& lease : leases) {
    if (lease.slab.value >= map.slabs())
      return fail(ErrorCode::kInvalid,
                  "the coordinator leased a slab that the image does not have");
    if (map.find(lease.slab) != nullptr || lease.filling) continue;
    auto& replicas = slabs[lease.slab];
    FARPAGE_TRY(node, index_of(lease.node));
    if (!node) continue;
    if (replicas.size() == coordinator::kMaxReplicas)
      return fail(ErrorCode::kInvalid, "the coordinator leased too many replicas");
    replicas.push_back(replica_on(*node, lease));
  }
  for (auto& [slab, replicas] : slabs) {
    bool any = false;
    for (const auto& replica : replicas) any = any || replica->is_read();
    if (!any && dead == DeadSlabs::kLeaveOut) continue;
    if (!any)
      return fail(ErrorCode::kUnavailable,
                  "slab " + std::to_string(slab.value) + ": every replica of it is lost");
    map.publish(slab, std::move(replicas));
    (void)map.touch(PageIndex{uint64_t{slab.value} * map.pages_per_slab()});
  }
  return {};
}

Status refresh_leases(const std::vector<coordinator::Lease>& leases, LeaseMap& map,
                      const IndexOfNode& index_of) {
  std::map<SlabIndex, std::vector<std::pair<NodeIndex, const coordinator::Lease*>>> slabs;
  for (const coordinator::Lease& lease : leases) {
    if (lease.lost || lease.filling || lease.slab.value >= map.slabs()) continue;
    FARPAGE_TRY(node, index_of(lease.node));
    if (node) slabs[lease.slab].emplace_back(*node, &lease);
  }
  for (const auto& [slab, present] : slabs) {
    const auto is_present = [&present = present](const ReplicaLease& replica) {
      return std::ranges::any_of(present, [&](const auto& entry) {
        return entry.first == replica.node && entry.second->generation == replica.generation;
      });
    };
    for (const auto& [node, lease] : present) {
      const SlabLease* const held = map.find(slab);
      if (held == nullptr) continue;
      // One that was withdrawn comes again where a coordinator does not know what another one did.
      const ReplicaLease* const known = held->find(node, lease->generation);
      if (known != nullptr && known->state.load() != ReplicaState::kWithdrawn) continue;
      const ReplicaLease* const added = map.add(slab, *replica_on(node, *lease));
      if (added == nullptr)
        return fail(ErrorCode::kExhausted, "slab " + std::to_string(slab.value) +
                                               ": this process has had too many replicas of it");
      for (const ReplicaLease* old : held->all())
        if (!is_present(*old)) (void)map.withdraw(*old, *added);
    }
  }
  return {};
}

}  // namespace farpage::pager
