// Cluster: the coordinator without HTTP. It owns the state, the lock that guards it, the store that
// persists it, and the client of the nodes' agents.
//
// Leasing has three steps: reserve (locked, written to the store), ask the nodes (unlocked), commit
// or undo (locked, written). A coordinator that dies in between finds the reservations in its store
// and releases the slabs.
//
// Threads: any. tick(), retry_revocations(), adjust_lending() and repair_images() each belong to
// one background thread.
// Invariants:
//  1. No agent call is made with the lock held, and nothing is written to the store.
//  2. A call that succeeds has written its change to the store. If the write fails, the call
//     returns kUnavailable and the next change writes it too: the caller should retry.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/result.h"
#include "coordinator/agent_client.h"
#include "coordinator/region_gate.h"
#include "coordinator/state.h"
#include "coordinator/store.h"

namespace farpage::coordinator {

struct Joined {
  NodeInfo node;
  bool created = false;  // false: this incarnation was known already
};

// A consistent snapshot of what /v1/cluster reports.
struct ClusterSummary {
  Totals totals;
  size_t pending_revocations = 0;
  uint64_t last_sequence = 0;
  std::string store_kind;
  bool store_works = true;
};

// The same for /metrics. Copying thousands of nodes takes some milliseconds.
struct ClusterFacts : ClusterSummary {
  std::vector<NodeInfo> nodes;
  std::vector<RegionInfo> regions;  // without their leases
  std::map<NodeId, uint32_t> reported_free_slabs;
};

class Cluster {
 public:
  // Reads the store. `clock` must outlive the cluster.
  static Result<std::unique_ptr<Cluster>> create(StateOptions options, std::unique_ptr<Store> store,
                                                 std::unique_ptr<AgentClient> agents,
                                                 const Clock& clock);

  // Fails as State and the store do. An incarnation replaces another one only when the old one no
  // longer answers: kConflict while the old agent answers, kUnavailable while that is not known.
  // With another identity also kConflict while the old one has leases; and with the identity of
  // another name while that one answers.
  Result<Joined> join(const NodeJoin& join);
  Status heartbeat_node(const NodeId& id, NodeHeartbeat heartbeat);
  Status set_service(const NodeId& id, NodeService service);
  Status remove_node(const NodeId& id, bool force);
  Result<NodeInfo> lend(const NodeId& id, const NodeLend& lend);
  Result<Rebalanced> rebalance(const Rebalance& rebalance);
  Result<NodeInfo> node(const NodeId& id) const;
  std::vector<NodeInfo> nodes() const;
  Result<NodeEndpoints> endpoints(const NodeId& id) const;
  // Both queue pairs are ready when it returns. Fails as AgentClient::connect, and with kConflict
  // when the node restarted in the meantime.
  Result<rdma::QueuePairEndpoint> exchange(const NodeId& id, const rdma::QueuePairEndpoint& peer);

  // A region whose slabs cannot all be leased is not created.
  Result<RegionInfo> create_region(const RegionCreate& create);
  Result<RegionHeard> heartbeat_region(const RegionId& id, RegionHeartbeat heartbeat);
  Status delete_region(const RegionId& id);
  Result<RegionInfo> region(const RegionId& id) const;
  // Each is consistent; others may change meanwhile.
  std::vector<RegionInfo> regions() const;
  Result<std::vector<Lease>> lease_slabs(const RegionId& id, const std::vector<SlabIndex>& slabs);
  Status release_slabs(const RegionId& id, const std::vector<SlabIndex>& slabs);
  Result<RepairBegun> begin_repair(const RegionId& id, const RepairBegin& repair);
  Status complete_repair(const RegionId& id, const RepairComplete& repair);

  // cluster_images.cc: as State.
  Result<ImageInfo> create_image(const ImageCreate& create);
  Status checkpoint_image(const ImageId& id, const ImageProgress& progress);
  Status complete_image(const ImageId& id, const ImageProgress& progress);
  Status remove_image(const ImageId& id, bool force);
  Result<ImageInfo> image(const ImageId& id) const;
  std::vector<ImageInfo> images() const;
  Result<OpenedImage> open_image(const ImageId& id, const ImageReader& reader);
  Result<ReaderHeard> renew_reader(const ImageId& id, const ImageReader& reader);
  Status close_reader(const ImageId& id, const ImageReader& reader);

  // Those after `since` that it was tried to write.
  EventBatch events(uint64_t since) const;
  uint64_t last_event() const;
  // Called with the number of the latest event when there are new ones; null: no more. It must not
  // block, nor call the cluster.
  void set_event_listener(std::function<void(uint64_t)> listener);
  // Store::copy(), with every change of a call that has succeeded.
  Result<std::string> copy_store();
  bool store_works() const;
  ClusterSummary summary() const;
  ClusterFacts facts() const;

  // Expires silent nodes and regions.
  void tick();
  // Retries the revocations that nodes have not confirmed. Skips a node that does not answer for
  // kRevocationBackoff or until its next heartbeat.
  void retry_revocations();
  // Asks the nodes that are to lend more or less, as far as they can be asked now.
  void adjust_lending();
  // Asks nodes to copy what images lack.
  void repair_images();
  // adjust_lending() asks no further node.
  void stop();
  // For tests: State::check().
  std::string check() const;

  static constexpr Nanoseconds kRevocationBackoff = Seconds(5);
  static constexpr int kMaxLeaseAttempts = 8;      // each with other nodes or slabs
  static constexpr size_t kMaxNodesAsked = 16;     // at once, for one request
  static constexpr int kMaxOrphanRevocations = 3;  // attempts for a removed node
  static constexpr Milliseconds kGateTimeout{30000};
  static constexpr int kMaxLendRounds = 64;  // of one call of adjust_lending()
  static constexpr size_t kRegionsCopiedAtOnce = 16;

 private:
  Cluster(State state, std::unique_ptr<Store> store, std::unique_ptr<AgentClient> agents,
          const Clock& clock);

  // What a command that has changed nothing waits for. kAll: its success may rest on what another
  // one has changed, and is writing.
  enum class Wait : bool { kOwn, kAll };
  // Runs one command on the state, writes its changes, and publishes its events.
  template <typename Command>
  auto change(Command command, Wait wait = Wait::kAll)
      -> decltype(command(std::declval<State&>())) {
    MutexLock lock(mutex_);
    auto result = command(state_);
    const Status saved = save(lock, result ? wait : Wait::kOwn);
    if (result && !saved) return tl::unexpected(saved.error());
    return result;
  }
  // Returns when the state's changes are written. Releases the lock meanwhile: what others change
  // then is written together, by the next one that finds the store idle.
  Status save(MutexLock& lock, Wait wait) FARPAGE_REQUIRES(mutex_);
  // The same for that change (noted_) and all before it.
  Status await_written(MutexLock& lock, uint64_t change) FARPAGE_REQUIRES(mutex_);
  void write_unsaved() FARPAGE_REQUIRES(mutex_);
  // Calls use(store) without the lock, while nobody else uses the store, which must be idle.
  template <typename Use>
  std::invoke_result_t<Use, Store&> with_store(Use use) FARPAGE_REQUIRES(mutex_);
  // Events are seen by others once it was tried to write them (EventLog, invariant 1).
  void publish(uint64_t sequence) FARPAGE_REQUIRES(mutex_);
  // The incarnation that this join would replace; nullopt: none.
  Result<std::optional<uint64_t>> find_replaced(const NodeJoin& join) const;
  // Whether the known process runs. kUnavailable: that cannot be told.
  Result<bool> is_running(const NodeInfo& known) const;
  Status refuse_copies(const NodeJoin& join) const;
  Status refuse_stranger(const NodeJoin& join, const NodeJoin& known) const;
  void summarize(ClusterSummary& summary) const FARPAGE_REQUIRES(mutex_);
  Result<uint64_t> slab_bytes_of(const RegionId& id) const;
  // Reserves with `plan`, asks the nodes and commits; with others after a failure.
  using Plan =
      std::function<Result<std::vector<PlannedLease>>(State&, const std::set<NodeId>& avoid)>;
  Status lease_planned(const RegionId& id, uint64_t slab_bytes, const Plan& plan_with);
  // One request to each node, kMaxNodesAsked at a time.
  std::vector<Result<SlabLeaseReply>> lease_at_nodes(const std::vector<PlannedLease>& plan) const;
  // Asks the nodes, adds those that failed to `avoid`, and returns the first failure.
  Status ask_nodes(const std::vector<PlannedLease>& plan, uint64_t slab_bytes,
                   std::vector<LeaseOutcome>& outcomes, std::set<NodeId>& avoid);
  // cluster_revocations.cc
  enum class RevokeOutcome : uint8_t { kDone, kForeign, kUnreachable };
  void revoke_now(const RegionId& region);
  void revoke(const std::vector<Revocation>& list);
  RevokeOutcome revoke_one(Revocation revocation);
  void settle(const Revocation& revocation, RevokeOutcome outcome);
  std::vector<Revocation> claim_revocations(const RegionId* only_region);

  const std::unique_ptr<Store> store_;
  const std::unique_ptr<AgentClient> agents_;
  const Clock& clock_;
  RegionGate gate_;

  mutable Mutex mutex_;
  State state_ FARPAGE_GUARDED_BY(mutex_);
  // Changes that no write has: numbered, so that each caller knows when its own are written.
  Changes unsaved_ FARPAGE_GUARDED_BY(mutex_);
  uint64_t noted_ FARPAGE_GUARDED_BY(mutex_) = 0;           // the latest change
  uint64_t written_ FARPAGE_GUARDED_BY(mutex_) = 0;         // this one and all before it are
  uint64_t failed_ FARPAGE_GUARDED_BY(mutex_) = 0;          // a write with this one failed
  uint64_t noted_sequence_ FARPAGE_GUARDED_BY(mutex_) = 0;  // the latest event of a change
  uint64_t published_ FARPAGE_GUARDED_BY(mutex_) = 0;       // the latest event that others see
  std::function<void(uint64_t)> listener_ FARPAGE_GUARDED_BY(mutex_);
  Error failure_ FARPAGE_GUARDED_BY(mutex_){ErrorCode::kIo, "", 0};  // of the latest failed write
  bool store_is_busy_ FARPAGE_GUARDED_BY(mutex_) = false;            // a thread uses store_
  ConditionVariable store_is_idle_;
  bool store_works_ FARPAGE_GUARDED_BY(mutex_) = true;
  bool stopping_ FARPAGE_GUARDED_BY(mutex_) = false;
  std::set<uint64_t> claimed_
      FARPAGE_GUARDED_BY(mutex_);  // revocations that a thread is processing
  std::map<std::string, Instant> not_before_
      FARPAGE_GUARDED_BY(mutex_);  // by agent_url, after a failure
  std::map<uint64_t, int> orphan_tries_ FARPAGE_GUARDED_BY(mutex_);
};

}  // namespace farpage::coordinator
