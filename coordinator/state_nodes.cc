#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state.h"

namespace farpage::coordinator {
namespace {
constexpr size_t kMaxRetired = size_t{2} * kMaxNodes;
constexpr size_t kMaxExchangesKept = 64;  // per node

tl::unexpected<Error> no_such_node(const NodeId& id) {
  return fail(ErrorCode::kNotFound, fmt::format("no node '{}'", id.value));
}
}  // namespace

NodeState State::state_of(const Node& node) {
  if (node.silent) return NodeState::kLost;
  switch (node.record.service) {
    case NodeService::kFull:
      return NodeState::kAlive;
    case NodeService::kDraining:
      return NodeState::kDraining;
    case NodeService::kCordoned:
      return NodeState::kCordoned;
  }
  return NodeState::kAlive;
}

NodeInfo State::info_of(Instant now, const Node& node) const {
  NodeInfo info;
  info.join = node.record.join;
  info.state = state_of(node);
  info.total_slabs = lent_slabs(node);
  info.free_slabs = static_cast<uint32_t>(node.free.size());
  if (node.record.lend_slabs) info.lend_bytes = *node.record.lend_slabs * info.join.slab_bytes;
  info.lend_refused = node.lend_refused;
  info.last_heartbeat_age = std::chrono::duration_cast<Milliseconds>(now - node.last_heard);
  info.counters = node.counters;
  return info;
}

// Makes all slabs free that have memory; the lowest is lent first.
void State::reset_slabs(Node& node, Instant now) {
  const NodeJoin& join = node.record.join;
  const auto count = static_cast<uint32_t>(join.capacity_bytes / join.slab_bytes);
  node.slabs.clear();
  node.slabs_by_use = {};
  grow_numbers(node, count + join.withdrawn.size());
  node.slabs_by_use[static_cast<size_t>(SlabUse::kFree)] = count;
  node.slabs_by_use[static_cast<size_t>(SlabUse::kAbsent)] -= count;
  std::vector<bool> absent(node.slabs.size(), false);
  for (const uint32_t slab : join.withdrawn) absent[slab] = true;
  node.free.clear();
  for (uint32_t slab = 0; slab < absent.size(); ++slab) {
    if (absent[slab]) continue;
    node.slabs[slab] = SlabUse::kFree;
    node.free.push_back(slab);
  }
  node.foreign.clear();
  node.reported_free = count;
  node.last_heard = now;
  node.silent = false;
}

void State::retire(const NodeId& id, uint64_t incarnation) {
  retired_.emplace_back(id, incarnation);
  if (retired_.size() > kMaxRetired) retired_.pop_front();
}

size_t State::slabs_in_use(const Node& node) const {
  return node.count(SlabUse::kLeased) + node.count(SlabUse::kPlacing);
}

void State::lose_leases(const NodeId& id) {
  for (auto& [region_id, region] : regions_) {
    for (auto& [key, lease] : region.leases) {
      if (lease.lost || lease.node != id) continue;
      lease.lost = true;
      lease.moving = false;
      note_lease(region, key, lease);
      emit(EventKind::kLeaseLost, id, region_id, key.first);
    }
  }
}

Result<bool> State::join(Instant now, const NodeJoin& join) {
  if (std::find(retired_.begin(), retired_.end(), std::pair(join.id, join.incarnation)) !=
      retired_.end())
    return fail(ErrorCode::kConflict,
                fmt::format("this incarnation of node '{}' was removed, or replaced by another "
                            "process with the same id: restart it, or give it another id",
                            join.id.value));
  const auto known = nodes_.find(join.id);
  if (known == nodes_.end() && nodes_.size() >= options_.max_nodes)
    return fail(ErrorCode::kExhausted,
                fmt::format("there are already {} nodes: remove one first", nodes_.size()));
  const bool same =
      known != nodes_.end() && known->second.record.join.incarnation == join.incarnation;
  if (same) {
    FARPAGE_TRY_VOID(renew(now, known->second, join));
  } else {
    replace(now, join);
  }
  changes_.nodes[join.id] = nodes_[join.id].record;
  return !same;
}

// A known process joins again.
Status State::renew(Instant now, Node& node, const NodeJoin& join) {
  if (node.record.join.slab_bytes != join.slab_bytes)
    return fail(ErrorCode::kConflict,
                fmt::format("node '{}' changed slab_bytes: its memory is new, so it must join with "
                            "a new incarnation",
                            join.id.value));
  node.record.join = join;
  adopt_extent(node, join);
  write_extent(node);
  hear(now, node);
  return {};
}

// A new process; it may replace an old one, whose memory is lost.
void State::replace(Instant now, const NodeJoin& join) {
  if (const auto old = nodes_.find(join.id); old != nodes_.end()) {
    retire(join.id, old->second.record.join.incarnation);
    if (!old->second.silent) emit(EventKind::kNodeLost, join.id);
    lose_leases(join.id);
  }
  // There is nothing left to revoke.
  for (auto it = revocations_.begin(); it != revocations_.end();) {
    const auto next = std::next(it);
    if (it->second.revocation.node == join.id) erase_revocation(it->first);
    it = next;
  }
  Node fresh;
  fresh.record.join = join;
  // A drain is over with the process that was drained.
  if (const auto old = nodes_.find(join.id);
      old != nodes_.end() && old->second.record.service == NodeService::kCordoned)
    fresh.record.service = NodeService::kCordoned;
  reset_slabs(fresh, now);
  nodes_[join.id] = std::move(fresh);
  emit(EventKind::kNodeJoined, join.id);
}

void State::hear(Instant now, Node& node) {
  node.last_heard = now;
  if (!node.silent) return;
  node.silent = false;
  emit(EventKind::kNodeJoined, node.record.join.id);
}

Status State::heartbeat_node(Instant now, const NodeId& id, NodeHeartbeat heartbeat) {
  const auto it = nodes_.find(id);
  if (it == nodes_.end()) return no_such_node(id);
  Node& node = it->second;
  if (node.record.join.incarnation != heartbeat.incarnation)
    return fail(ErrorCode::kNotFound,
                fmt::format("node '{}' is known with another incarnation", id.value));
  // The store is an older copy: the node joins again, and says which slabs it has.
  if (heartbeat.free_slabs > node.slabs.size())
    return fail(ErrorCode::kNotFound,
                fmt::format("field 'free_slabs': is {}, but the node is known "
                            "with {}",
                            heartbeat.free_slabs, node.slabs.size()));
  node.reported_free = heartbeat.free_slabs;
  node.counters = std::move(heartbeat.counters);
  node.session_groups = std::move(heartbeat.session_groups);
  std::sort(node.session_groups->begin(), node.session_groups->end());
  hear(now, node);
  return {};
}

Status State::set_service(const NodeId& id, NodeService service) {
  const auto it = nodes_.find(id);
  if (it == nodes_.end()) return no_such_node(id);
  if (it->second.record.service == service) return {};
  it->second.record.service = service;
  changes_.nodes[id] = it->second.record;
  switch (service) {
    case NodeService::kFull:
      emit(EventKind::kNodeOpened, id);
      break;
    case NodeService::kDraining:
      emit(EventKind::kNodeDraining, id);
      break;
    case NodeService::kCordoned:
      emit(EventKind::kNodeCordoned, id);
      break;
  }
  return {};
}

Status State::remove_node(const NodeId& id, bool force) {
  const auto it = nodes_.find(id);
  if (it == nodes_.end()) return no_such_node(id);
  const Node& node = it->second;
  const size_t lent = slabs_in_use(node);
  if (lent > 0 && !force)
    return fail(
        ErrorCode::kConflict,
        fmt::format("node '{}' lends {} slabs: drain it and wait, or use ?force=true, which "
                    "loses what they hold",
                    id.value, lent));
  for (const auto& [region_id, region] : regions_) {
    for (const auto& [key, lease] : region.leases) {
      if (lease.lost || lease.node != id) continue;
      Revocation revocation;
      revocation.node = id;
      revocation.incarnation = node.record.join.incarnation;
      revocation.agent_url = node.record.join.agent_url;
      revocation.node_slab = lease.node_slab;
      revocation.generation = lease.generation;
      revocation.asked = SlabLeaseRequest{region_id, key.first, key.second};
      add_revocation(std::move(revocation), false);
    }
  }
  lose_leases(id);
  retire(id, node.record.join.incarnation);
  nodes_.erase(it);
  changes_.nodes[id] = std::nullopt;
  emit(EventKind::kNodeLeft, id);
  return {};
}

Result<NodeInfo> State::node(Instant now, const NodeId& id) const {
  const auto it = nodes_.find(id);
  if (it == nodes_.end()) return no_such_node(id);
  return info_of(now, it->second);
}

std::vector<NodeInfo> State::nodes(Instant now) const {
  std::vector<NodeInfo> list;
  for (const auto& [id, node] : nodes_) list.push_back(info_of(now, node));
  return list;
}

Result<NodeEndpoints> State::endpoints(const NodeId& id) const {
  const auto it = nodes_.find(id);
  if (it == nodes_.end()) return no_such_node(id);
  const Node& node = it->second;
  NodeEndpoints endpoints;
  endpoints.id = id;
  endpoints.incarnation = node.record.join.incarnation;
  endpoints.transports = node.record.join.transports;
  endpoints.exchanged.assign(node.exchanged.begin(), node.exchanged.end());
  return endpoints;
}

Status State::record_exchange(const NodeId& id, uint64_t incarnation, QueuePairExchanged pair) {
  const auto it = nodes_.find(id);
  if (it == nodes_.end()) return no_such_node(id);
  if (it->second.record.join.incarnation != incarnation)
    return fail(
        ErrorCode::kConflict,
        fmt::format("node '{}' has restarted, so its endpoint is stale: exchange again", id.value));
  it->second.exchanged.push_back(std::move(pair));
  if (it->second.exchanged.size() > kMaxExchangesKept) it->second.exchanged.pop_front();
  return {};
}

size_t State::leases_of(const NodeId& id) const {
  size_t leases = 0;
  for (const auto& [region_id, region] : regions_)
    for (const auto& [key, lease] : region.leases)
      leases += !lease.lost && !lease.stale && lease.node == id ? 1 : 0;
  return leases;
}

std::map<NodeId, uint32_t> State::reported_free_slabs() const {
  std::map<NodeId, uint32_t> reported;
  for (const auto& [id, node] : nodes_) reported[id] = node.reported_free;
  return reported;
}

}  // namespace farpage::coordinator
