#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state.h"

namespace farpage::coordinator {
namespace {

// After memory that seemed to have room for a slab on a disk: the borrower may not reach that node.
constexpr Seconds kReturnPause{10};

bool names(const std::vector<ReplicaName>& list, const Lease& lease) {
  return std::find(list.begin(), list.end(), name_of(lease)) != list.end();
}

template <typename Iterator>
struct Range {
  Iterator first;
  Iterator last;

  Iterator begin() const { return first; }
  Iterator end() const { return last; }
  bool empty() const { return first == last; }
};

template <typename Iterator>
Range(Iterator, Iterator) -> Range<Iterator>;

// Those of the slab but for the filling one, in the order of their numbers, until that one comes or
// goes. `leases`: of a region. Not std::ranges::subrange, which clang 14 cannot use with this map.
template <typename Leases>
auto replicas_of(Leases& leases, SlabIndex slab) {
  return Range{leases.lower_bound({slab, 0}), leases.lower_bound({slab, kFillingReplica})};
}

// The end of `leases`: none.
template <typename Leases>
auto find_filling(Leases& leases, SlabIndex slab) {
  const auto it = leases.lower_bound({slab, kFillingReplica});
  return it != leases.end() && it->first.first == slab ? it : leases.end();
}

}  // namespace

void State::mark_stale(Region& region, const RepairBegin& repair) {
  for (auto& [key, lease] : replicas_of(region.leases, repair.slab)) {
    const bool stale = !names(repair.live, lease);
    if (lease.lost || lease.stale == stale) continue;
    lease.stale = stale;
    note_lease(region, key, lease);
  }
}

// What is gone comes before what is going to be.
State::Replicas::iterator State::choose_replaced(Region& region, SlabIndex slab) {
  auto leaving = region.leases.end();
  const auto replicas = replicas_of(region.leases, slab);
  for (auto it = replicas.begin(); it != replicas.end(); ++it) {
    if (it->second.lost || it->second.stale) return it;
    if (it->second.moving || is_leaving(state_of(nodes_.at(it->second.node)))) leaving = it;
  }
  return leaving;
}

Result<std::vector<PlannedLease>> State::begin_repair(Instant now, const RegionId& id,
                                                      const RepairBegin& repair,
                                                      const std::set<NodeId>& avoid) {
  FARPAGE_TRY(region, find_region(id));
  if (!is_repaired(*region))
    return fail(ErrorCode::kConflict,
                fmt::format("region '{}' stores image '{}', which is still being uploaded",
                            id.value, region->image.value));
  region->last_heard = now;
  if (replicas_of(region->leases, repair.slab).empty())
    return fail(ErrorCode::kNotFound, fmt::format("field 'slab': region '{}' has no slab {}",
                                                  id.value, repair.slab.value));
  const auto is_held = [&](const ReplicaName& name) {
    const auto replicas = replicas_of(region->leases, repair.slab);
    return std::any_of(replicas.begin(), replicas.end(),
                       [&](const auto& entry) { return name_of(entry.second) == name; });
  };
  for (const ReplicaName& name : repair.live)
    if (!is_held(name))
      return fail(ErrorCode::kConflict,
                  fmt::format("field 'live': generation {} of node '{}' is no replica of slab {}: "
                              "read the region again",
                              name.generation.value, name.node.value, repair.slab.value));
  mark_stale(*region, repair);
  if (const auto filling = find_filling(region->leases, repair.slab);
      filling != region->leases.end())
    drop_lease(*region, filling);
  const auto replaced = choose_replaced(*region, repair.slab);
  if (replaced == region->leases.end())
    return fail(ErrorCode::kConflict,
                fmt::format("slab {} has all its replicas", repair.slab.value));
  std::set<NodeId> taken = avoid;
  taken.insert(repair.avoid.begin(), repair.avoid.end());
  for (const auto& [node_id, node] : nodes_)
    if (!may_hold(node, *region, repair.slab, &replaced->second)) taken.insert(node_id);
  const Lenders lenders = find_lenders(region->record, taken);
  const Node* const from =
      replaced->second.lost || replaced->second.stale ? nullptr : &nodes_.at(replaced->second.node);
  // It moves for the balance alone: to a node that is emptier, or not at all.
  if (from != nullptr && is_balanced(*from)) {
    const std::optional<size_t> emptier = pick_emptier(*from, lenders);
    if (emptier) return std::vector{reserve_filling(*lenders.nodes[*emptier], *region, *replaced)};
    set_moving(*region, replaced, false);
    return fail(ErrorCode::kConflict,
                fmt::format("slab {} stays: no node is emptier", repair.slab.value));
  }
  const auto choice = place(lenders, 1, 1, true);
  // It moves for the sake of memory alone: to memory, or not at all.
  if (from != nullptr && gives_to_memory(*from) &&
      (!choice || is_disk(*lenders.nodes[choice->front().front()]) ||
       !check_kept_free(*region, region->record.slab_bytes))) {
    set_moving(*region, replaced, false);
    region->return_not_before = now + kReturnPause;
    return fail(ErrorCode::kConflict,
                fmt::format("slab {} stays: no memory has room for it", repair.slab.value));
  }
  if (!choice)
    return fail(
        ErrorCode::kExhausted,
        fmt::format(
            "no node{} has a slab for another replica of slab {} of region '{}': "
            "start one more",
            region->record.spread_by.empty() ? "" : " in another " + region->record.spread_by,
            repair.slab.value, id.value));
  return std::vector{reserve_filling(*lenders.nodes[choice->front().front()], *region, *replaced)};
}

PlannedLease State::reserve_filling(Node& node, const Region& region,
                                    const Replicas::value_type& replaced) {
  const auto& [key, lease] = replaced;
  return reserve(node,
                 SlabLeaseRequest{region.record.id, key.first, kFillingReplica + lease.replica,
                                  region.record.session_group});
}

Result<RepairBegun> State::repair_begun(const RegionId& id, SlabIndex slab) const {
  const auto region = regions_.find(id);
  if (region != regions_.end()) {
    const Replicas& leases = region->second.leases;
    const auto filling = find_filling(leases, slab);
    if (filling != leases.end() && !filling->second.lost)
      return RepairBegun{filling->second, name_of(leases.at({slab, filling->second.replica}))};
  }
  return fail(ErrorCode::kNotFound, fmt::format("the node that was to have slab {} was lost: try "
                                                "again",
                                                slab.value));
}

Status State::complete_repair(Instant now, const RegionId& id, const RepairComplete& repair) {
  FARPAGE_TRY(region, find_region(id));
  const auto filling = find_filling(region->leases, repair.slab);
  if (repair.abandoned) {
    if (filling != region->leases.end() && name_of(filling->second) == repair.filled)
      drop_lease(*region, filling);
    return {};
  }
  if (filling == region->leases.end() || filling->second.lost ||
      name_of(filling->second) != repair.filled) {
    for (const auto& [key, lease] : replicas_of(region->leases, repair.slab))
      if (name_of(lease) == repair.filled) return {};  // it has been told before
    return fail(ErrorCode::kNotFound,
                fmt::format("generation {} of node '{}' does not fill slab {} of region '{}'",
                            repair.filled.generation.value, repair.filled.node.value,
                            repair.slab.value, id.value));
  }
  Lease lease = filling->second;
  lease.filling = false;
  note_lease(*region, filling->first, std::nullopt);
  region->leases.erase(filling);
  const auto replaced = region->leases.find({repair.slab, lease.replica});
  drop_lease(*region, replaced, region->image.value.empty() ? Instant{0} : now);
  note_lease(*region, {repair.slab, lease.replica}, lease);
  emit(EventKind::kSlabRepaired, lease.node, id, repair.slab);
  region->leases_version = events_.last();
  region->leases.emplace(std::pair(repair.slab, lease.replica), std::move(lease));
  return {};
}

State::LeaseCounts State::counts_of(const Region& region, const std::set<NodeId>& silent) {
  if (!silent.empty()) return count_leases(region, silent);
  if (!region.counts) region.counts = count_leases(region, silent);
  return *region.counts;
}

State::LeaseCounts State::count_leases(const Region& region, const std::set<NodeId>& silent) {
  LeaseCounts counts;
  const auto is_degraded = [&silent](const Lease& lease) {
    return lease.lost || lease.stale || (!silent.empty() && silent.count(lease.node) != 0);
  };
  for (auto it = region.leases.begin(); it != region.leases.end();) {
    const SlabIndex slab = it->first.first;
    bool degraded = false;
    bool filling = false;
    bool moving = false;
    for (; it != region.leases.end() && it->first.first == slab; ++it) {
      counts.lost += it->second.lost ? 1 : 0;
      if (it->second.filling) {
        filling = filling || !it->second.lost;
      } else {
        degraded = degraded || is_degraded(it->second);
        moving = moving || it->second.moving;
      }
    }
    counts.moving += moving ? 1 : 0;
    counts.degraded += degraded ? 1 : 0;
    counts.repairing += filling ? 1 : 0;
  }
  return counts;
}

}  // namespace farpage::coordinator
