// Slabs move from full nodes to emptier ones. Which ones is decided anew at each call, from how the
// slabs lie then; what has been decided before is in the marks of the leases (Lease::moving).
#include <algorithm>

#include "coordinator/state.h"

namespace farpage::coordinator {

double State::share_of(uint32_t used, const Node& node) {
  return static_cast<double>(used) / static_cast<double>(std::max(lent_slabs(node), 1U));
}

bool State::is_balanced(const Node& node) {
  return state_of(node) == NodeState::kAlive && !node.record.lend_slabs && !is_disk(node);
}

// The move leaves the source at least as full as what it goes to.
bool State::evens_out(uint32_t used_from, const Node& from, uint32_t used_to, const Node& to) {
  return used_from > 0 && share_of(used_to + 1, to) <= share_of(used_from - 1, from);
}

std::optional<size_t> State::pick_emptier(const Node& from, const Lenders& lenders) const {
  std::optional<size_t> best;
  const auto used = [&](size_t i) {
    return static_cast<uint32_t>(slabs_in_use(*lenders.nodes[i]));
  };
  for (size_t i = 0; i < lenders.nodes.size(); ++i) {
    if (!is_balanced(*lenders.nodes[i])) continue;
    if (!best ||
        share_of(used(i), *lenders.nodes[i]) < share_of(used(*best), *lenders.nodes[*best]))
      best = i;
  }
  const auto used_from = static_cast<uint32_t>(slabs_in_use(from));
  if (!best || !evens_out(used_from, from, used(*best), *lenders.nodes[*best])) return std::nullopt;
  return best;
}

// All nodes with that slab size that take part, and what each would use when all that is marked has
// moved.
std::vector<State::Seat> State::seats_of(uint64_t slab_bytes, Rebalanced& done) {
  std::vector<Seat> seats;
  std::map<NodeId, size_t> seat_of;
  for (auto& [id, node] : nodes_) {
    if (node.record.join.slab_bytes != slab_bytes || !is_balanced(node)) continue;
    seat_of.emplace(id, seats.size());
    seats.push_back({&node, static_cast<uint32_t>(slabs_in_use(node)), {}, {}});
  }
  for (auto& [region_id, region] : regions_) {
    for (auto lease = region.leases.begin(); lease != region.leases.end(); ++lease) {
      const auto seat = seat_of.find(lease->second.node);
      if (seat == seat_of.end() || !can_move(region, lease->second, seat->first)) continue;
      if (lease->second.filling || lease->second.stale) continue;
      Seat& from = seats[seat->second];
      const auto filling = region.leases.lower_bound({lease->first.first, kFillingReplica});
      const bool begun =
          filling != region.leases.end() && filling->first.first == lease->first.first;
      if (lease->second.moving && begun) {
        ++done.moving;
        --from.used;
      } else if (!begun) {
        (lease->second.moving ? from.marked : from.leases).emplace_back(&region, lease);
      }
    }
  }
  for (Seat& from : seats)
    for (const auto& [region, lease] : from.marked) expect_move(seats, from, *region, lease, done);
  return seats;
}

// A mark that evens out nothing any more ends here: as long as it counted, others that are no more
// use would be made because of it, and each would be the reason for the next.
void State::expect_move(std::vector<Seat>& seats, Seat& from, Region& region,
                        Replicas::iterator lease, Rebalanced& done) {
  Seat* const to = emptiest(seats, region, *lease);
  if (to == nullptr || !evens_out(from.used, *from.node, to->used, *to->node))
    return set_moving(region, lease, false);
  ++done.moving;
  --from.used;
  ++to->used;
}

State::Seat* State::emptiest(std::vector<Seat>& seats, const Region& region,
                             const Replicas::value_type& lease) const {
  Seat* best = nullptr;
  for (Seat& seat : seats) {
    if (seat.used >= lent_slabs(*seat.node)) continue;
    if (best != nullptr && share_of(seat.used, *seat.node) >= share_of(best->used, *best->node))
      continue;
    if (may_hold(*seat.node, region, lease.first.first, &lease.second)) best = &seat;
  }
  return best;
}

void State::rebalance_slabs_of(uint64_t slab_bytes, const Rebalance& rebalance, Rebalanced& done) {
  std::vector<Seat> seats = seats_of(slab_bytes, done);
  const auto share = [](const Seat& seat) { return share_of(seat.used, *seat.node); };
  while (true) {
    Seat* fullest = nullptr;
    double lowest = 1;
    for (Seat& seat : seats) {
      lowest = std::min(lowest, share(seat));
      if (!seat.leases.empty() && (fullest == nullptr || share(seat) > share(*fullest)))
        fullest = &seat;
    }
    if (fullest == nullptr || (share(*fullest) - lowest) * 100 <= rebalance.within_percent) break;
    auto [region, lease] = fullest->leases.back();
    fullest->leases.pop_back();
    Seat* const to = emptiest(seats, *region, *lease);
    if (to == nullptr || !evens_out(fullest->used, *fullest->node, to->used, *to->node)) continue;
    --fullest->used;
    ++to->used;
    if (done.moving >= rebalance.at_most) {
      if (++done.left >= rebalance.at_most) break;  // counted no further, under the lock
      continue;
    }
    ++done.moving;
    set_moving(*region, lease, true);
  }
  for (const Seat& seat : seats) {
    const double used = share_of(static_cast<uint32_t>(slabs_in_use(*seat.node)), *seat.node) * 100;
    done.lowest_percent = std::min(done.lowest_percent, static_cast<uint32_t>(used));
    done.highest_percent = std::max(done.highest_percent, static_cast<uint32_t>(used));
  }
}

Rebalanced State::rebalance(const Rebalance& rebalance) {
  Rebalanced done;
  std::set<uint64_t> sizes;
  for (const auto& [id, node] : nodes_) sizes.insert(node.record.join.slab_bytes);
  for (const uint64_t slab_bytes : sizes) rebalance_slabs_of(slab_bytes, rebalance, done);
  done.lowest_percent = std::min(done.lowest_percent, done.highest_percent);
  return done;
}

}  // namespace farpage::coordinator
