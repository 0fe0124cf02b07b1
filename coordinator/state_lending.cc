// How much a node lends, while it runs: State::lend() sets a number of slabs, and steps lead there.
//
// More: the node is asked for memory, a chunk at a time. Less: free slabs are taken away first;
// then leases are marked as moving, until those that are left are as many as the node is to lend.
// Their borrowers move them as they do when a node drains (state_repairs.cc).
#include <fmt/format.h>

#include <algorithm>

#include "base/size.h"
#include "base/unanswered.h"
#include "coordinator/api_json.h"
#include "coordinator/state.h"

namespace farpage::coordinator {
namespace {
// Of one request: what a node makes in a fraction of a second.
constexpr uint64_t kChunkBytes = uint64_t{256} << 20;
}  // namespace

uint32_t State::lent_slabs(const Node& node) {
  return static_cast<uint32_t>(node.slabs.size()) - node.count(SlabUse::kAbsent) -
         node.count(SlabUse::kLeaving);
}

uint32_t State::surplus_of(const Node& node) {
  const uint32_t lent = lent_slabs(node);
  return lent - std::min(lent, node.record.lend_slabs.value_or(lent));
}

uint32_t State::lendable_slabs(const Node& node) {
  const uint32_t free = node.count(SlabUse::kFree);
  return free - std::min(free, surplus_of(node));
}

// After a crash the coordinator must not lend what the node may have given up: slabs that are
// leaving are written as withdrawn before the node is asked.
void State::write_extent(Node& node) {
  NodeJoin& join = node.record.join;
  join.capacity_bytes = lent_slabs(node) * join.slab_bytes;
  join.withdrawn.clear();
  for (uint32_t slab = 0; slab < node.slabs.size(); ++slab)
    if (node.slabs[slab] == SlabUse::kAbsent || node.slabs[slab] == SlabUse::kLeaving)
      join.withdrawn.push_back(slab);
  changes_.nodes[join.id] = node.record;
}

void State::grow_numbers(Node& node, size_t numbers) {
  if (numbers <= node.slabs.size()) return;
  node.slabs_by_use[static_cast<size_t>(SlabUse::kAbsent)] +=
      static_cast<uint32_t>(numbers - node.slabs.size());
  node.slabs.resize(numbers, SlabUse::kAbsent);
}

bool State::can_move(const Region& region, const Lease& lease, const NodeId& from) const {
  return !lease.lost && lease.node == from && is_repaired(region);
}

// Each takes the node with the most room; which of them there is room for does not matter.
size_t State::movable_slabs(const Node& from, size_t wanted, size_t& places) {
  const NodeId& id = from.record.join.id;
  RegionRecord any;
  any.slab_bytes = from.record.join.slab_bytes;
  const Lenders lenders = find_lenders(any, {id});
  std::vector<uint32_t> room = lenders.free_slabs;
  size_t movable = 0;
  places = 0;
  for (const auto& [region_id, region] : regions_) {
    for (const auto& [key, lease] : region.leases) {
      if (!can_move(region, lease, id)) continue;
      ++movable;
      if (places >= wanted) continue;
      std::optional<size_t> best;
      for (size_t i = 0; i < room.size(); ++i) {
        if (room[i] == 0 || (best && room[i] <= room[*best])) continue;
        if (may_hold(*lenders.nodes[i], region, key.first, &lease)) best = i;
      }
      if (!best) continue;
      --room[*best];
      ++places;
    }
  }
  return movable;
}

Status State::check_lend(const Node& node, uint32_t slabs) {
  const NodeJoin& join = node.record.join;
  if (node.silent)
    return fail(ErrorCode::kUnavailable,
                fmt::format("node '{}' is lost: try again when it is back", join.id.value));
  if (node.record.service == NodeService::kDraining)
    return fail(ErrorCode::kConflict,
                fmt::format("node '{}' drains: farpage uncordon ends that", join.id.value));
  if (slabs == 0 || slabs > kMaxSlabsPerNode)
    return fail(
        ErrorCode::kInvalid,
        fmt::format("field 'bytes': must be 1 to {} slabs of {} (farpage drain takes a node "
                    "away)",
                    kMaxSlabsPerNode, format_size(join.slab_bytes)));
  const size_t used = slabs_in_use(node);
  if (used <= slabs) return {};
  const size_t wanted = used - slabs;
  size_t places = 0;
  const size_t movable = movable_slabs(node, wanted, places);
  if (movable < wanted)
    return fail(ErrorCode::kConflict,
                fmt::format("node '{}' lends {} slabs that do not move, of images that are being "
                            "uploaded or not leased yet: it can lend {} or more",
                            join.id.value, used - movable,
                            format_size((used - movable) * join.slab_bytes)));
  if (places < wanted)
    return fail(
        ErrorCode::kExhausted,
        fmt::format("{} slabs of node '{}' would have to move, and other nodes have room "
                    "for {} of them: start another node, or lend {} or more",
                    wanted, join.id.value, places, format_size((used - places) * join.slab_bytes)));
  return {};
}

Result<NodeInfo> State::lend(Instant now, const NodeId& id, const NodeLend& lend) {
  const auto it = nodes_.find(id);
  if (it == nodes_.end()) return fail(ErrorCode::kNotFound, fmt::format("no node '{}'", id.value));
  Node& node = it->second;
  const uint64_t slabs = lend.bytes / node.record.join.slab_bytes;
  const auto number = static_cast<uint32_t>(std::min<uint64_t>(slabs, kMaxSlabsPerNode + 1));
  FARPAGE_TRY_VOID(check_lend(node, number));
  node.record.lend_slabs = number;
  node.lend_refused.clear();
  node.lend_singly = false;
  changes_.nodes[id] = node.record;
  mark_moving(node, 0);
  return info_of(now, node);
}

void State::set_moving(Region& region, Replicas::iterator it, bool moving) {
  auto& [key, lease] = *it;
  lease.moving = moving;
  note_lease(region, key, lease);
  if (moving) emit(EventKind::kSlabMoving, lease.node, region.record.id, key.first);
}

// Marks leases of the node, or ends marks, until as many are moving.
void State::mark_moving(const Node& node, size_t wanted) {
  const NodeId& id = node.record.join.id;
  size_t marked = 0;
  for (const auto& [region_id, region] : regions_)
    for (const auto& [key, lease] : region.leases)
      marked += can_move(region, lease, id) && lease.moving ? 1 : 0;
  for (auto& [region_id, region] : regions_) {
    for (auto lease = region.leases.begin(); lease != region.leases.end(); ++lease) {
      if (marked == wanted) return;
      if (!can_move(region, lease->second, id) || lease->second.filling || lease->second.stale ||
          lease->second.moving == (marked < wanted))
        continue;
      const bool more = marked < wanted;
      set_moving(region, lease, more);
      marked = more ? marked + 1 : marked - 1;
    }
  }
}

std::optional<LendStep> State::next_lend_step(Node& node) {
  LendStep step;
  step.node = node.record.join.id;
  step.incarnation = node.record.join.incarnation;
  step.agent_url = node.record.join.agent_url;
  if (node.lend_unsure) {
    step.withdraw = node.record.join.withdrawn;
    return step;
  }
  const uint32_t lent = lent_slabs(node);
  const uint32_t target = *node.record.lend_slabs;
  const auto chunk =
      static_cast<uint32_t>(std::max<uint64_t>(kChunkBytes / node.record.join.slab_bytes, 1));
  if (lent < target) {
    const uint32_t wanted = std::min(target - lent, chunk);
    for (uint32_t slab = 0; step.add.size() < wanted; ++slab)
      if (slab >= node.slabs.size() || node.slabs[slab] == SlabUse::kAbsent)
        step.add.push_back(slab);
    step.add_in_all = target - lent;
    // Whatever becomes of this request, the node can be told to withdraw these.
    grow_numbers(node, size_t{step.add.back()} + 1);
    write_extent(node);
    return step;
  }
  const uint32_t surplus = lent - target;
  const uint32_t free = node.count(SlabUse::kFree);
  const size_t count = std::min({surplus, free, node.lend_singly ? 1U : chunk});
  for (size_t i = 0; i < count; ++i) {
    step.withdraw.push_back(node.free.front());
    set_use(node, step.withdraw.back(), SlabUse::kLeaving);
  }
  const uint32_t soon = free + node.count(SlabUse::kRevoking) + node.count(SlabUse::kPlacing);
  mark_moving(node, surplus - std::min(surplus, soon));
  if (count > 0) {
    write_extent(node);
    return step;
  }
  if (surplus == 0) {
    node.record.lend_slabs = std::nullopt;
    changes_.nodes[step.node] = node.record;
  }
  return std::nullopt;
}

std::vector<LendStep> State::begin_lend_steps() {
  std::vector<LendStep> steps;
  for (auto& [id, node] : nodes_) {
    if (!node.record.lend_slabs || node.silent || node.lend_step_open) continue;
    if (std::optional<LendStep> step = next_lend_step(node)) {
      node.lend_step_open = true;
      steps.push_back(std::move(*step));
    }
  }
  return steps;
}

void State::end_lend_step(const LendStep& step, const Status& outcome) {
  const auto it = nodes_.find(step.node);
  if (it == nodes_.end() || it->second.record.join.incarnation != step.incarnation) return;
  Node& node = it->second;
  node.lend_step_open = false;
  const ErrorCode code = outcome ? ErrorCode::kIo : outcome.error().code;
  const bool again = is_unanswered(code);
  if (node.lend_unsure) {
    node.lend_unsure = again;
  } else {
    settle_lend_step(node, step, outcome);
    node.lend_unsure = code == ErrorCode::kTimedOut;
  }
  node.lend_singly = node.lend_singly || code == ErrorCode::kConflict;
  if (!outcome && !again && code != ErrorCode::kConflict) {
    node.lend_refused = outcome.error().message();
    node.record.lend_slabs = std::nullopt;
    mark_moving(node, 0);
  }
  write_extent(node);
}

void State::settle_lend_step(Node& node, const LendStep& step, const Status& outcome) {
  for (const uint32_t slab : step.add) {
    if (!outcome) break;
    if (node.slabs[slab] == SlabUse::kAbsent) set_use(node, slab, SlabUse::kFree);
  }
  // It is lent to somebody whom we do not know, and is tried again later.
  const bool foreign =
      !outcome && outcome.error().code == ErrorCode::kConflict && step.withdraw.size() == 1;
  // An answer that was lost may have been a yes: the node is told again (lend_unsure).
  const bool gone = outcome || outcome.error().code == ErrorCode::kTimedOut;
  for (const uint32_t slab : step.withdraw) {
    if (node.slabs[slab] != SlabUse::kLeaving) continue;
    set_use(node, slab, gone ? SlabUse::kAbsent : foreign ? SlabUse::kForeign : SlabUse::kFree);
    if (foreign) node.foreign.emplace_back(node.last_heard, slab);
  }
}

// A node that joins again says which slabs it has: an older store may say otherwise.
void State::adopt_extent(Node& node, const NodeJoin& join) {
  const size_t numbers = join.capacity_bytes / join.slab_bytes + join.withdrawn.size();
  grow_numbers(node, numbers);
  std::vector<bool> absent(node.slabs.size(), false);
  for (const uint32_t slab : join.withdrawn) absent[slab] = true;
  for (size_t slab = numbers; slab < absent.size(); ++slab) absent[slab] = true;
  for (uint32_t slab = 0; slab < absent.size(); ++slab) {
    const SlabUse use = node.slabs[slab];
    if (use == SlabUse::kLeaving || absent[slab] == (use == SlabUse::kAbsent)) continue;
    if (absent[slab]) end_slab(node, slab);
    set_use(node, slab, absent[slab] ? SlabUse::kAbsent : SlabUse::kFree);
  }
}

// Its lease is lost, its revocation is done.
void State::end_slab(Node& node, uint32_t slab) {
  const NodeId& id = node.record.join.id;
  for (auto& [region_id, region] : regions_) {
    for (auto& [key, lease] : region.leases) {
      if (lease.lost || lease.node != id || lease.node_slab != slab) continue;
      lease.lost = true;
      lease.moving = false;
      note_lease(region, key, lease);
      emit(EventKind::kLeaseLost, id, region_id, key.first);
    }
  }
  for (auto it = revocations_.begin(); it != revocations_.end();) {
    const auto next = std::next(it);
    const Revocation& revocation = it->second.revocation;
    if (revocation.node == id && revocation.node_slab == slab) erase_revocation(it->first);
    it = next;
  }
  std::erase_if(node.foreign, [&](const auto& entry) { return entry.second == slab; });
}

}  // namespace farpage::coordinator
