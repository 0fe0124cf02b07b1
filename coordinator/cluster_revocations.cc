#include <set>

#include "base/log.h"
#include "coordinator/cluster.h"

namespace farpage::coordinator {

// Claims the revocations that no other thread has claimed and whose node is not in backoff.
std::vector<Revocation> Cluster::claim_revocations(const RegionId* only_region) {
  MutexLock lock(mutex_);
  std::vector<Revocation> list;
  // What is not written does not count: a coordinator that goes on with this store has the leases.
  std::set<decltype(Revocation::id)> written;
  for (const Revocation& revocation : state_.revocations()) written.insert(revocation.id);
  if (written.empty()) return list;
  if (written_ != noted_ && !(store_works_ && await_written(lock, noted_))) return list;
  const Instant now = clock_.now();
  for (Revocation& revocation : state_.revocations()) {
    if (!written.contains(revocation.id)) continue;
    if (only_region != nullptr && revocation.asked.region != *only_region) continue;
    const auto pause = not_before_.find(revocation.agent_url);
    if (pause != not_before_.end() && now < pause->second) continue;
    if (!claimed_.insert(revocation.id).second) continue;
    list.push_back(std::move(revocation));
  }
  return list;
}

Cluster::RevokeOutcome Cluster::revoke_one(Revocation revocation) {
  if (revocation.generation.value == 0) {
    const NodeSlabRequest asked{revocation.node_slab, revocation.asked};
    const auto grant = agents_->lease(revocation.agent_url, {&asked, 1}).front();
    if (!grant) {
      switch (grant.error().code) {
        case ErrorCode::kConflict:
          return RevokeOutcome::kForeign;
        case ErrorCode::kNotFound:
          return RevokeOutcome::kDone;
        default:
          return RevokeOutcome::kUnreachable;
      }
    }
    revocation.generation = grant->generation;
    const MutexLock lock(mutex_);
    state_.learn_generation(revocation.id, revocation.generation);
  }
  const Status status =
      agents_->revoke(revocation.agent_url, revocation.node_slab, revocation.generation);
  if (status) return RevokeOutcome::kDone;
  // Another generation, or no such slab: that lease has ended.
  if (status.error().code == ErrorCode::kConflict || status.error().code == ErrorCode::kNotFound)
    return RevokeOutcome::kDone;
  return RevokeOutcome::kUnreachable;
}

void Cluster::settle(const Revocation& revocation, RevokeOutcome outcome) {
  const MutexLock lock(mutex_);
  claimed_.erase(revocation.id);
  bool over = outcome != RevokeOutcome::kUnreachable;
  if (!over) {
    not_before_[revocation.agent_url] = clock_.now() + kRevocationBackoff;
    if (!state_.node_is_known(revocation.node))
      over = ++orphan_tries_[revocation.id] >= kMaxOrphanRevocations;
  }
  if (!over) return;
  if (!state_.node_is_known(revocation.node)) not_before_.erase(revocation.agent_url);
  orphan_tries_.erase(revocation.id);
  state_.revoked(revocation.id, outcome == RevokeOutcome::kForeign);
}

void Cluster::revoke(const std::vector<Revocation>& list) {
  std::set<std::string> silent;
  for (const Revocation& revocation : list) {
    if (silent.count(revocation.agent_url) != 0) {
      const MutexLock lock(mutex_);
      claimed_.erase(revocation.id);
      continue;
    }
    const RevokeOutcome outcome = revoke_one(revocation);
    if (outcome == RevokeOutcome::kUnreachable) {
      silent.insert(revocation.agent_url);
      log::warn("coordinator: revoke not confirmed node={} node_slab={} retry=later",
                revocation.node.value, revocation.node_slab);
    }
    settle(revocation, outcome);
  }
  // One save for all. After a crash before it, the coordinator asks the nodes again.
  MutexLock lock(mutex_);
  const Status saved = save(lock, Wait::kOwn);
  static_cast<void>(saved);  // logged by save(); written with the next change
}

void Cluster::revoke_now(const RegionId& region) {
  revoke(claim_revocations(&region));
}

void Cluster::retry_revocations() {
  revoke(claim_revocations(nullptr));
}

}  // namespace farpage::coordinator
