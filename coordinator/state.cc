#include "coordinator/state.h"

#include <algorithm>

#include "base/check.h"

namespace farpage::coordinator {

State::State(StateOptions options, const Snapshot& snapshot, Instant now)
    : options_(options),
      placement_(options.seed),
      events_(options.event_capacity,
              snapshot.last_sequence != 0 ? snapshot.last_sequence : options.first_sequence,
              snapshot.last_sequence != 0) {
  last_tick_ = now;
  awake_since_ = now;
  restore(snapshot, now);
}

void State::restore(const Snapshot& snapshot, Instant now) {
  for (const NodeRecord& record : snapshot.nodes) {
    Node& node = nodes_[record.join.id];
    node.record = record;
    reset_slabs(node, now);
    node.lend_unsure = record.lend_slabs.has_value();
  }
  for (const RegionRecord& record : snapshot.regions) {
    Region& region = regions_[record.id];
    region.record = record;
    region.last_heard = now;
  }
  restore_images(snapshot);
  for (const auto& [key, lease] : snapshot.leases) restore_lease(key, lease);
  for (const Revocation& revocation : snapshot.revocations) {
    next_revocation_ = std::max(next_revocation_, revocation.id + 1);
    Node* node = node_of(revocation);
    // A stored lease overrides a stored revocation of its slab: that request was answered.
    if (node != nullptr && (revocation.node_slab >= node->slabs.size() ||
                            node->slabs[revocation.node_slab] != SlabUse::kFree)) {
      changes_.revocations[revocation.id] = std::nullopt;
      continue;
    }
    if (node != nullptr) set_use(*node, revocation.node_slab, SlabUse::kRevoking);
    const auto region = regions_.find(revocation.asked.region);
    const bool is_of_image = region != regions_.end() && !region->second.image.value.empty();
    revocations_[revocation.id] =
        PendingRevocation{revocation, false, is_of_image ? now : Instant{0}};
  }
}

void State::restore_lease(const LeaseKey& key, const Lease& lease) {
  const auto region = regions_.find(key.region);
  if (region == regions_.end()) {
    changes_.leases[key] = std::nullopt;
    return;
  }
  Lease& restored = region->second.leases[{key.slab, key.replica}];
  restored = lease;
  if (restored.lost) return;
  const auto node = nodes_.find(lease.node);
  const bool sound = node != nodes_.end() && lease.node_slab < node->second.slabs.size() &&
                     node->second.slabs[lease.node_slab] == SlabUse::kFree;
  if (sound) {
    set_use(node->second, lease.node_slab, SlabUse::kLeased);
  } else {
    restored.lost = true;
    restored.moving = false;
    note_lease(region->second, {key.slab, key.replica}, restored);
  }
}

void State::note_lease(Region& region, const Replicas::key_type& key, std::optional<Lease> lease) {
  region.counts.reset();
  changes_.leases[LeaseKey{region.record.id, key.first, key.second}] = std::move(lease);
}

void State::emit(EventKind kind, const NodeId& node, const RegionId& region, SlabIndex slab) {
  Event event;
  event.kind = kind;
  event.node = node;
  event.region = region;
  event.slab = slab;
  events_.append(std::move(event));
}

void State::set_use(Node& node, uint32_t slab, SlabUse use) {
  SlabUse& current = node.slabs[slab];
  FARPAGE_CHECK(current != use, "slab %u of %s is already in state %d", slab,
                node.record.join.id.value.c_str(), static_cast<int>(use));
  if (current == SlabUse::kFree) {
    const auto it = std::find(node.free.begin(), node.free.end(), slab);
    FARPAGE_CHECK(it != node.free.end(), "free slab %u is not in the free list", slab);
    node.free.erase(it);
  }
  --node.slabs_by_use[static_cast<size_t>(current)];
  ++node.slabs_by_use[static_cast<size_t>(use)];
  current = use;
  if (use == SlabUse::kFree) node.free.push_back(slab);
}

State::Node* State::node_of(const Revocation& revocation) {
  const auto node = nodes_.find(revocation.node);
  if (node == nodes_.end() || node->second.record.join.incarnation != revocation.incarnation)
    return nullptr;
  return &node->second;
}

uint64_t State::add_revocation(Revocation revocation, bool placing, Instant replaced_at) {
  revocation.id = next_revocation_++;
  changes_.revocations[revocation.id] = revocation;
  const uint64_t id = revocation.id;
  revocations_[id] = PendingRevocation{std::move(revocation), placing, replaced_at};
  return id;
}

void State::erase_revocation(uint64_t id) {
  revocations_.erase(id);
  changes_.revocations[id] = std::nullopt;
}

// Time in which this process did not run does not count: readers could not renew themselves.
std::vector<Revocation> State::revocations() const {
  std::vector<Revocation> list;
  for (const auto& [id, pending] : revocations_) {
    const bool is_read = pending.replaced_at > Instant{0} &&
                         last_tick_ < std::max(pending.replaced_at, awake_since_) + kReaderGrace;
    if (!pending.placing && !is_read) list.push_back(pending.revocation);
  }
  return list;
}

void State::learn_generation(uint64_t revocation, Generation generation) {
  const auto it = revocations_.find(revocation);
  if (it == revocations_.end()) return;
  it->second.revocation.generation = generation;
  changes_.revocations[revocation] = it->second.revocation;
}

void State::revoked(uint64_t revocation, bool foreign) {
  const auto it = revocations_.find(revocation);
  if (it == revocations_.end()) return;
  const Revocation& done = it->second.revocation;
  if (Node* node = node_of(done); node != nullptr) {
    set_use(*node, done.node_slab, foreign ? SlabUse::kForeign : SlabUse::kFree);
    if (foreign) node->foreign.emplace_back(node->last_heard, done.node_slab);
  }
  erase_revocation(revocation);
}

void State::tick(Instant now) {
  // Messages that arrived while this process did not run may still be in its sockets.
  if (now - last_tick_ > options_.longest_tick) awake_since_ = now;
  last_tick_ = now;
  for (auto& [id, node] : nodes_) {
    if (!node.silent && silence(now, node.last_heard) > options_.node_time_to_live) {
      node.silent = true;
      emit(EventKind::kNodeLost, id);
    }
    while (!node.foreign.empty() &&
           now - node.foreign.front().first > options_.region_time_to_live) {
      set_use(node, node.foreign.front().second, SlabUse::kFree);
      node.foreign.pop_front();
    }
  }
  for (auto region = regions_.begin(); region != regions_.end();) {
    const auto next = std::next(region);
    Region& looked_at = region->second;
    if (may_be_in_use(now, looked_at)) looked_at.last_wanted = now;
    const Instant last = std::max(looked_at.last_heard, looked_at.last_wanted);
    const bool ends_by_silence = looked_at.image.value.empty();
    if (ends_by_silence && silence(now, last) > options_.region_time_to_live) erase_region(region);
    region = next;
  }
  expire_readers(now);
  return_to_memory(now);
}

Nanoseconds State::silence(Instant now, Instant last_heard) const {
  return now - std::max(last_heard, awake_since_);
}

// Whether a lender of the region has, or may have, a data session of its pager. A lender that has
// been silent for a short time may have one. One silent for long is ignored, unless all are: then
// this coordinator is probably partitioned, and could not revoke a slab anyway.
bool State::may_be_in_use(Instant now, const Region& region) const {
  if (region.record.session_group == 0) return false;
  bool any_lender = false;
  bool any_heard = false;
  for (const auto& [key, lease] : region.leases) {
    if (lease.lost) continue;
    any_lender = true;
    const Node& node = nodes_.at(lease.node);
    const Nanoseconds quiet = silence(now, node.last_heard);
    if (quiet > options_.node_time_to_live) {
      if (quiet <= kSilentNodeFactor * options_.region_time_to_live) return true;
      continue;
    }
    any_heard = true;
    const auto& groups = node.session_groups;
    if (!groups || std::binary_search(groups->begin(), groups->end(), region.record.session_group))
      return true;
  }
  return any_lender && !any_heard;
}

Totals State::totals() const {
  Totals totals;
  std::set<NodeId> silent;
  for (const auto& [id, node] : nodes_) {
    if (node.silent) silent.insert(id);
    switch (state_of(node)) {
      case NodeState::kAlive:
        ++totals.nodes_alive;
        break;
      case NodeState::kCordoned:
        ++totals.nodes_cordoned;
        break;
      case NodeState::kDraining:
        ++totals.nodes_draining;
        break;
      case NodeState::kLost:
        ++totals.nodes_lost;
        break;
    }
    const uint64_t slabs = node.slabs.size() - node.count(SlabUse::kAbsent);
    const bool can_lend = state_of(node) == NodeState::kAlive;
    const uint32_t lendable = can_lend ? lendable_slabs(node) : 0;
    if (is_disk(node)) {
      totals.slabs_spilled += node.count(SlabUse::kLeased);
      totals.bytes_spill += slabs * node.record.join.slab_bytes;
      totals.bytes_spill_free += lendable * node.record.join.slab_bytes;
      continue;
    }
    totals.slabs += slabs;
    totals.slabs_free += lendable;
    totals.slabs_unavailable +=
        node.count(SlabUse::kFree) - lendable + node.count(SlabUse::kLeaving);
    totals.slabs_placing += node.count(SlabUse::kPlacing);
    totals.slabs_leased += node.count(SlabUse::kLeased);
    totals.slabs_revoking += node.count(SlabUse::kRevoking);
    totals.slabs_foreign += node.count(SlabUse::kForeign);
    totals.bytes += slabs * node.record.join.slab_bytes;
    totals.bytes_free += lendable * node.record.join.slab_bytes;
  }
  totals.regions = regions_.size();
  const std::string degraded(kDegradedCounter);
  for (const auto& [id, region] : regions_) {
    const LeaseCounts counts = counts_of(region, silent);
    const auto told = region.counters.find(degraded);
    totals.leases += region.leases.size();
    totals.leases_lost += counts.lost;
    // The borrower knows of replicas that it has given up before it asks for others.
    totals.slabs_degraded +=
        std::max(counts.degraded, told == region.counters.end() ? 0 : told->second);
    totals.slabs_repairing += counts.repairing;
    totals.slabs_moving += counts.moving;
  }
  return totals;
}

Changes State::take_changes() {
  Changes taken = std::move(changes_);
  changes_ = Changes{};
  taken.last_sequence = events_.last();
  return taken;
}

}  // namespace farpage::coordinator
