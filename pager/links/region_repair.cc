#include "pager/links/region_repair.h"

#include <algorithm>

#include "base/log.h"

namespace farpage::pager {
namespace {

constexpr Milliseconds kRepairRetry{1000};
constexpr Seconds kBetweenLooks{1};

}  // namespace

Result<std::unique_ptr<ReplicaLease>> replica_of(
    const coordinator::Lease& lease,
    const std::function<Result<NodeIndex>(const NodeId&)>& node_index) {
  FARPAGE_TRY(node, node_index(lease.node));
  auto replica = std::make_unique<ReplicaLease>();
  replica->node = node;
  replica->address = lease.address;
  replica->generation = lease.generation;
  replica->state = lease.lost || lease.stale ? ReplicaState::kLost
                   : lease.filling           ? ReplicaState::kFilling
                                             : ReplicaState::kLive;
  for (const auto& [kind, key] : lease.rkeys) replica->keys[static_cast<size_t>(kind)] = key;
  return replica;
}

Instant RegionRepair::serve(const coordinator::RegionInfo& region, Repairer& repairer) {
  take_end();
  if (completed_ && !complete(region)) return SteadyClock::read() + kRepairRetry;
  const std::optional<Need> need = most_endangered(region.replicas);
  if (fill_ || !need || !repairer.enabled()) return SteadyClock::read() + kBetweenLooks;
  const Status begun = begin(region, repairer, need->slab);
  if (!begun && !std::exchange(refused_, true))
    log::warn("pager: repair_waits slab={} live_replicas={} reason=\"{}\" (trying again)",
              need->slab.value, need->live, begun.error().message());
  if (!begun) return SteadyClock::read() + kRepairRetry;
  refused_ = false;
  return SteadyClock::read() + kBetweenLooks;
}

std::optional<RegionRepair::Need> RegionRepair::most_endangered(uint32_t replicas) {
  const std::set<NodeIndex> leaving = parts_.nodes.leaving();
  std::optional<Need> most;
  degraded_ = 0;
  for (uint32_t slab = 0; slab < parts_.leases.slabs_touched(); ++slab) {
    const SlabLease* lease = parts_.leases.find(SlabIndex{slab});
    if (lease == nullptr) continue;
    const uint32_t live = lease->live();
    if (live < replicas) ++degraded_;
    if (live == 0) continue;  // there is nothing to copy
    const auto stays = std::ranges::count_if(lease->all(), [&](const ReplicaLease* replica) {
      return replica->is_read() && !leaving.contains(replica->node);
    });
    if (static_cast<uint32_t>(stays) >= replicas) continue;
    if (!most || live < most->live) most = Need{SlabIndex{slab}, live};
  }
  return most;
}

Status RegionRepair::begin(const coordinator::RegionInfo& region, Repairer& repairer,
                           SlabIndex slab) {
  coordinator::RepairBegin repair;
  repair.slab = slab;
  for (const ReplicaLease* replica : parts_.leases.find(slab)->all())
    if (replica->is_read())
      repair.live.push_back({NodeId{parts_.nodes.name_of(replica->node)}, replica->generation});
  for (NodeId& node : parts_.nodes.ids())
    if (repairer.is_unreachable(*parts_.nodes.find(node))) avoid_.insert(std::move(node));
  repair.avoid.assign(avoid_.begin(), avoid_.end());
  avoid_.clear();
  FARPAGE_TRY(begun, parts_.client.begin_repair(region.id, repair));
  if (begun.filling.bytes != region.slab_bytes)
    return fail(ErrorCode::kInvalid, "the coordinator leased a slab of another size");
  const auto replica = replica_of(begun.filling, parts_.node_index);
  if (!replica) {
    avoid_.insert(begun.filling.node);
    return tl::unexpected(replica.error());
  }
  const ReplicaLease* added = parts_.leases.add(slab, **replica);
  if (added == nullptr)
    return fail(ErrorCode::kExhausted, "the slab has no live replica any more, or had too many");
  filling_ = name_of(begun.filling);
  replaces_ = begun.replaces;
  begun_at_ = SteadyClock::read();
  log::info("pager: repair_begun slab={} node={} replaces={}", slab.value, filling_.node.value,
            replaces_.node.value);
  fill_ = std::make_shared<Fill>(parts_.leases, slab, *added, parts_.ring);
  repairer.add(fill_);
  return {};
}

void RegionRepair::take_end() {
  if (!fill_ || fill_->end.load(std::memory_order_acquire) == Fill::End::kNone) return;
  const std::shared_ptr<Fill> ended = std::exchange(fill_, nullptr);
  if (ended->end.load(std::memory_order_relaxed) == Fill::End::kLost) {
    avoid_.insert(filling_.node);
    return;
  }
  const SlabLease& lease = *parts_.leases.find(ended->slab);
  if (const auto node = parts_.nodes.find(replaces_.node))
    if (const ReplicaLease* old = lease.find(*node, replaces_.generation))
      (void)old->end(ReplicaState::kWithdrawn);
  ++repaired_;
  log::info("pager: slab_repaired slab={} node={} ms={}", ended->slab.value, filling_.node.value,
            (SteadyClock::read() - begun_at_).count() / 1'000'000);
  completed_ = coordinator::RepairComplete{ended->slab, filling_};
}

// The slab is whole, whatever the coordinator says: it has lost its state, or the node's lease.
Status RegionRepair::complete(const coordinator::RegionInfo& region) {
  const Status told = parts_.client.complete_repair(region.id, *completed_);
  const bool may_change = !told && (told.error().code == ErrorCode::kUnavailable ||
                                    told.error().code == ErrorCode::kTimedOut);
  if (may_change) return told;
  if (!told)
    log::warn("pager: repair_not_known slab={} node={} reason=\"{}\"", completed_->slab.value,
              completed_->filled.node.value, told.error().message());
  completed_.reset();
  return {};
}

void RegionRepair::compare(const coordinator::RegionInfo& region) {
  for (const coordinator::Lease& lease : region.leases) {
    if (!lease.filling || lease.lost || lease.slab.value >= parts_.leases.slabs()) continue;
    const SlabLease* held = parts_.leases.find(lease.slab);
    const auto node = parts_.nodes.find(lease.node);
    if (held == nullptr || !node) continue;
    const ReplicaLease* replica = held->find(*node, lease.generation);
    if (replica != nullptr && replica->is_read())
      completed_ = coordinator::RepairComplete{lease.slab, name_of(lease)};
  }
}

void RegionRepair::count(coordinator::Counters& counters,
                         const coordinator::RegionInfo& region) const {
  uint64_t left = degraded_ * region.slab_bytes;
  if (fill_) left -= std::min(left, uint64_t{fill_->copied.load()} << kPageShift);
  counters["farpage_repair_degraded_slabs"] = degraded_;
  counters["farpage_repair_left_bytes"] = left;
  counters["farpage_repair_slabs_total"] = repaired_;
}

}  // namespace farpage::pager
