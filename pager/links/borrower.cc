#include "pager/links/borrower.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/log.h"
#include "base/loop_gap.h"
#include "base/unanswered.h"

namespace farpage::pager {
namespace {

constexpr size_t kMaxSlabsPerRequest = 16;
constexpr Milliseconds kRetryLease{250};
// At the end: retries, so that no lease stays held until the region's time to live expires.
constexpr int kMaxDeleteTries = 5;
constexpr Milliseconds kRetryDelete{100};
constexpr Milliseconds kDeletePatience{4000};  // no retry after it
constexpr Milliseconds kUntilWanted{1000};     // without a region nothing has to be renewed
constexpr Nanoseconds kUntilSpill = Seconds(1);
// Until a coordinator that has not answered is asked again.
constexpr Nanoseconds kSilence = Seconds(1);

// It changes the addresses or the state of a node.
bool is_of_a_node(coordinator::EventKind kind) {
  using coordinator::EventKind;
  return kind == EventKind::kNodeJoined || kind == EventKind::kNodeCordoned ||
         kind == EventKind::kNodeDraining || kind == EventKind::kNodeOpened ||
         kind == EventKind::kNodeLost;
}

}  // namespace

Borrower::Borrower(const PagerOptions& options, std::string name, LeaseMap& leases,
                   NodeDirectory& nodes, coordinator::Client& client, Keep keep)
    : request_{.name = std::move(name),
               .bytes = 0,
               .replicas = options.replicas,
               .slab_bytes = options.slab_bytes,
               .session_group = options.session_group,
               .spread_by = options.spread_by,
               .borrower = options.borrower},
      keep_(std::move(keep)),
      transports_(options.transports),
      leases_(leases),
      nodes_(nodes),
      client_(client),
      repair_({leases, nodes, client, [this](const NodeId& id) { return node_index(id); },
               [this] { ring(); }}),
      spill_({leases, nodes, client, [this](const NodeId& id) { return node_index(id); },
              [this] { ring(); }}) {}

void Borrower::own(RegionOwner& owner) {
  const MutexLock lock(owner_mutex_);
  owner_ = &owner;
}

void Borrower::take_over(std::optional<coordinator::RegionInfo> region) {
  spill_.take_over();
  view_is_old_ = region.has_value();
  if (region) region_ = std::move(*region);
  leased_slabs_.store(leases_.leased_slabs(), std::memory_order_relaxed);
}

void Borrower::disown() {
  const MutexLock lock(owner_mutex_);
  owner_ = nullptr;
}

Borrower::~Borrower() {
  if (thread_ != nullptr) thread_->remove(*this);
  if (thread_ != nullptr && thread_->repairer() != nullptr) thread_->repairer()->remove(leases_);
  if (region_.id.value.empty()) return;
  const Status deleted = give_region_back();
  if (deleted) return;
  log::warn("pager: region_not_deleted region={} reason=\"{}\" (trying again)", region_.id.value,
            deleted.error().message());
  if (thread_ != nullptr && is_unanswered(deleted)) thread_->give_back(client_, region_.id);
}

// Retries: a busy coordinator may not accept a connection, or not answer, in time.
Status Borrower::give_region_back() {
  const Instant start = SteadyClock::read();
  for (int tries = 1;; ++tries) {
    Status deleted = client_.delete_region(region_.id);
    if (deleted) return {};
    const ErrorCode code = deleted.error().code;
    if (code == ErrorCode::kNotFound) return {};  // deleted by an attempt whose answer was lost
    if (!is_unanswered(code) || tries == kMaxDeleteTries ||
        SteadyClock::read() - start >= kDeletePatience)
      return deleted;
    std::this_thread::sleep_for(kRetryDelete);
  }
}

Status Borrower::create_region() {
  FARPAGE_TRY(region, client_.create_region(request_));
  FARPAGE_TRY_VOID(keep_(region));
  region_ = std::move(region);
  // Earlier events do not concern this region.
  FARPAGE_TRY(heard, client_.heartbeat_region(region_.id, {}));
  events_since_ = heard.last_event;
  return {};
}

Status Borrower::open_region(Milliseconds patience) {
  const Instant start = SteadyClock::read();
  while (true) {
    const bool last_try = SteadyClock::read() - start >= patience;
    Status opened{};
    if (region_.id.value.empty()) opened = create_region();
    // At a cluster that has just been started nodes are about to join.
    const bool waits = SteadyClock::read() - start < std::min<Nanoseconds>(patience, kUntilSpill);
    if (opened) opened = waits ? lease({SlabIndex{0}}) : lease_or_spill({SlabIndex{0}});
    if (opened) return {};
    // A coordinator that fails before its answer may have made a region unknown to us, which ends
    // after its time to live. A repeated lease request returns the same lease.
    const ErrorCode code = opened.error().code;
    const bool may_change = code == ErrorCode::kExhausted || is_unanswered(code);
    if (last_try || !may_change) return fail_with("borrowing memory", opened.error());
    std::this_thread::sleep_for(Milliseconds(100));
  }
}

void Borrower::start(BorrowerThread& thread) {
  thread_ = &thread;
  next_heartbeat_ = SteadyClock::read();
  if (thread.repairer() != nullptr) thread.repairer()->scrub(leases_);
  thread.add(*this);
}

Instant Borrower::serve() {
  // Heartbeat first: after a pause this process must learn the state of its leases.
  const Instant now = SteadyClock::read();
  if (now >= next_heartbeat_ && !region_.id.value.empty()) {
    heartbeat(now - next_heartbeat_ > region_.heartbeat_interval + LoopGap::kLongestTurn);
    next_heartbeat_ =
        (coordinator_silent_ ? SteadyClock::read() : now) + region_.heartbeat_interval;
  }
  const uint64_t before = leased_slabs();
  const uint64_t spilled = spill_.spilled_slabs();
  const Status leased = lease_wanted();
  const bool has_spilled = spill_.spilled_slabs() > spilled;  // others may wait for their turn
  if (leased_slabs() != before) thread_->room_watch().leased();
  if (!does_without_coordinator()) thread_->room_watch().look(client_, SteadyClock::read());
  if (!leased && !lease_refused())
    log::warn("pager: lease_refused reason=\"{}\" (trying again)", leased.error().message());
  lease_refused_.store(!leased, std::memory_order_relaxed);
  if (region_.id.value.empty() && spill_.has_slabs() && !does_without_coordinator())
    note_answer(!is_unanswered(create_region()), kSilence);
  if (region_.id.value.empty() && leased && has_spilled) return SteadyClock::read();
  if (region_.id.value.empty()) return SteadyClock::read() + (leased ? kUntilWanted : kRetryLease);
  Instant due = next_heartbeat_;
  if (Repairer* const repairer = thread_->repairer(); repairer != nullptr) {
    const bool may_ask = !does_without_coordinator();
    if (may_ask) due = std::min(due, repair_.serve(region_, *repairer));
    due = std::min(due, spill_.serve(region_, *repairer, may_ask));
  }
  view_is_old_ = repair_.take_old_view() || view_is_old_;
  if (leased && has_spilled) return SteadyClock::read();
  return leased ? due : std::min(due, SteadyClock::read() + kRetryLease);
}

// A backing region that was not opened by open_region() gets its region with its first slab.
Status Borrower::lease_wanted() {
  while (true) {
    const std::vector<SlabIndex> wanted = leases_.wanted(kMaxSlabsPerRequest);
    if (wanted.empty()) return {};
    const uint64_t before = leased_slabs();
    const uint64_t spilled = spill_.spilled_slabs();
    FARPAGE_TRY_VOID(lease_or_spill(wanted));
    if (leased_slabs() == before || spill_.spilled_slabs() != spilled) return {};
  }
}

Status Borrower::lease_or_spill(const std::vector<SlabIndex>& slabs) {
  Status leased = fail(ErrorCode::kUnavailable, "the coordinator does not answer");
  if (!does_without_coordinator()) {
    leased = region_.id.value.empty() ? create_region() : Status();
    if (leased) {
      leased = lease(slabs);
    } else {
      note_answer(!is_unanswered(leased), kSilence);
    }
  }
  if (leased) {
    spill_.leased();
    return {};
  }
  const uint64_t before = spill_.spilled_slabs();
  const Status spilled = spill_.spill(slabs, leased.error());
  if (const uint64_t more = spill_.spilled_slabs() - before; more > 0) {
    leased_slabs_.fetch_add(more, std::memory_order_relaxed);
    const MutexLock lock(owner_mutex_);
    if (owner_ != nullptr) {
      owner_->node_wanted(kFileNode);
      owner_->leased();
    }
  }
  return spilled;
}

bool Borrower::does_without_coordinator() const {
  return nodes_.file() != nullptr && SteadyClock::read() < silent_until_;
}

void Borrower::note_answer(bool answered, Nanoseconds pause) {
  silent_until_ = answered ? Instant{0} : SteadyClock::read() + pause;
}

// The coordinator grants all or none. Where not all fit, as many as fit are of use: eviction goes
// on with them.
Status Borrower::lease(const std::vector<SlabIndex>& slabs) {
  const auto leases = client_.lease_slabs(region_.id, slabs);
  note_answer(!is_unanswered(leases), kSilence);
  if (leases) return adopt(*leases);
  if (leases.error().code != ErrorCode::kExhausted || slabs.size() == 1)
    return tl::unexpected(leases.error());
  const auto half = slabs.begin() + static_cast<ptrdiff_t>(slabs.size() / 2);
  FARPAGE_TRY_VOID(lease({slabs.begin(), half}));
  return lease({half, slabs.end()});
}

// An unusable slab does not prevent the use of the others.
Status Borrower::adopt(const std::vector<coordinator::Lease>& leases) {
  Status failure{};
  std::set<SlabIndex> unusable;
  std::map<SlabIndex, std::vector<std::unique_ptr<const ReplicaLease>>> slabs;
  for (const coordinator::Lease& lease : leases) {
    if (lease.slab.value >= leases_.slabs()) continue;
    if (lease.bytes != region_.slab_bytes)
      return fail(ErrorCode::kInvalid, "the coordinator leased a slab of another size");
    auto& replicas = slabs[lease.slab];
    if (lease.lost || lease.stale || lease.filling) continue;
    auto replica = replica_of(lease, [this](const NodeId& id) { return node_index(id); });
    if (!replica) {
      if (failure) failure = tl::unexpected(replica.error());
      unusable.insert(lease.slab);
      continue;
    }
    if (replicas.size() == coordinator::kMaxReplicas)
      return fail(ErrorCode::kInvalid, "the coordinator leased too many replicas");
    replicas.push_back(std::move(*replica));
  }
  std::vector<SlabIndex> without_node;
  for (auto& [index, replicas] : slabs) {
    if (unusable.contains(index)) continue;
    if (replicas.empty()) {
      without_node.push_back(index);
      continue;
    }
    leases_.publish(index, std::move(replicas));
    leased_slabs_.fetch_add(1, std::memory_order_relaxed);
  }
  {
    const MutexLock lock(owner_mutex_);
    if (owner_ != nullptr) owner_->leased();
  }
  if (without_node.empty()) return failure;
  // They can be leased again after their release.
  FARPAGE_TRY_VOID(client_.release_slabs(region_.id, without_node));
  return fail(ErrorCode::kUnavailable, "the nodes that lent some slabs have left or restarted");
}

Result<NodeIndex> Borrower::node_index(const NodeId& id) {
  std::optional<NodeIndex> index = nodes_.find(id);
  // It lends, so it is not leaving: that was before events were read.
  if (!index || nodes_.leaving().contains(*index)) {
    const Result<coordinator::NodeInfo> node = client_.node(id);
    if (!node && node.error().code == ErrorCode::kNotFound)
      return fail(ErrorCode::kUnavailable, "node " + id.value + " has left since it lent a slab");
    if (!node) return tl::unexpected(node.error());
    FARPAGE_TRY_VOID(check_transports(*node));
    FARPAGE_TRY(added, nodes_.put(*node));
    index = added;
  }
  const MutexLock lock(owner_mutex_);
  if (owner_ != nullptr) owner_->node_wanted(*index);
  return *index;
}

// Without one in common, its slabs would be leased, and no page would ever get there.
Status Borrower::check_transports(const coordinator::NodeInfo& node) const {
  std::vector<rdma::TransportKind> offered;
  for (const rdma::TransportAddress& address : node.join.transports) {
    if (std::ranges::find(transports_, address.kind) != transports_.end()) return {};
    offered.push_back(address.kind);
  }
  return fail(ErrorCode::kUnsupported, "node " + node.join.id.value + " offers " +
                                           (offered.empty() ? "no transport" : names_of(offered)) +
                                           ", and this program uses " + names_of(transports_) +
                                           ": choose another transport");
}

Status Borrower::refresh_nodes(const std::set<NodeId>& ids) {
  for (const NodeId& id : ids) {
    const Result<coordinator::NodeInfo> node = client_.node(id);
    if (!node && node.error().code == ErrorCode::kNotFound) continue;  // it has left
    if (!node) return tl::unexpected(node.error());
    FARPAGE_TRY_VOID(nodes_.put(*node));
  }
  return {};
}

void Borrower::heartbeat(bool late) {
  coordinator::RegionHeartbeat heartbeat;
  {
    const MutexLock lock(owner_mutex_);
    if (owner_ != nullptr) heartbeat.counters = owner_->counters_of(leases_);
  }
  repair_.count(heartbeat.counters, region_);
  spill_.count(heartbeat.counters);
  const Result<coordinator::RegionHeard> beat = client_.heartbeat_region(region_.id, heartbeat);
  // Until the next one has been answered.
  note_answer(!is_unanswered(beat), region_.heartbeat_interval + kSilence);
  if (beat) {
    const bool was_silent = std::exchange(coordinator_silent_, false);
    if (was_silent) log::info("pager: coordinator_back region={}", region_.id.value);
    // A failure is retried when the next events arrive.
    if (was_silent || late) (void)refresh_leases();
    if (view_is_old_) view_is_old_ = !see_nodes_and_leases();
    if (beat->last_event != events_since_) poll_events();
    return;
  }
  if (!coordinator_silent_)
    log::warn("pager: coordinator_silent reason=\"{}\" (paging continues with {} leased slabs)",
              beat.error().message(), leased_slabs());
  coordinator_silent_ = true;
  if (beat.error().code != ErrorCode::kNotFound) return;
  // The coordinator does not know our region: it lost its state. The slabs we hold stay ours at the
  // nodes; the new region is for the slabs still needed.
  const Result<coordinator::RegionInfo> region = client_.create_region(request_);
  if (!region || !keep_(*region)) return;
  log::warn("pager: region_recreated old={} new={}", region_.id.value, region->id.value);
  region_ = *region;
}

void Borrower::poll_events() {
  const Result<coordinator::EventBatch> batch = client_.events(events_since_, Milliseconds(0));
  if (!batch) return;
  // Looks up only the nodes that lend to us, not thousands of others.
  std::set<NodeId> changed;
  bool changed_leases = batch->missed;
  for (const coordinator::Event& event : batch->events) {
    if (is_of_a_node(event.kind) && nodes_.find(event.node)) changed.insert(event.node);
    const bool of_a_lease = event.kind == coordinator::EventKind::kLeaseLost ||
                            event.kind == coordinator::EventKind::kSlabMoving;
    changed_leases = changed_leases || (of_a_lease && event.region == region_.id);
  }
  if (batch->missed)
    for (NodeId& id : nodes_.ids()) changed.insert(std::move(id));
  // After a failed lookup the next poll reads the same events again.
  if (refresh_nodes(changed) && (!changed_leases || refresh_leases()))
    events_since_ = batch->next_since;
}

// After a take-over: a dead process may have repaired what the coordinator does not know of, and
// has read the events so far.
Status Borrower::see_nodes_and_leases() {
  std::set<NodeId> all;
  for (NodeId& id : nodes_.ids()) all.insert(std::move(id));
  FARPAGE_TRY_VOID(refresh_nodes(all));
  return refresh_leases();
}

Status Borrower::refresh_leases() {
  FARPAGE_TRY(region, client_.region(region_.id));
  repair_.compare(region);
  for (const coordinator::Lease& lease : region.leases) {
    if (!lease.lost || lease.slab.value >= leases_.slabs()) continue;
    const PageIndex page{uint64_t{lease.slab.value} * leases_.pages_per_slab()};
    const SlabLease* held = leases_.find(page);
    const auto node = nodes_.find(lease.node);
    if (held == nullptr || !node) continue;
    if (const ReplicaLease* replica = held->find(*node, lease.generation))
      lose_replica(page, *replica, "the coordinator says that the node lost its memory");
  }
  return {};
}

void Borrower::lose_replica(PageIndex page, const ReplicaLease& replica, const char* why) {
  if (!mark_lost(leases_, nodes_, page, replica, why)) return;
  const MutexLock lock(owner_mutex_);
  if (owner_ != nullptr) owner_->replica_lost();
}

}  // namespace farpage::pager
