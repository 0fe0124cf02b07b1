#include "coordinator/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <map>
#include <thread>
#include <utility>

#include "base/log.h"

namespace farpage::coordinator {

Result<std::unique_ptr<Cluster>> Cluster::create(StateOptions options, std::unique_ptr<Store> store,
                                                 std::unique_ptr<AgentClient> agents,
                                                 const Clock& clock) {
  FARPAGE_TRY(snapshot, store->load());
  std::unique_ptr<Cluster> cluster(new Cluster(State(options, snapshot, clock.now()),
                                               std::move(store), std::move(agents), clock));
  {
    MutexLock lock(cluster->mutex_);
    FARPAGE_TRY_VOID(cluster->save(lock, Wait::kOwn));
  }
  log::info("coordinator: state loaded store={} nodes={} regions={} leases={}",
            cluster->store_->kind(), snapshot.nodes.size(), snapshot.regions.size(),
            snapshot.leases.size());
  return cluster;
}

Cluster::Cluster(State state, std::unique_ptr<Store> store, std::unique_ptr<AgentClient> agents,
                 const Clock& clock)
    : store_(std::move(store)),
      agents_(std::move(agents)),
      clock_(clock),
      state_(std::move(state)) {
  published_ = state_.events().last();
}

template <typename Use>
std::invoke_result_t<Use, Store&> Cluster::with_store(Use use) {
  const auto guarded = [&]() -> std::invoke_result_t<Use, Store&> {
    try {
      return use(*store_);
    } catch (const std::exception& error) {
      return fail(ErrorCode::kIo, error.what());
    }
  };
  store_is_busy_ = true;
  mutex_.unlock();
  auto result = guarded();
  mutex_.lock();
  store_is_busy_ = false;
  store_is_idle_.notify_all();
  return result;
}

Status Cluster::save(MutexLock& lock, Wait wait) {
  Changes changes = state_.take_changes();
  const bool changed = !changes.empty() || changes.last_sequence != noted_sequence_;
  // What a failed write has left is tried again by everybody.
  if (!changed && store_works_) return wait == Wait::kAll ? await_written(lock, noted_) : Status();
  noted_sequence_ = changes.last_sequence;
  unsaved_.add(std::move(changes));
  return await_written(lock, ++noted_);
}

Status Cluster::await_written(MutexLock& lock, uint64_t change) {
  while (true) {
    store_is_idle_.wait(lock, [&]() FARPAGE_REQUIRES(mutex_) {
      return !store_is_busy_ || written_ >= change || failed_ >= change;
    });
    if (written_ >= change) return {};
    if (failed_ >= change)
      return fail(ErrorCode::kUnavailable,
                  "the coordinator cannot write its store: " + failure_.message());
    write_unsaved();
  }
}

void Cluster::write_unsaved() {
  Changes batch = std::exchange(unsaved_, Changes{});
  const uint64_t last = noted_;
  const Status written = with_store([&](Store& store) { return store.write(batch); });
  if (written) {
    if (!store_works_) log::info("coordinator: store works again");
    written_ = last;
  } else {
    if (store_works_)
      log::error("coordinator: store failed error=\"{}\"", written.error().message());
    failed_ = last;
    failure_ = written.error();
  }
  store_works_ = written.has_value();
  const uint64_t sequence = batch.last_sequence;
  if (!written) {
    batch.add(std::exchange(unsaved_, Changes{}));
    unsaved_ = std::move(batch);
  }
  publish(sequence);
}

void Cluster::publish(uint64_t sequence) {
  if (sequence == published_) return;
  published_ = sequence;
  if (listener_) listener_(sequence);
}

// ---- nodes ----

Result<bool> Cluster::is_running(const NodeInfo& known) const {
  const std::string& url = known.join.agent_url;
  const Result<uint64_t> answer = agents_->incarnation(url);
  if (answer) return *answer == known.join.incarnation;
  const bool unclear =
      answer.error().code == ErrorCode::kTimedOut || answer.error().sys_errno == ETIMEDOUT;
  if (unclear && known.state != NodeState::kLost)
    return fail(ErrorCode::kUnavailable,
                fmt::format("a node named '{}' still sends heartbeats, but its agent at {} does "
                            "not answer: try again until they end, or give this one another name "
                            "with --name",
                            known.join.id.value, url));
  return false;
}

// A disk was copied with its identity: under another name that is found out here.
Status Cluster::refuse_copies(const NodeJoin& join) const {
  if (join.identity.empty()) return {};
  for (const NodeInfo& other : nodes()) {
    if (other.join.identity != join.identity || other.join.id == join.id) continue;
    FARPAGE_TRY(running, is_running(other));
    if (running)
      return fail(ErrorCode::kConflict,
                  fmt::format("node '{}' at {} has the identity of node '{}', which is running at "
                              "{}: one disk is a copy of the other. Remove {}.id from the state "
                              "directory of the copy",
                              join.id.value, join.agent_url, other.join.id.value,
                              other.join.agent_url, join.id.value));
  }
  return {};
}

// It is another machine than the one that had this name, which is not running.
Status Cluster::refuse_stranger(const NodeJoin& join, const NodeJoin& known) const {
  const MutexLock lock(mutex_);
  const size_t leases = state_.leases_of(join.id);
  if (leases == 0) return {};
  return fail(
      ErrorCode::kConflict,
      fmt::format("another machine had the name '{}', at {}, and {} slabs that it lent are "
                  "not given up: start that one again; or, if it will not come back, remove "
                  "it (DELETE /v1/nodes/{}?force=true); or give this one another name with "
                  "--name",
                  join.id.value, known.agent_url, leases, join.id.value));
}

Result<std::optional<uint64_t>> Cluster::find_replaced(const NodeJoin& join) const {
  const Result<NodeInfo> known = node(join.id);
  if (known && known->join.incarnation == join.incarnation) return std::nullopt;
  FARPAGE_TRY_VOID(refuse_copies(join));
  if (!known) return std::nullopt;
  FARPAGE_TRY(running, is_running(*known));
  const bool is_same = !join.identity.empty() && join.identity == known->join.identity;
  if (running && is_same)
    return fail(ErrorCode::kConflict,
                fmt::format("node '{}' at {} has the name and the identity of a node that is "
                            "running at {}: one disk is a copy of the other. Remove {}.id from the "
                            "state directory of the copy, and give it another name with --name",
                            join.id.value, join.agent_url, known->join.agent_url, join.id.value));
  if (running)
    return fail(ErrorCode::kConflict,
                fmt::format("a node named '{}' is already running, with its agent at {}: give this "
                            "one another name with --name",
                            join.id.value, known->join.agent_url));
  if (!known->join.identity.empty() && !is_same)
    FARPAGE_TRY_VOID(refuse_stranger(join, known->join));
  return known->join.incarnation;
}

Result<Joined> Cluster::join(const NodeJoin& join) {
  FARPAGE_TRY(replaced, find_replaced(join));
  const Instant now = clock_.now();
  FARPAGE_TRY(joined, change([&](State& state) FARPAGE_REQUIRES(mutex_) -> Result<Joined> {
                const Result<NodeInfo> known = state.node(now, join.id);
                if (known && known->join.incarnation != join.incarnation &&
                    known->join.incarnation != replaced)
                  return fail(ErrorCode::kUnavailable,
                              fmt::format("another process joined as node '{}' at the same time: "
                                          "try again",
                                          join.id.value));
                FARPAGE_TRY(created, state.join(now, join));
                not_before_.erase(join.agent_url);
                FARPAGE_TRY(node, state.node(now, join.id));
                return Joined{std::move(node), created};
              }));
  if (joined.created)
    log::info("coordinator: node joined node={} slabs={} agent={}", join.id.value,
              joined.node.total_slabs, join.agent_url);
  return joined;
}

Status Cluster::heartbeat_node(const NodeId& id, NodeHeartbeat heartbeat) {
  const auto hear = [&](State& state) FARPAGE_REQUIRES(mutex_) -> Status {
    const Instant now = clock_.now();
    FARPAGE_TRY_VOID(state.heartbeat_node(now, id, std::move(heartbeat)));
    if (not_before_.empty()) return {};  // thousands of nodes call this each second
    FARPAGE_TRY(node, state.node(now, id));
    not_before_.erase(node.join.agent_url);
    return {};
  };
  return change(hear, Wait::kOwn);
}

Status Cluster::set_service(const NodeId& id, NodeService service) {
  return change([&](State& state) { return state.set_service(id, service); });
}

Status Cluster::remove_node(const NodeId& id, bool force) {
  FARPAGE_TRY_VOID(change([&](State& state) { return state.remove_node(id, force); }));
  log::info("coordinator: node removed node={} force={}", id.value, force);
  return {};
}

Result<NodeInfo> Cluster::lend(const NodeId& id, const NodeLend& lend) {
  const Instant now = clock_.now();
  FARPAGE_TRY(node, change([&](State& state) { return state.lend(now, id, lend); }));
  log::info("coordinator: node is to lend node={} bytes={} slabs_now={}", id.value, lend.bytes,
            node.total_slabs);
  return node;
}

Result<Rebalanced> Cluster::rebalance(const Rebalance& rebalance) {
  return change([&](State& state) -> Result<Rebalanced> { return state.rebalance(rebalance); });
}

void Cluster::adjust_lending() {
  bool goes_on = true;
  for (int round = 0; goes_on && round < kMaxLendRounds; ++round) {
    std::vector<LendStep> steps;
    const Status saved = change([&](State& state) -> Status {
      steps = state.begin_lend_steps();
      return {};
    });
    goes_on = false;
    for (const LendStep& step : steps) {
      {
        const MutexLock lock(mutex_);
        if (stopping_) return;
      }
      // What is not written is not asked for.
      Status outcome = saved;
      if (saved && !step.add.empty())
        outcome = agents_->add_slabs(step.agent_url, step.add, step.add_in_all);
      if (saved && !step.withdraw.empty())
        outcome = agents_->withdraw_slabs(step.agent_url, step.withdraw);
      if (!outcome)
        log::warn("coordinator: lending not changed node={} add={} withdraw={} reason=\"{}\"",
                  step.node.value, step.add.size(), step.withdraw.size(),
                  outcome.error().message());
      const Status ended = change([&](State& state) -> Status {
        state.end_lend_step(step, outcome);
        return {};
      });
      goes_on = goes_on || (outcome && ended);
    }
  }
}

Result<NodeInfo> Cluster::node(const NodeId& id) const {
  const MutexLock lock(mutex_);
  return state_.node(clock_.now(), id);
}

std::vector<NodeInfo> Cluster::nodes() const {
  const MutexLock lock(mutex_);
  return state_.nodes(clock_.now());
}

Result<NodeEndpoints> Cluster::endpoints(const NodeId& id) const {
  const MutexLock lock(mutex_);
  return state_.endpoints(id);
}

Result<rdma::QueuePairEndpoint> Cluster::exchange(const NodeId& id,
                                                  const rdma::QueuePairEndpoint& peer) {
  FARPAGE_TRY(node, this->node(id));
  auto theirs = agents_->connect(node.join.agent_url, peer);
  if (!theirs) return fail_with(fmt::format("node '{}'", id.value), theirs.error());
  FARPAGE_TRY_VOID(change([&](State& state) {
    return state.record_exchange(id, node.join.incarnation, QueuePairExchanged{peer, *theirs});
  }));
  return *theirs;
}

// ---- regions ----

Result<RegionInfo> Cluster::create_region(const RegionCreate& create) {
  const Instant now = clock_.now();
  FARPAGE_TRY(id, change([&](State& state) { return state.create_region(now, create); }));
  std::vector<SlabIndex> slabs;
  for (uint64_t first = 0; first < create.bytes; first += create.slab_bytes)
    slabs.push_back(SlabIndex{static_cast<uint32_t>(slabs.size())});
  if (!slabs.empty()) {
    const auto leases = lease_slabs(id, slabs);
    if (!leases) {
      const Status undone = delete_region(id);
      if (!undone) log::warn("coordinator: region not undone region={}", id.value);
      return tl::unexpected(leases.error());
    }
  }
  log::info("coordinator: region created region={} name={} slabs={} replicas={}", id.value,
            create.name, slabs.size(), create.replicas);
  return region(id);
}

Result<RegionHeard> Cluster::heartbeat_region(const RegionId& id, RegionHeartbeat heartbeat) {
  const Instant now = clock_.now();
  RegionHeard heard;
  const auto hear = [&](State& state) FARPAGE_REQUIRES(mutex_) {
    heard.last_event = published_;
    return state.heartbeat_region(now, id, std::move(heartbeat));
  };
  FARPAGE_TRY_VOID(change(hear, Wait::kOwn));
  return heard;
}

Status Cluster::delete_region(const RegionId& id) {
  {
    // Leave the gate before calling the nodes, so that a repeated request returns at once.
    FARPAGE_TRY(hold, gate_.enter(id, kGateTimeout));
    FARPAGE_TRY_VOID(change([&](State& state) { return state.delete_region(id); }));
  }
  log::info("coordinator: region deleted region={}", id.value);
  revoke_now(id);
  return {};
}

Result<RegionInfo> Cluster::region(const RegionId& id) const {
  const MutexLock lock(mutex_);
  return state_.region(id);
}

Result<uint64_t> Cluster::slab_bytes_of(const RegionId& id) const {
  const MutexLock lock(mutex_);
  return state_.slab_bytes_of(id);
}

std::vector<RegionInfo> Cluster::regions() const {
  std::vector<RegionInfo> list;
  RegionId after;
  while (true) {
    const size_t had = list.size();
    {
      const MutexLock lock(mutex_);
      state_.append_regions(after, kRegionsCopiedAtOnce, list);
    }
    if (list.size() == had) return list;
    after = list.back().id;
  }
}

Result<std::vector<Lease>> Cluster::lease_slabs(const RegionId& id,
                                                const std::vector<SlabIndex>& slabs) {
  FARPAGE_TRY(hold, gate_.enter(id, kGateTimeout));
  FARPAGE_TRY(slab_bytes, slab_bytes_of(id));
  FARPAGE_TRY_VOID(lease_planned(id, slab_bytes, [&](State& state, const std::set<NodeId>& avoid) {
    return state.begin_lease(clock_.now(), id, slabs, avoid);
  }));
  const MutexLock lock(mutex_);
  return state_.leases(id, slabs);
}

Result<RepairBegun> Cluster::begin_repair(const RegionId& id, const RepairBegin& repair) {
  FARPAGE_TRY(hold, gate_.enter(id, kGateTimeout));
  FARPAGE_TRY(slab_bytes, slab_bytes_of(id));
  const Status leased =
      lease_planned(id, slab_bytes, [&](State& state, const std::set<NodeId>& avoid) {
        return state.begin_repair(clock_.now(), id, repair, avoid);
      });
  if (!leased) return tl::unexpected(leased.error());
  const MutexLock lock(mutex_);
  return state_.repair_begun(id, repair.slab);
}

Status Cluster::complete_repair(const RegionId& id, const RepairComplete& repair) {
  FARPAGE_TRY(hold, gate_.enter(id, kGateTimeout));
  const Instant now = clock_.now();
  FARPAGE_TRY_VOID(change([&](State& state) { return state.complete_repair(now, id, repair); }));
  if (!repair.abandoned)
    log::info("coordinator: slab repaired region={} slab={} node={}", id.value, repair.slab.value,
              repair.filled.node.value);
  return {};  // what has ended is revoked in the background: its node may not answer
}

Status Cluster::lease_planned(const RegionId& id, uint64_t slab_bytes, const Plan& plan_with) {
  std::set<NodeId> avoid;
  Status failure = {};
  for (int attempt = 0; attempt < kMaxLeaseAttempts; ++attempt) {
    std::vector<PlannedLease> plan;
    const Status reserved = change([&](State& state) -> Status {
      FARPAGE_TRY(planned, plan_with(state, avoid));
      plan = std::move(planned);
      return {};
    });
    std::vector<LeaseOutcome> outcomes(plan.size());
    if (!reserved) {
      // Reserved, but not written. No node was asked yet, so undo it.
      const MutexLock lock(mutex_);
      if (!plan.empty()) static_cast<void>(state_.commit_lease(plan, outcomes));
      // After a failed attempt, report that failure, not that no other node is left.
      const bool later = reserved.error().code == ErrorCode::kExhausted && !failure;
      return later ? failure : reserved;
    }
    if (plan.empty()) return {};
    const Status asked = ask_nodes(plan, slab_bytes, outcomes, avoid);
    Status done = change([&](State& state) { return state.commit_lease(plan, outcomes); });
    if (done) return {};
    failure = asked ? done : asked;
    log::warn("coordinator: lease failed region={} attempt={} error=\"{}\"", id.value, attempt + 1,
              failure.error().message());
    revoke_now(id);
    if (done.error().code == ErrorCode::kNotFound) return done;
  }
  return failure;
}

std::vector<Result<SlabLeaseReply>> Cluster::lease_at_nodes(
    const std::vector<PlannedLease>& plan) const {
  std::map<std::string, std::vector<size_t>> of_node;  // indices into plan
  for (size_t i = 0; i < plan.size(); ++i) of_node[plan[i].agent_url].push_back(i);
  std::vector<Result<SlabLeaseReply>> replies(plan.size());
  const auto ask = [&](const std::string& agent_url, const std::vector<size_t>& indices) {
    std::vector<NodeSlabRequest> slabs;
    slabs.reserve(indices.size());
    for (const size_t i : indices) slabs.push_back({plan[i].node_slab, plan[i].request});
    std::vector<Result<SlabLeaseReply>> of_these = agents_->lease(agent_url, slabs);
    for (size_t i = 0; i < indices.size(); ++i) replies[indices[i]] = std::move(of_these[i]);
  };
  // A node that does not answer takes as long as the timeout, but the others need not wait for it.
  std::vector<std::jthread> threads;
  for (auto node = of_node.begin(); node != of_node.end(); ++node) {
    if (std::next(node) == of_node.end() || threads.size() == kMaxNodesAsked) {
      ask(node->first, node->second);
    } else {
      threads.emplace_back([&ask, node] { ask(node->first, node->second); });
    }
  }
  threads.clear();
  return replies;
}

Status Cluster::ask_nodes(const std::vector<PlannedLease>& plan, uint64_t slab_bytes,
                          std::vector<LeaseOutcome>& outcomes, std::set<NodeId>& avoid) {
  std::vector<Result<SlabLeaseReply>> replies = lease_at_nodes(plan);
  Status status = {};
  for (size_t i = 0; i < plan.size(); ++i) {
    const PlannedLease& planned = plan[i];
    Result<SlabLeaseReply>& grant = replies[i];
    if (grant && grant->bytes == slab_bytes) {
      outcomes[i] = LeaseOutcome{LeaseAnswer::kGranted, std::move(*grant)};
      continue;
    }
    const Error error =
        grant ? Error{ErrorCode::kIo, "lent a slab of another size", 0} : grant.error();
    if (grant || error.code == ErrorCode::kTimedOut || error.code == ErrorCode::kIo) {
      outcomes[i].answer = LeaseAnswer::kUnknown;
    } else {
      outcomes[i].answer =
          error.code == ErrorCode::kConflict ? LeaseAnswer::kForeign : LeaseAnswer::kRefused;
    }
    if (outcomes[i].answer != LeaseAnswer::kForeign) avoid.insert(planned.node);
    if (status.has_value())
      status = fail(ErrorCode::kUnavailable,
                    fmt::format("node '{}' did not lend slab {}: {}", planned.node.value,
                                planned.node_slab, error.message()));
  }
  return status;
}

Status Cluster::release_slabs(const RegionId& id, const std::vector<SlabIndex>& slabs) {
  FARPAGE_TRY(hold, gate_.enter(id, kGateTimeout));
  FARPAGE_TRY_VOID(change([&](State& state) { return state.release(id, slabs); }));
  revoke_now(id);
  return {};
}

// ---- events, facts, time ----

EventBatch Cluster::events(uint64_t since) const {
  const MutexLock lock(mutex_);
  return state_.events().since(since, published_);
}

uint64_t Cluster::last_event() const {
  const MutexLock lock(mutex_);
  return published_;
}

void Cluster::set_event_listener(std::function<void(uint64_t)> listener) {
  const MutexLock lock(mutex_);
  listener_ = std::move(listener);
}

Result<std::string> Cluster::copy_store() {
  MutexLock lock(mutex_);
  FARPAGE_TRY_VOID(save(lock, Wait::kAll));
  store_is_idle_.wait(lock, [this]() FARPAGE_REQUIRES(mutex_) { return !store_is_busy_; });
  return with_store([](Store& store) { return store.copy(); });
}

void Cluster::summarize(ClusterSummary& summary) const {
  summary.totals = state_.totals();
  summary.pending_revocations = state_.pending_revocations();
  summary.last_sequence = published_;
  summary.store_kind = store_->kind();
  summary.store_works = store_works_;
}

bool Cluster::store_works() const {
  const MutexLock lock(mutex_);
  return store_works_;
}

ClusterSummary Cluster::summary() const {
  const MutexLock lock(mutex_);
  ClusterSummary summary;
  summarize(summary);
  return summary;
}

ClusterFacts Cluster::facts() const {
  const MutexLock lock(mutex_);
  ClusterFacts facts;
  summarize(facts);
  facts.nodes = state_.nodes(clock_.now());
  facts.regions = state_.regions_without_leases();
  facts.reported_free_slabs = state_.reported_free_slabs();
  return facts;
}

void Cluster::tick() {
  const Instant now = clock_.now();
  const auto expire = [&](State& state) -> Status {
    const uint64_t before = state.events().last();
    state.tick(now);
    for (const Event& event : state.events().since(before).events) {
      if (event.sequence <= before) continue;
      log::warn("coordinator: silent for too long event={} node={} region={}",
                to_string(event.kind), event.node.value, event.region.value);
    }
    return {};
  };
  static_cast<void>(change(expire, Wait::kOwn));  // save() has logged it; the next tick retries
}

void Cluster::stop() {
  const MutexLock lock(mutex_);
  stopping_ = true;
}

std::string Cluster::check() const {
  const MutexLock lock(mutex_);
  return state_.check();
}

}  // namespace farpage::coordinator
