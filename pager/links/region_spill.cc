#include "pager/links/region_spill.h"

#include <algorithm>

#include "base/log.h"
#include "base/size.h"
#include "base/unanswered.h"
#include "pager/links/region_repair.h"

namespace farpage::pager {
namespace {

constexpr Nanoseconds kAnswerPatience = Seconds(1);  // with a coordinator that does not answer
constexpr Milliseconds kFirstAskPause{500};  // between requests for a lease; then twice as long
constexpr Milliseconds kLongestAskPause{8000};
// Each attempt takes records of the map for ever.
constexpr Milliseconds kLongestFillPause{300'000};
constexpr Milliseconds kWithdrawnGrace{200};  // more than most operations take
constexpr Seconds kBetweenSpillLooks{1};

// May the cause pass by itself, and soon?
bool may_pass(ErrorCode code) {
  return is_unanswered(code) || code == ErrorCode::kConflict || code == ErrorCode::kNotFound;
}

const ReplicaLease* in_file(const SlabLease* lease) {
  return lease == nullptr ? nullptr : lease->live_in_file();
}

}  // namespace

RegionSpill::~RegionSpill() {
  rdma::SlabFile* const file = parts_.nodes.file();
  for (const SlabIndex slab : in_file_)
    if (const ReplicaLease* replica = in_file(parts_.leases.find(slab)))
      file->give_back(replica->address, replica->generation);
  for (const auto& [due, replica] : withdrawn_)
    file->give_back(replica->address, replica->generation);
}

void RegionSpill::take_over() {
  rdma::SlabFile* const file = parts_.nodes.file();
  for (uint32_t i = 0; i < parts_.leases.slabs_touched(); ++i) {
    const ReplicaLease* replica = in_file(parts_.leases.find(SlabIndex{i}));
    if (replica == nullptr || has_returned(*parts_.leases.find(SlabIndex{i}), *replica)) continue;
    if (file == nullptr || !file->take_again(replica->address, replica->generation)) {
      log::error("pager: replica_lost slab={} node=file reason=\"its place is gone\"", i);
      (void)replica->end(ReplicaState::kLost);
      continue;
    }
    in_file_.insert(SlabIndex{i});
    to_release_.insert(SlabIndex{i});  // the dead process may have been filling others
  }
}

// A replica on a node had been filled when the process died.
bool RegionSpill::has_returned(const SlabLease& lease, const ReplicaLease& in_file) const {
  return std::ranges::any_of(lease.all(), [&](const ReplicaLease* other) {
    return other != &in_file && parts_.leases.withdraw(in_file, *other);
  });
}

Status RegionSpill::spill(const std::vector<SlabIndex>& slabs, const Error& why) {
  if (parts_.nodes.file() == nullptr) return tl::unexpected(why);
  const Instant now = SteadyClock::read();
  if (refused_since_.count() == 0) refused_since_ = now;
  const bool is_full = why.code == ErrorCode::kExhausted;
  if (!is_full && (!may_pass(why.code) || now - refused_since_ < kAnswerPatience))
    return tl::unexpected(why);
  const auto wanted = std::ranges::find_if(
      slabs, [&](SlabIndex slab) { return parts_.leases.find(slab) == nullptr; });
  if (wanted == slabs.end()) return {};
  if (!put(*wanted))
    return fail(ErrorCode::kExhausted,
                why.context + "; and the spill file of " +
                    format_size(parts_.nodes.file()->places() * parts_.nodes.file()->slab_bytes()) +
                    " is full");
  warn_of_room(why);
  return {};
}

bool RegionSpill::put(SlabIndex slab) {
  const auto place = parts_.nodes.file()->take();
  if (!place) return false;
  auto replica = std::make_unique<ReplicaLease>();
  replica->node = kFileNode;
  replica->address = place->address;
  replica->generation = place->generation;
  replica->keys[static_cast<size_t>(rdma::TransportKind::kFile)] = place->key;
  std::vector<std::unique_ptr<const ReplicaLease>> replicas;
  replicas.push_back(std::move(replica));
  parts_.leases.publish(slab, std::move(replicas));
  in_file_.insert(slab);
  return true;
}

void RegionSpill::warn_of_room(const Error& why) {
  const rdma::SlabFile& file = *parts_.nodes.file();
  const uint64_t used = file.places() - file.free_places();
  if (!std::exchange(said_spilling_, true))
    log::warn(
        "pager: spilling slabs={} reason=\"{}\": pages go to the spill file until a node has "
        "room",
        in_file_.size(), why.message());
  if (used * 100 < uint64_t{file.places()} * kWarnPercent) {
    said_nearly_full_ = false;
  } else if (!std::exchange(said_nearly_full_, true)) {
    log::warn("pager: spill_nearly_full used={} of={}", format_size(used * file.slab_bytes()),
              format_size(file.places() * file.slab_bytes()));
  }
}

Instant RegionSpill::serve(const coordinator::RegionInfo& region, Repairer& repairer,
                           bool may_ask) {
  take_end();
  const Instant now = SteadyClock::read();
  give_back(now);
  may_ask = may_ask && repairer.enabled();
  if (!move_ && has_slabs() && may_ask && now >= not_before_) begin(region, repairer);
  Instant due = SteadyClock::read() + kBetweenSpillLooks;
  if (!withdrawn_.empty()) due = std::min(due, withdrawn_.front().first);
  if (!move_ && has_slabs() && may_ask) due = std::min(due, not_before_);
  return due;
}

void RegionSpill::begin(const coordinator::RegionInfo& region, Repairer& repairer) {
  const auto after = in_file_.upper_bound(tried_);
  const SlabIndex slab = after != in_file_.end() ? *after : *in_file_.begin();
  if (in_file(parts_.leases.find(slab)) == nullptr) {  // it is lost, and must not hold others up
    in_file_.erase(slab);
    tried_ = slab;  // and what it was leased in vain is released
    return;
  }
  const Status begun = begin_move(region, repairer, slab);
  if (begun) return;
  log::debug("pager: spilled_slab_stays slab={} reason=\"{}\"", slab.value,
             begun.error().message());
  wait(ask_pause_, kLongestAskPause);
}

void RegionSpill::wait(Milliseconds& pause, Milliseconds longest) {
  pause = std::clamp(pause * 2, kFirstAskPause, longest);
  not_before_ = SteadyClock::read() + pause;
}

Status RegionSpill::release(const coordinator::RegionInfo& region, SlabIndex slab) {
  if (!to_release_.contains(slab)) return {};
  FARPAGE_TRY_VOID(parts_.client.release_slabs(region.id, {slab}));
  to_release_.erase(slab);
  return {};
}

Status RegionSpill::begin_move(const coordinator::RegionInfo& region, Repairer& repairer,
                               SlabIndex slab) {
  FARPAGE_TRY_VOID(release(region, tried_));  // what it was leased in vain is room for this one
  FARPAGE_TRY_VOID(release(region, slab));
  tried_ = slab;
  FARPAGE_TRY(leases, parts_.client.lease_slabs(region.id, {slab}));
  const ReplicaLease* from = in_file(parts_.leases.find(slab));
  if (from == nullptr) return fail(ErrorCode::kNotFound, "its replica in the file is lost");
  Move move{slab, *from, {}, SteadyClock::read()};
  Status failure = fail(ErrorCode::kUnavailable, "no node lends it");
  for (const coordinator::Lease& lease : leases) {
    if (lease.lost || lease.stale || lease.filling || lease.slab != slab) continue;
    if (lease.bytes != region.slab_bytes) {
      failure = fail(ErrorCode::kInvalid, "the coordinator leased a slab of another size");
      continue;
    }
    const auto replica = replica_of(lease, parts_.node_index);
    if (!replica) {
      failure = tl::unexpected(replica.error());
      continue;
    }
    // Each replica that is added takes room in the map for ever.
    if (repairer.is_unreachable((*replica)->node)) {
      failure = fail(ErrorCode::kUnavailable, "node " + lease.node.value + " is not reached");
      continue;
    }
    (*replica)->state.store(ReplicaState::kFilling, std::memory_order_release);
    const ReplicaLease* added = parts_.leases.add(slab, **replica);
    if (added == nullptr) {
      failure = fail(ErrorCode::kExhausted, "this program has had too many replicas");
      continue;
    }
    move.fills.push_back(std::make_shared<Fill>(parts_.leases, slab, *added, parts_.ring));
  }
  if (move.fills.empty()) {
    to_release_.insert(slab);
    return failure;
  }
  for (const std::shared_ptr<Fill>& fill : move.fills) repairer.add(fill);
  move_.emplace(std::move(move));
  return {};
}

// A replica that was not filled is made again by RegionRepair, if another one was.
void RegionSpill::take_end() {
  if (!move_) return;
  const auto has_ended = [](const std::shared_ptr<Fill>& fill) {
    return fill->end.load(std::memory_order_acquire) != Fill::End::kNone;
  };
  if (!std::ranges::all_of(move_->fills, has_ended)) return;
  const Move ended = std::move(*move_);
  move_.reset();
  const Instant now = SteadyClock::read();
  const auto takes_its_place = [&](const std::shared_ptr<Fill>& fill) {
    return fill->end.load(std::memory_order_relaxed) == Fill::End::kFilled &&
           parts_.leases.withdraw(ended.from, fill->replica);
  };
  const auto live = std::ranges::find_if(ended.fills, takes_its_place);
  if (live == ended.fills.end()) {
    to_release_.insert(ended.slab);
    return wait(fill_pause_, kLongestFillPause);
  }
  ask_pause_ = fill_pause_ = Milliseconds(0);
  withdrawn_.emplace_back(now + kWithdrawnGrace, &ended.from);
  in_file_.erase(ended.slab);
  ++returned_;
  log::debug("pager: slab_returned slab={} node={} ms={}", ended.slab.value,
             parts_.nodes.name_of((*live)->replica.node),
             (now - ended.begun_at).count() / 1'000'000);
  if (in_file_.empty() && std::exchange(said_spilling_, false))
    log::info("pager: spill_over slabs={}: all are on nodes again", returned_);
}

void RegionSpill::give_back(Instant now) {
  while (!withdrawn_.empty() && withdrawn_.front().first <= now) {
    const ReplicaLease& replica = *withdrawn_.front().second;
    parts_.nodes.file()->give_back(replica.address, replica.generation);
    withdrawn_.pop_front();
  }
}

void RegionSpill::count(coordinator::Counters& counters) const {
  if (parts_.nodes.file() == nullptr) return;
  counters["farpage_spilled_slabs"] = in_file_.size();
  counters["farpage_spill_returned_slabs_total"] = returned_;
}

}  // namespace farpage::pager
