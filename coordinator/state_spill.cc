// Nodes that lend room of a disk are the last resort: slabs are placed there when memory has no
// room for them, and move to memory when it has some again, by the repair that their borrowers have
// (state_repairs.cc).
#include <algorithm>

#include "coordinator/state.h"

namespace farpage::coordinator {
namespace {
// Of a region: what its borrower, which copies one slab after the other, does between two ticks.
constexpr size_t kMaxReturning = 8;
}  // namespace

bool State::gives_to_memory(const Node& node) {
  return is_disk(node) && !is_leaving(state_of(node)) && !node.record.lend_slabs;
}

std::optional<std::vector<std::vector<size_t>>> State::place(const Lenders& lenders, size_t slabs,
                                                             uint32_t replicas, bool memory) {
  std::vector<uint32_t> in_memory = lenders.free_slabs;
  std::vector<uint32_t> anywhere = lenders.free_slabs;
  bool has_disk = false;
  for (size_t i = 0; i < lenders.nodes.size(); ++i) {
    const bool disk = is_disk(*lenders.nodes[i]);
    has_disk = has_disk || disk;
    if (disk) in_memory[i] = 0;
    if (!disk && !memory) anywhere[i] = 0;
  }
  if (memory) {
    auto choices = placement_.place(in_memory, slabs, replicas, lenders.domains);
    if (choices || !has_disk) return choices;
  }
  const std::vector<uint32_t> at_first = anywhere;
  std::vector<std::vector<size_t>> choices;
  while (memory && choices.size() < slabs) {
    const auto next = placement_.place(in_memory, 1, replicas, lenders.domains);
    if (!next) break;
    for (const size_t node : next->front()) {
      --in_memory[node];
      --anywhere[node];
    }
    choices.push_back(next->front());
  }
  const auto rest = placement_.place(anywhere, slabs - choices.size(), replicas, lenders.domains);
  // What was placed in memory may be in the way of replicas on distinct nodes.
  if (!rest) return placement_.place(at_first, slabs, replicas, lenders.domains);
  choices.insert(choices.end(), rest->begin(), rest->end());
  return choices;
}

void State::mark_returning(Region& region, size_t room) {
  std::vector<Replicas::iterator> staying;
  std::set<SlabIndex> returning;
  for (auto lease = region.leases.begin(); lease != region.leases.end(); ++lease) {
    const Lease& held = lease->second;
    if (held.lost || held.stale || held.filling || !gives_to_memory(nodes_.at(held.node))) continue;
    if (held.moving) {
      returning.insert(held.slab);
    } else {
      staying.push_back(lease);
    }
  }
  for (const Replicas::iterator lease : staying) {
    if (returning.size() >= std::min(kMaxReturning, room) ||
        !check_kept_free(region, (returning.size() + 1) * region.record.slab_bytes))
      return;
    // Of two replicas of a slab the first may take the only node for both.
    if (returning.count(lease->second.slab) != 0 || !any_may_hold(region, lease->second, false))
      continue;
    set_moving(region, lease, true);
    returning.insert(lease->second.slab);
  }
}

// Each time anew, from how the slabs lie: memory comes in many ways. A mark that cannot be served
// ends when its borrower asks (begin_repair()).
void State::return_to_memory(Instant now) {
  std::set<uint64_t> spilled;  // sizes of slabs
  std::map<uint64_t, size_t> room;
  for (const auto& [id, node] : nodes_) {
    const uint64_t bytes = node.record.join.slab_bytes;
    if (gives_to_memory(node) && node.count(SlabUse::kLeased) > 0) spilled.insert(bytes);
    if (!is_disk(node) && state_of(node) == NodeState::kAlive) room[bytes] += lendable_slabs(node);
  }
  std::erase_if(spilled, [&](uint64_t bytes) { return room[bytes] == 0; });
  if (spilled.empty()) return;
  for (auto& [id, region] : regions_)
    if (spilled.count(region.record.slab_bytes) != 0 && is_repaired(region) &&
        now >= region.return_not_before)
      mark_returning(region, room[region.record.slab_bytes]);
}

}  // namespace farpage::coordinator
