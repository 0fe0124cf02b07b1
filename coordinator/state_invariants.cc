#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state.h"

namespace farpage::coordinator {

std::string State::check_node(const Node& node) const {
  const std::string& id = node.record.join.id.value;
  std::set<uint32_t> free(node.free.begin(), node.free.end());
  if (free.size() != node.free.size()) return fmt::format("node {}: a slab is free twice", id);
  std::array<uint32_t, kSlabUses> by_use{};
  for (uint32_t slab = 0; slab < node.slabs.size(); ++slab) {
    const bool is_free = node.slabs[slab] == SlabUse::kFree;
    if (is_free != (free.count(slab) == 1))
      return fmt::format("node {}: the free list is wrong about slab {}", id, slab);
    ++by_use[static_cast<size_t>(node.slabs[slab])];
  }
  if (by_use != node.slabs_by_use) return fmt::format("node {}: its slabs are miscounted", id);
  if (const uint32_t foreign = node.count(SlabUse::kForeign); foreign != node.foreign.size())
    return fmt::format("node {}: {} foreign slabs, {} listed", id, foreign, node.foreign.size());
  if (!free.empty() && *free.rbegin() >= node.slabs.size())
    return fmt::format("node {}: a free slab lies outside", id);
  return {};
}

std::string State::check_region(const Region& region) const {
  const std::string& id = region.record.id.value;
  std::map<SlabIndex, std::set<NodeId>> nodes_of;
  std::map<SlabIndex, uint32_t> replicas_of;
  for (const auto& [key, lease] : region.leases) {
    if (lease.slab != key.first || number_of(lease) != key.second)
      return fmt::format("region {}: a lease is filed wrongly", id);
    if (!lease.filling) ++replicas_of[lease.slab];
    if (lease.moving && (lease.filling || lease.lost))
      return fmt::format("region {}: a replica of slab {} moves that cannot", id, lease.slab.value);
    if (lease.filling && region.leases.count({lease.slab, lease.replica}) == 0)
      return fmt::format("region {}: what fills slab {} replaces nothing", id, lease.slab.value);
    if (lease.lost || lease.stale) continue;
    if (!nodes_of[lease.slab].insert(lease.node).second)
      return fmt::format("region {}: two replicas of slab {} on {}", id, lease.slab.value,
                         lease.node.value);
    const auto node = nodes_.find(lease.node);
    if (node == nodes_.end() || lease.node_slab >= node->second.slabs.size())
      return fmt::format("region {}: slab {} is leased on nothing", id, lease.slab.value);
    if (lease.bytes != region.record.slab_bytes ||
        lease.bytes != node->second.record.join.slab_bytes)
      return fmt::format("region {}: slab {} has another size", id, lease.slab.value);
  }
  // Fills in what is missing, so that the next check finds a change that was not noted.
  if (counts_of(region, {}) != count_leases(region, {}))
    return fmt::format("region {}: its leases are miscounted", id);
  for (const auto& [slab, replicas] : replicas_of)
    if (replicas != region.record.replicas)
      return fmt::format("region {}: slab {} has {} of {} replicas", id, slab.value, replicas,
                         region.record.replicas);
  return {};
}

// Each slab that is placing, leased or revoking has exactly one owner: a lease or a revocation.
std::string State::check_slab_uses() const {
  std::map<std::pair<NodeId, uint32_t>, SlabUse> owners;
  for (const auto& [id, region] : regions_)
    for (const auto& [key, lease] : region.leases)
      if (!lease.lost &&
          !owners.emplace(std::pair(lease.node, lease.node_slab), SlabUse::kLeased).second)
        return fmt::format("slab {} of {} is leased twice", lease.node_slab, lease.node.value);
  for (const auto& [id, pending] : revocations_) {
    const Revocation& revocation = pending.revocation;
    const auto node = nodes_.find(revocation.node);
    if (node == nodes_.end() || node->second.record.join.incarnation != revocation.incarnation)
      continue;
    if (!owners
             .emplace(std::pair(revocation.node, revocation.node_slab),
                      pending.placing ? SlabUse::kPlacing : SlabUse::kRevoking)
             .second)
      return fmt::format("slab {} of {} has two owners", revocation.node_slab,
                         revocation.node.value);
  }
  size_t owned = 0;
  for (const auto& [id, node] : nodes_) {
    for (uint32_t slab = 0; slab < node.slabs.size(); ++slab) {
      const auto owner = owners.find({id, slab});
      const SlabUse use = node.slabs[slab];
      const bool unowned = use == SlabUse::kFree || use == SlabUse::kForeign ||
                           use == SlabUse::kLeaving || use == SlabUse::kAbsent;
      if (unowned != (owner == owners.end()) || (!unowned && owner->second != use))
        return fmt::format("slab {} of {} is marked {}, which is wrong", slab, id.value,
                           static_cast<int>(use));
      owned += unowned ? 0 : 1;
    }
  }
  if (owned != owners.size()) return "a lease or a revocation names a slab outside its node";
  return {};
}

std::string State::check_images() const {
  for (const auto& [id, image] : images_) {
    const auto region = regions_.find(image.record.region);
    if (region == regions_.end() || region->second.image != id)
      return fmt::format("image {}: its region is another's", id.value);
    uint32_t generations = 1;
    for (ImageId base = image.record.base; !base.value.empty(); ++generations) {
      const auto found = images_.find(base);
      if (found == images_.end() || found->second.record.state != ImageState::kComplete ||
          generations == kMaxGenerations)
        return fmt::format("image {}: its base {} is missing, not complete, or one too many",
                           id.value, base.value);
      base = found->second.record.base;
    }
  }
  for (const auto& [id, region] : regions_)
    if (!region.image.value.empty() && images_.count(region.image) == 0)
      return fmt::format("region {}: its image is gone", id.value);
  return {};
}

std::string State::check() const {
  for (const auto& [id, node] : nodes_)
    if (std::string broken = check_node(node); !broken.empty()) return broken;
  for (const auto& [id, region] : regions_)
    if (std::string broken = check_region(region); !broken.empty()) return broken;
  if (std::string broken = check_images(); !broken.empty()) return broken;
  return check_slab_uses();
}

}  // namespace farpage::coordinator
