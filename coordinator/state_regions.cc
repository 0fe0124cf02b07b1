#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/size.h"
#include "coordinator/state.h"

namespace farpage::coordinator {
namespace {
tl::unexpected<Error> no_such_region(const RegionId& id) {
  return fail(ErrorCode::kNotFound, fmt::format("no region '{}'", id.value));
}
Status refuse_image(const RegionId& id, const ImageId& image) {
  return fail(ErrorCode::kConflict,
              fmt::format("region '{}' has the pages of image '{}': remove the image instead",
                          id.value, image.value));
}
}  // namespace

Result<State::Region*> State::find_region(const RegionId& id) {
  const auto it = regions_.find(id);
  if (it == regions_.end()) return no_such_region(id);
  return &it->second;
}

RegionInfo State::info_of(const Region& region, const StateOptions& options) {
  RegionInfo info = summary_of(region, options);
  info.leases.reserve(region.leases.size());
  for (const auto& [key, lease] : region.leases) info.leases.push_back(lease);
  return info;
}

RegionInfo State::summary_of(const Region& region, const StateOptions& options) {
  RegionInfo info;
  info.id = region.record.id;
  info.name = region.record.name;
  info.replicas = region.record.replicas;
  info.slab_bytes = region.record.slab_bytes;
  info.heartbeat_interval = options.region_heartbeat_interval;
  info.time_to_live = std::chrono::duration_cast<Milliseconds>(options.region_time_to_live);
  info.counters = region.counters;
  info.image = region.image;
  info.spread_by = region.record.spread_by;
  info.borrower = region.record.borrower;
  return info;
}

Result<RegionId> State::create_region(Instant now, const RegionCreate& create) {
  if (regions_.size() >= options_.max_regions)
    return fail(ErrorCode::kExhausted,
                fmt::format("there are already {} regions: delete one first", regions_.size()));
  RegionId id;
  do {
    id.value = fmt::format("r-{:016x}", placement_.next_random());
  } while (regions_.count(id) != 0);
  Region& region = regions_[id];
  region.record = RegionRecord{id,
                               create.name,
                               create.replicas,
                               create.slab_bytes,
                               create.session_group,
                               create.spread_by.empty() ? options_.spread_by : create.spread_by,
                               create.borrower};
  region.last_heard = now;
  changes_.regions[id] = region.record;
  emit(EventKind::kRegionCreated, {}, id);
  return id;
}

Status State::heartbeat_region(Instant now, const RegionId& id, RegionHeartbeat heartbeat) {
  FARPAGE_TRY(region, find_region(id));
  region->last_heard = now;
  region->counters = std::move(heartbeat.counters);
  return {};
}

// Ends the lease; the node, if it still has the memory, is told to revoke the slab.
void State::drop_lease(Region& region, Replicas::iterator it, Instant replaced_at) {
  const auto& [key, lease] = *it;
  if (!lease.lost) {
    const auto node = nodes_.find(lease.node);
    FARPAGE_CHECK(node != nodes_.end(), "a lease on unknown node %s is not lost",
                  lease.node.value.c_str());
    Revocation revocation;
    revocation.node = lease.node;
    revocation.incarnation = node->second.record.join.incarnation;
    revocation.agent_url = node->second.record.join.agent_url;
    revocation.node_slab = lease.node_slab;
    revocation.generation = lease.generation;
    revocation.asked = SlabLeaseRequest{region.record.id, key.first, key.second};
    add_revocation(std::move(revocation), false, replaced_at);
    set_use(node->second, lease.node_slab, SlabUse::kRevoking);
  }
  note_lease(region, key, std::nullopt);
  region.leases.erase(it);
}

void State::erase_region(std::map<RegionId, Region>::iterator it) {
  const RegionId id = it->first;
  while (!it->second.leases.empty()) drop_lease(it->second, it->second.leases.begin());
  regions_.erase(it);
  changes_.regions[id] = std::nullopt;
  emit(EventKind::kRegionDeleted, {}, id);
}

Status State::delete_region(const RegionId& id) {
  const auto it = regions_.find(id);
  if (it == regions_.end()) return no_such_region(id);
  if (const ImageId& image = it->second.image; !image.value.empty()) return refuse_image(id, image);
  erase_region(it);
  return {};
}

Result<RegionInfo> State::region(const RegionId& id) const {
  const auto it = regions_.find(id);
  if (it == regions_.end()) return no_such_region(id);
  return info_of(it->second, options_);
}

void State::append_regions(const RegionId& after, size_t count,
                           std::vector<RegionInfo>& list) const {
  for (auto region = regions_.upper_bound(after); count > 0 && region != regions_.end();
       ++region, --count)
    list.push_back(info_of(region->second, options_));
}

std::vector<RegionInfo> State::regions_without_leases() const {
  std::vector<RegionInfo> list;
  list.reserve(regions_.size());
  for (const auto& [id, region] : regions_) list.push_back(summary_of(region, options_));
  return list;
}

Result<uint64_t> State::slab_bytes_of(const RegionId& id) const {
  const auto it = regions_.find(id);
  if (it == regions_.end()) return no_such_region(id);
  return it->second.record.slab_bytes;
}

// All replicas, and what nodes are being asked for. A replica that is filling takes the place of
// one that counts, and so does one that is lost: it is made again, if another one of its slab is
// left.
uint64_t State::borrowed_bytes(const std::string& borrower) const {
  uint64_t bytes = 0;
  for (const auto& [id, region] : regions_) {
    if (region.record.borrower != borrower) continue;
    for (auto lease = region.leases.begin(); lease != region.leases.end();) {
      const SlabIndex slab = lease->first.first;
      uint64_t replicas = 0;
      bool is_held = false;
      for (; lease != region.leases.end() && lease->first.first == slab; ++lease) {
        replicas += lease->second.filling ? 0 : 1;
        is_held = is_held || !lease->second.lost;
      }
      if (is_held) bytes += replicas * region.record.slab_bytes;
    }
  }
  for (const auto& [id, pending] : revocations_) {
    const SlabLeaseRequest& asked = pending.revocation.asked;
    const auto region = regions_.find(asked.region);
    if (pending.placing && asked.replica < kFillingReplica && region != regions_.end() &&
        region->second.record.borrower == borrower)
      bytes += region->second.record.slab_bytes;
  }
  return bytes;
}

Status State::check_quota(const Region& region, uint64_t more_bytes) const {
  const std::string& borrower = region.record.borrower;
  const auto quota = options_.quotas.find(borrower);
  if (more_bytes == 0 || quota == options_.quotas.end()) return {};
  const uint64_t borrowed = borrowed_bytes(borrower);
  if (borrowed + more_bytes <= quota->second) return {};
  return fail(
      ErrorCode::kExhausted,
      fmt::format("borrower '{}' has {} of its quota of {}: {} more do not fit", borrower,
                  format_size(borrowed), format_size(quota->second), format_size(more_bytes)));
}

Status State::check_kept_free(const Region& region, uint64_t more_bytes) const {
  const auto& keeps = options_.keeps_free;
  auto kept = keeps.find(region.record.borrower);
  if (kept == keeps.end()) kept = keeps.find(KeptFree::kOthers);
  if (more_bytes == 0 || kept == keeps.end()) return {};
  uint64_t lent = 0;
  uint64_t free = 0;
  for (const auto& [id, node] : nodes_) {
    if (state_of(node) != NodeState::kAlive || is_disk(node)) continue;
    lent += lent_slabs(node) * node.record.join.slab_bytes;
    free += lendable_slabs(node) * node.record.join.slab_bytes;
  }
  const uint64_t keep =
      kept->second.percent == 0 ? kept->second.bytes : lent * kept->second.percent / 100;
  if (free >= keep + more_bytes) return {};
  return fail(
      ErrorCode::kExhausted,
      fmt::format("{} must leave {} free (--keep-free): {} are, and {} more do not fit; start more "
                  "nodes, or give slabs back",
                  region.record.borrower.empty()
                      ? "a program without a --borrower"
                      : fmt::format("borrower '{}'", region.record.borrower),
                  format_size(keep), format_size(free), format_size(more_bytes)));
}

std::vector<SlabIndex> State::missing_slabs(const Region& region,
                                            const std::vector<SlabIndex>& slabs) const {
  std::vector<SlabIndex> missing;
  for (const SlabIndex slab : slabs)
    if (region.leases.count({slab, 0}) == 0) missing.push_back(slab);
  return missing;
}

std::string State::domain_of(const Node& node, const std::string& key) {
  const auto label = node.record.join.labels.find(key);
  return label == node.record.join.labels.end() ? std::string() : label->second;
}

bool State::may_hold(const Node& node, const Region& region, SlabIndex slab,
                     const Lease* replaced) const {
  const std::string& key = region.record.spread_by;
  for (auto it = region.leases.lower_bound({slab, 0});
       it != region.leases.end() && it->first.first == slab; ++it) {
    const Lease& lease = it->second;
    if (lease.lost || lease.stale) continue;
    if (lease.node == node.record.join.id) return false;
    if (&lease == replaced || key.empty()) continue;
    if (domain_of(nodes_.at(lease.node), key) == domain_of(node, key)) return false;
  }
  return true;
}

std::string State::room_of(const RegionRecord& region, const Lenders& lenders) {
  std::vector<std::string> parts;
  for (const auto& [value, number] : lenders.numbers) {
    uint64_t free = 0;
    for (size_t i = 0; i < lenders.domains.size(); ++i)
      free += lenders.domains[i] == number ? lenders.free_slabs[i] : 0;
    parts.push_back(value.empty() ? fmt::format("without {}: {}", region.spread_by, free)
                                  : fmt::format("{}={}: {}", region.spread_by, value, free));
  }
  return parts.empty() ? "none" : fmt::format("{}", fmt::join(parts, ", "));
}

State::Lenders State::find_lenders(const RegionRecord& region, const std::set<NodeId>& avoid) {
  Lenders lenders;
  for (auto& [id, node] : nodes_) {
    if (state_of(node) != NodeState::kAlive || avoid.count(id) != 0 ||
        node.record.join.slab_bytes != region.slab_bytes || lendable_slabs(node) == 0)
      continue;
    lenders.nodes.push_back(&node);
    lenders.free_slabs.push_back(lendable_slabs(node));
    if (region.spread_by.empty()) continue;
    const auto next = static_cast<uint32_t>(lenders.numbers.size());
    const auto domain = lenders.numbers.emplace(domain_of(node, region.spread_by), next).first;
    lenders.domains.push_back(domain->second);
  }
  return lenders;
}

bool State::any_may_hold(const Region& region, const Lease& replaced, bool disks) const {
  return std::ranges::any_of(nodes_, [&](const auto& entry) {
    const Node& node = entry.second;
    return (disks || !is_disk(node)) && state_of(node) == NodeState::kAlive &&
           lendable_slabs(node) > 0 && node.record.join.slab_bytes == region.record.slab_bytes &&
           may_hold(node, region, replaced.slab, &replaced);
  });
}

PlannedLease State::reserve(Node& node, SlabLeaseRequest request) {
  PlannedLease planned;
  planned.node = node.record.join.id;
  planned.incarnation = node.record.join.incarnation;
  planned.agent_url = node.record.join.agent_url;
  planned.node_slab = node.free.front();
  planned.request = request;
  set_use(node, planned.node_slab, SlabUse::kPlacing);
  Revocation undo;
  undo.node = planned.node;
  undo.incarnation = planned.incarnation;
  undo.agent_url = planned.agent_url;
  undo.node_slab = planned.node_slab;
  undo.asked = std::move(request);
  planned.revocation = add_revocation(std::move(undo), true);
  return planned;
}

Result<std::vector<PlannedLease>> State::begin_lease(Instant now, const RegionId& id,
                                                     const std::vector<SlabIndex>& slabs,
                                                     const std::set<NodeId>& avoid) {
  FARPAGE_TRY(region, find_region(id));
  region->last_heard = now;
  const std::vector<SlabIndex> missing = missing_slabs(*region, slabs);
  const auto image = images_.find(region->image);
  if (!missing.empty() && image != images_.end() &&
      image->second.record.state == ImageState::kComplete)
    return fail(ErrorCode::kConflict,
                fmt::format("image '{}' is complete: it does not grow", image->first.value));
  for (const auto& [revocation_id, pending] : revocations_) {
    const SlabLeaseRequest& asked = pending.revocation.asked;
    if (pending.placing && asked.region == id &&
        std::find(missing.begin(), missing.end(), asked.slab) != missing.end())
      return fail(ErrorCode::kConflict, "another request leases these slabs: try again");
  }
  const uint32_t replicas = region->record.replicas;
  const uint64_t more_bytes = missing.size() * replicas * region->record.slab_bytes;
  FARPAGE_TRY_VOID(check_quota(*region, more_bytes));
  const Status kept_free = check_kept_free(*region, more_bytes);
  const Lenders lenders = find_lenders(region->record, avoid);
  const auto choices = place(lenders, missing.size(), replicas, kept_free.has_value());
  if (!choices) FARPAGE_TRY_VOID(kept_free);
  if (!choices && !region->record.spread_by.empty())
    return fail(ErrorCode::kExhausted,
                fmt::format("{} slabs of {} with {} replica(s), each in another {}, do not fit; "
                            "free slabs of that size: {}; start more nodes, or give slabs back",
                            missing.size(), format_size(region->record.slab_bytes), replicas,
                            region->record.spread_by, room_of(region->record, lenders)));
  if (!choices)
    return fail(
        ErrorCode::kExhausted,
        fmt::format(
            "{} slabs of {} with {} replica(s) on distinct nodes do not fit: {} "
            "usable node(s) have {} free slabs of that size; start more nodes, or "
            "give slabs back",
            missing.size(), format_size(region->record.slab_bytes), replicas, lenders.nodes.size(),
            std::accumulate(lenders.free_slabs.begin(), lenders.free_slabs.end(), uint64_t{0})));
  std::vector<PlannedLease> plan;
  for (size_t i = 0; i < missing.size(); ++i)
    for (uint32_t replica = 0; replica < replicas; ++replica)
      plan.push_back(
          reserve(*lenders.nodes[(*choices)[i][replica]],
                  SlabLeaseRequest{id, missing[i], replica, region->record.session_group}));
  return plan;
}

Status State::check_outcomes(const std::vector<PlannedLease>& plan,
                             const std::vector<LeaseOutcome>& outcomes) const {
  FARPAGE_CHECK(plan.size() == outcomes.size(), "%zu answers for %zu questions", outcomes.size(),
                plan.size());
  for (size_t i = 0; i < plan.size(); ++i) {
    if (regions_.count(plan[i].request.region) == 0) return no_such_region(plan[i].request.region);
    const auto node = nodes_.find(plan[i].node);
    if (revocations_.count(plan[i].revocation) == 0 || node == nodes_.end() ||
        node->second.record.join.incarnation != plan[i].incarnation)
      return fail(ErrorCode::kUnavailable,
                  fmt::format("node '{}' restarted or left while it was asked for slabs",
                              plan[i].node.value));
    if (outcomes[i].answer != LeaseAnswer::kGranted)
      return fail(ErrorCode::kUnavailable, fmt::format("node '{}' did not lend slab {}",
                                                       plan[i].node.value, plan[i].node_slab));
  }
  return {};
}

// Ends one reservation: as a lease if `keep`, else according to the answer.
void State::settle(const PlannedLease& planned, const LeaseOutcome& outcome, bool keep) {
  const auto pending = revocations_.find(planned.revocation);
  if (pending == revocations_.end()) return;  // the node has new memory
  Node* node = node_of(pending->second.revocation);
  if (keep) {
    const SlabLeaseRequest& request = planned.request;
    Lease lease;
    lease.slab = request.slab;
    set_number(lease, request.replica);
    lease.node = planned.node;
    lease.node_slab = planned.node_slab;
    lease.address = outcome.grant.address;
    lease.bytes = outcome.grant.bytes;
    lease.rkeys = outcome.grant.rkeys;
    lease.generation = outcome.grant.generation;
    const bool filling = lease.filling;
    Region& region = regions_.at(request.region);
    note_lease(region, {request.slab, request.replica}, lease);
    region.leases[{request.slab, request.replica}] = std::move(lease);
    set_use(*node, planned.node_slab, SlabUse::kLeased);
    if (filling) emit(EventKind::kRepairBegun, planned.node, request.region, request.slab);
    return erase_revocation(planned.revocation);
  }
  switch (outcome.answer) {
    case LeaseAnswer::kGranted:
    case LeaseAnswer::kUnknown:
      pending->second.placing = false;
      if (outcome.answer == LeaseAnswer::kGranted)
        learn_generation(planned.revocation, outcome.grant.generation);
      if (node != nullptr) set_use(*node, planned.node_slab, SlabUse::kRevoking);
      return;
    case LeaseAnswer::kNotAsked:
    case LeaseAnswer::kRefused:
      return revoked(planned.revocation, false);
    case LeaseAnswer::kForeign:
      return revoked(planned.revocation, true);
  }
}

Status State::commit_lease(const std::vector<PlannedLease>& plan,
                           const std::vector<LeaseOutcome>& outcomes) {
  Status status = check_outcomes(plan, outcomes);
  for (size_t i = 0; i < plan.size(); ++i) settle(plan[i], outcomes[i], status.has_value());
  return status;
}

Result<std::vector<Lease>> State::leases(const RegionId& id,
                                         const std::vector<SlabIndex>& slabs) const {
  const auto region = regions_.find(id);
  if (region == regions_.end()) return no_such_region(id);
  std::vector<SlabIndex> ordered = slabs;
  std::sort(ordered.begin(), ordered.end());
  std::vector<Lease> list;
  for (const SlabIndex slab : ordered) {
    const Replicas& leases = region->second.leases;
    for (auto it = leases.lower_bound({slab, 0}); it != leases.end() && it->first.first == slab;
         ++it)
      list.push_back(it->second);
  }
  return list;
}

Status State::release(const RegionId& id, const std::vector<SlabIndex>& slabs) {
  FARPAGE_TRY(region, find_region(id));
  if (!region->image.value.empty()) return refuse_image(id, region->image);
  for (const SlabIndex slab : slabs) {
    auto it = region->leases.lower_bound({slab, 0});
    while (it != region->leases.end() && it->first.first == slab) {
      const auto next = std::next(it);
      drop_lease(*region, it);
      it = next;
    }
  }
  return {};
}

}  // namespace farpage::coordinator
