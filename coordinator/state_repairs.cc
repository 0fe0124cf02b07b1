#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state.h"

namespace farpage::coordinator {
namespace {

bool names(const std::vector<ReplicaName>& list, const Lease& lease) {
  return std::find(list.begin(), list.end(), name_of(lease)) != list.end();
}

}  // namespace

State::Replicas::iterator State::find_filling(Region& region, SlabIndex slab) {
  const auto it = region.leases.lower_bound({slab, kFillingReplica});
  return it != region.leases.end() && it->first.first == slab ? it : region.leases.end();
}

bool State::is_degraded(const Lease& lease) const {
  if (lease.lost || lease.stale) return true;
  return nodes_.at(lease.node).silent;
}

void State::mark_stale(Region& region, const RepairBegin& repair) {
  for (auto it = region.leases.lower_bound({repair.slab, 0});
       it != region.leases.end() && it->first < std::pair(repair.slab, kFillingReplica); ++it) {
    Lease& lease = it->second;
    const bool stale = !names(repair.live, lease);
    if (lease.lost || lease.stale == stale) continue;
    lease.stale = stale;
    changes_.leases[LeaseKey{region.record.id, repair.slab, it->first.second}] = lease;
  }
}

// What is gone comes before what is going to be.
State::Replicas::iterator State::choose_replaced(Region& region, SlabIndex slab) {
  auto leaving = region.leases.end();
  for (auto it = region.leases.lower_bound({slab, 0});
       it != region.leases.end() && it->first < std::pair(slab, kFillingReplica); ++it) {
    if (it->second.lost || it->second.stale) return it;
    if (is_leaving(state_of(nodes_.at(it->second.node)))) leaving = it;
  }
  return leaving;
}

Result<std::vector<PlannedLease>> State::begin_repair(Instant now, const RegionId& id,
                                                      const RepairBegin& repair,
                                                      const std::set<NodeId>& avoid) {
  FARPAGE_TRY(region, find_region(id));
  if (!region->image.value.empty())
    return fail(ErrorCode::kConflict,
                fmt::format("region '{}' stores an image: push that again", id.value));
  region->last_heard = now;
  const auto first = region->leases.find({repair.slab, 0});
  if (first == region->leases.end())
    return fail(ErrorCode::kNotFound, fmt::format("field 'slab': region '{}' has no slab {}",
                                                  id.value, repair.slab.value));
  const auto is_held = [&](const ReplicaName& name) {
    for (uint32_t i = 0; i < region->record.replicas; ++i)
      if (name_of(region->leases.at({repair.slab, i})) == name) return true;
    return false;
  };
  for (const ReplicaName& name : repair.live)
    if (!is_held(name))
      return fail(ErrorCode::kConflict,
                  fmt::format("field 'live': generation {} of node '{}' is no replica of slab {}: "
                              "read the region again",
                              name.generation.value, name.node.value, repair.slab.value));
  mark_stale(*region, repair);
  if (const auto filling = find_filling(*region, repair.slab); filling != region->leases.end())
    drop_lease(*region, filling);
  const auto replaced = choose_replaced(*region, repair.slab);
  if (replaced == region->leases.end())
    return fail(ErrorCode::kConflict,
                fmt::format("slab {} has all its replicas", repair.slab.value));
  std::set<NodeId> taken = avoid;
  taken.insert(repair.avoid.begin(), repair.avoid.end());
  for (uint32_t i = 0; i < region->record.replicas; ++i) {
    const Lease& lease = region->leases.at({repair.slab, i});
    if (!lease.lost && !lease.stale) taken.insert(lease.node);
  }
  std::vector<Node*> lenders;
  std::vector<uint32_t> free_slabs;
  for (auto& [node_id, node] : nodes_) {
    if (state_of(node) != NodeState::kAlive || taken.count(node_id) != 0 || node.free.empty() ||
        node.record.join.slab_bytes != region->record.slab_bytes)
      continue;
    lenders.push_back(&node);
    free_slabs.push_back(static_cast<uint32_t>(node.free.size()));
  }
  const auto choice = placement_.place(free_slabs, 1, 1);
  if (!choice)
    return fail(ErrorCode::kExhausted,
                fmt::format("no node has a slab for another replica of slab {} of region '{}': "
                            "start one more",
                            repair.slab.value, id.value));
  return std::vector{
      reserve(*lenders[choice->front().front()],
              SlabLeaseRequest{id, repair.slab, kFillingReplica + replaced->second.replica,
                               region->record.session_group})};
}

Result<RepairBegun> State::repair_begun(const RegionId& id, SlabIndex slab) const {
  const auto region = regions_.find(id);
  if (region != regions_.end()) {
    const Replicas& leases = region->second.leases;
    const auto filling = leases.lower_bound({slab, kFillingReplica});
    if (filling != leases.end() && filling->first.first == slab && !filling->second.lost)
      return RepairBegun{filling->second, name_of(leases.at({slab, filling->second.replica}))};
  }
  return fail(ErrorCode::kNotFound, fmt::format("the node that was to have slab {} was lost: try "
                                                "again",
                                                slab.value));
}

Status State::complete_repair(const RegionId& id, const RepairComplete& repair) {
  FARPAGE_TRY(region, find_region(id));
  const auto filling = find_filling(*region, repair.slab);
  if (repair.abandoned) {
    if (filling != region->leases.end() && name_of(filling->second) == repair.filled)
      drop_lease(*region, filling);
    return {};
  }
  if (filling == region->leases.end() || filling->second.lost ||
      name_of(filling->second) != repair.filled) {
    for (const auto& [key, lease] : region->leases)
      if (key.first == repair.slab && !lease.filling && name_of(lease) == repair.filled) return {};
    return fail(ErrorCode::kNotFound,
                fmt::format("generation {} of node '{}' does not fill slab {} of region '{}'",
                            repair.filled.generation.value, repair.filled.node.value,
                            repair.slab.value, id.value));
  }
  Lease lease = filling->second;
  lease.filling = false;
  changes_.leases[LeaseKey{id, repair.slab, filling->first.second}] = std::nullopt;
  region->leases.erase(filling);
  const auto replaced = region->leases.find({repair.slab, lease.replica});
  drop_lease(*region, replaced);
  changes_.leases[LeaseKey{id, repair.slab, lease.replica}] = lease;
  emit(EventKind::kSlabRepaired, lease.node, id, repair.slab);
  region->leases.emplace(std::pair(repair.slab, lease.replica), std::move(lease));
  return {};
}

// The borrower knows of replicas that it has given up before it asks for others.
void State::count_repairs(const Region& region, Totals& totals) const {
  const auto told = region.counters.find(std::string(kDegradedCounter));
  uint64_t known = 0;
  for (auto it = region.leases.begin(); it != region.leases.end();) {
    const SlabIndex slab = it->first.first;
    bool degraded = false;
    bool filling = false;
    for (; it != region.leases.end() && it->first.first == slab; ++it) {
      if (it->second.filling) {
        filling = filling || !it->second.lost;
      } else {
        degraded = degraded || is_degraded(it->second);
      }
    }
    known += degraded ? 1 : 0;
    totals.slabs_repairing += filling ? 1 : 0;
  }
  totals.slabs_degraded += std::max(known, told == region.counters.end() ? 0 : told->second);
}

}  // namespace farpage::coordinator
