#include "pager/links/region_repair.h"

#include <algorithm>
#include <tuple>

#include "base/log.h"
#include "base/unanswered.h"

namespace farpage::pager {
namespace {

constexpr Milliseconds kTellRetry{1000};
// Each attempt takes a record of the map for ever.
constexpr Milliseconds kFirstPause{1000};
constexpr Milliseconds kLongestPause{60'000};
// One that finds no room makes the coordinator look at all nodes.
constexpr Milliseconds kFirstRefusal{50};
constexpr Milliseconds kLongestRefusal{2000};
constexpr Milliseconds kGrace{200};  // more than most operations take
constexpr Seconds kBetweenLooks{1};

}  // namespace

std::unique_ptr<ReplicaLease> replica_on(NodeIndex node, const coordinator::Lease& lease) {
  auto replica = std::make_unique<ReplicaLease>();
  replica->node = node;
  replica->address = lease.address;
  replica->generation = lease.generation;
  replica->state = lease.lost      ? ReplicaState::kLost
                   : lease.filling ? ReplicaState::kFilling
                                   : ReplicaState::kLive;
  for (const auto& [kind, key] : lease.rkeys) replica->keys[static_cast<size_t>(kind)] = key;
  return replica;
}

Result<std::unique_ptr<ReplicaLease>> replica_of(
    const coordinator::Lease& lease,
    const std::function<Result<NodeIndex>(const NodeId&)>& node_index) {
  FARPAGE_TRY(node, node_index(lease.node));
  auto replica = replica_on(node, lease);
  if (lease.stale) replica->state = ReplicaState::kLost;
  return replica;
}

void RegionRepair::Pause::extend(Milliseconds first, Milliseconds longest) {
  length = std::clamp(length * 2, first, longest);
  until = SteadyClock::read() + length;
}

void RegionRepair::Pause::at_least(Milliseconds pause) {
  until = std::max(until, SteadyClock::read() + pause);
}

Instant RegionRepair::serve(const coordinator::RegionInfo& region, Repairer& repairer) {
  take_end();
  const Instant told = tell(region);
  const Instant now = SteadyClock::read();
  const std::optional<Need> need = most_endangered(region.replicas, repairer);
  if (fill_ || !need || !repairer.enabled()) return std::min(told, now + kBetweenLooks);
  if (refused_.until > now) return std::min(told, refused_.until);
  const Status begun = begin(region, repairer, need->slab);
  if (begun) {
    said_.clear();
    refused_ = {};
    return std::min(told, now + kBetweenLooks);
  }
  refused(*need, begun.error());
  return std::min(told, refused_.until);
}

// Others may be placed meanwhile.
void RegionRepair::refused(const Need& need, const Error& error) {
  pauses_[need.slab].at_least(kFirstPause);
  refused_.extend(kFirstRefusal, kLongestRefusal);
  view_is_old_ = error.code == ErrorCode::kConflict || error.code == ErrorCode::kNotFound;
  std::string text = error.message();
  if (text == said_) return;
  log::warn("pager: repair_waits slab={} live_replicas={} reason=\"{}\" (trying again)",
            need.slab.value, need.live, text);
  said_ = std::move(text);
}

std::optional<RegionRepair::Need> RegionRepair::most_endangered(uint32_t replicas,
                                                                const Repairer& repairer) {
  const std::set<NodeIndex> leaving = parts_.nodes.leaving();
  const Instant now = SteadyClock::read();
  std::set<SlabIndex> busy;
  for (const Answer& answer : answers_) busy.insert(answer.repair.slab);
  const bool is_refused = refused_.length > Milliseconds(0);
  std::optional<Need> most;
  std::tuple<bool, uint32_t, Instant> order_of_most;
  degraded_ = 0;
  for (uint32_t i = 0; i < parts_.leases.slabs_touched(); ++i) {
    const SlabIndex slab{i};
    const SlabLease* lease = parts_.leases.find(slab);
    if (lease == nullptr || lease->live_in_file() != nullptr) continue;  // RegionSpill's
    const uint32_t live = lease->live();
    if (live < replicas) ++degraded_;
    const auto pause = pauses_.find(slab);
    const Instant tried = pause == pauses_.end() ? Instant{0} : pause->second.until;
    if (tried > now || busy.contains(slab)) continue;
    if (!lacks_replica(slab, replicas, repairer, leaving)) continue;
    const std::tuple order(is_refused && tried > Instant{0}, live, tried);
    if (most && order >= order_of_most) continue;
    most = Need{slab, live};
    order_of_most = order;
  }
  return most;
}

// And another one can be made.
bool RegionRepair::lacks_replica(SlabIndex slab, uint32_t replicas, const Repairer& repairer,
                                 const std::set<NodeIndex>& leaving) const {
  const SlabLease* const lease = parts_.leases.find(slab);
  if (lease == nullptr || !has_source(*lease, repairer)) return false;
  const auto stays = std::ranges::count_if(lease->all(), [&](const ReplicaLease* replica) {
    return replica->is_read() && !leaving.contains(replica->node) && !is_moving(slab, *replica);
  });
  return static_cast<uint32_t>(stays) < replicas;
}

bool RegionRepair::is_done(uint32_t replicas, const Repairer& repairer) const {
  if (fill_ || !answers_.empty()) return false;
  const std::set<NodeIndex> leaving = parts_.nodes.leaving();
  for (uint32_t i = 0; i < parts_.leases.slabs_touched(); ++i)
    if (lacks_replica(SlabIndex{i}, replicas, repairer, leaving)) return false;
  return true;
}

// A slab whose only replicas are on a node that is away would keep the others waiting.
bool RegionRepair::has_source(const SlabLease& lease, const Repairer& repairer) {
  return std::ranges::any_of(lease.all(), [&](const ReplicaLease* replica) {
    return replica->is_read() && !repairer.is_unreachable(replica->node);
  });
}

bool RegionRepair::is_moving(SlabIndex slab, const ReplicaLease& replica) const {
  const auto [first, last] = moving_.equal_range(slab);
  return std::any_of(first, last, [&](const auto& entry) {
    return entry.second == std::pair(replica.node, replica.generation);
  });
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
  filling_ = name_of(begun.filling);
  const SlabLease& lease = *parts_.leases.find(slab);
  const auto node = parts_.nodes.find(begun.replaces.node);
  replaced_ = node ? lease.find(*node, begun.replaces.generation) : nullptr;
  const auto replica = replica_of(begun.filling, parts_.node_index);
  if (!replica) {
    avoid_.insert(filling_.node);
    abandon(slab, filling_);
    return tl::unexpected(replica.error());
  }
  const ReplicaLease* added = parts_.leases.add(slab, **replica);
  if (added == nullptr) {
    abandon(slab, filling_);
    return fail(ErrorCode::kExhausted,
                "the slab has no live replica any more, or this program has had too many replicas: "
                "restart it when it suits");
  }
  begun_at_ = SteadyClock::read();
  log::info("pager: repair_begun slab={} node={} replaces={}", slab.value, filling_.node.value,
            begun.replaces.node.value);
  fill_ = std::make_shared<Fill>(parts_.leases, slab, *added, parts_.ring);
  repairer.add(fill_);
  return {};
}

void RegionRepair::abandon(SlabIndex slab, coordinator::ReplicaName filling) {
  answers_.push_back({{slab, std::move(filling), true}, Instant{0}});
}

void RegionRepair::take_end() {
  if (!fill_ || fill_->end.load(std::memory_order_acquire) == Fill::End::kNone) return;
  const std::shared_ptr<Fill> ended = std::exchange(fill_, nullptr);
  const bool was_live = replaced_ != nullptr && replaced_->is_read();
  // It may have been lost since it was filled: then what it was to replace is still needed.
  const bool is_live = ended->end.load(std::memory_order_relaxed) == Fill::End::kFilled &&
                       (replaced_ == nullptr ? ended->replica.is_read()
                                             : parts_.leases.withdraw(*replaced_, ended->replica));
  if (!is_live) {
    avoid_.insert(filling_.node);
    pauses_[ended->slab].extend(kFirstPause, kLongestPause);
    return abandon(ended->slab, filling_);
  }
  ++repaired_;
  pauses_.erase(ended->slab);
  const Instant now = SteadyClock::read();
  log::info("pager: slab_repaired slab={} node={} ms={}", ended->slab.value, filling_.node.value,
            (now - begun_at_).count() / 1'000'000);
  // What is on its way to a replica that was live until now ends before its memory is taken away.
  answers_.push_back({{ended->slab, filling_}, was_live ? now + kGrace : Instant{0}});
}

// The slab is as it is, whatever the coordinator says: it has lost its state, or the node's lease.
Instant RegionRepair::tell(const coordinator::RegionInfo& region) {
  Instant next{INT64_MAX};
  for (size_t i = answers_.size(); i > 0; --i) {
    const Answer answer = std::move(answers_.front());
    answers_.pop_front();
    const Instant now = SteadyClock::read();
    Instant due = answer.due;
    if (due <= now) {
      const Status told = parts_.client.complete_repair(region.id, answer.repair);
      const bool may_change = is_unanswered(told);
      if (!told && !may_change)
        log::warn("pager: repair_not_known slab={} node={} reason=\"{}\"", answer.repair.slab.value,
                  answer.repair.filled.node.value, told.error().message());
      if (!may_change) continue;
      due = now + kTellRetry;
    }
    next = std::min(next, due);
    answers_.push_back({answer.repair, due});
  }
  return next;
}

// Under way, or ended, and the coordinator is to be told.
bool RegionRepair::is_ours(const coordinator::Lease& filling) const {
  if (fill_ && fill_->slab == filling.slab && name_of(filling) == filling_) return true;
  return std::ranges::any_of(answers_, [&](const Answer& answer) {
    return answer.repair.slab == filling.slab && answer.repair.filled == name_of(filling);
  });
}

bool RegionRepair::is_contested(const coordinator::RegionInfo& region) const {
  bool is_there = !fill_;
  for (const coordinator::Lease& lease : region.leases) {
    if (!lease.filling) continue;
    if (!is_ours(lease)) return true;
    is_there = is_there || (lease.slab == fill_->slab && name_of(lease) == filling_);
  }
  return !is_there;
}

void RegionRepair::compare(const coordinator::RegionInfo& region) {
  moving_.clear();
  for (const coordinator::Lease& lease : region.leases)
    if (const auto node = parts_.nodes.find(lease.node); node && lease.moving)
      moving_.emplace(lease.slab, std::pair(*node, lease.generation));
  for (const coordinator::Lease& lease : region.leases) {
    if (!lease.filling || lease.slab.value >= parts_.leases.slabs()) continue;
    if (is_ours(lease)) continue;
    const SlabLease* held = parts_.leases.find(lease.slab);
    const auto find = [&](const coordinator::Lease& wanted) -> const ReplicaLease* {
      const auto node = parts_.nodes.find(wanted.node);
      return held != nullptr && node ? held->find(*node, wanted.generation) : nullptr;
    };
    const ReplicaLease* filled = find(lease);
    const auto replaced = std::ranges::find_if(region.leases, [&](const coordinator::Lease& other) {
      return !other.filling && other.slab == lease.slab && other.replica == lease.replica;
    });
    const ReplicaLease* old = replaced != region.leases.end() ? find(*replaced) : nullptr;
    const bool is_live =
        filled != nullptr &&
        (old == nullptr ? filled->is_read() : parts_.leases.withdraw(*old, *filled));
    answers_.push_back({{lease.slab, name_of(lease), !is_live}, Instant{0}});
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
