// Borrower: a backing region's client of the coordinator. Leases slabs before they are needed,
// renews the region, and learns which replicas are lost. The fault path never waits for it; while
// the coordinator does not answer, paging continues with the leases held.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "coordinator/client.h"
#include "pager/links/borrower_thread.h"
#include "pager/links/lease_map.h"
#include "pager/links/node_directory.h"
#include "pager/links/region_repair.h"
#include "pager/links/region_spill.h"
#include "pager/options.h"

namespace farpage::pager {

// The pager that made the backing region, as its borrower sees it. Threads: called by the
// borrower's.
class RegionOwner {
 public:
  virtual ~RegionOwner() = default;
  // Channels to this node will be needed soon. Called for every lease.
  virtual void node_wanted(NodeIndex node) = 0;
  // Pages of more slabs have a remote address now.
  virtual void leased() = 0;
  // The pager's counters, for the region's heartbeat. `backing region`: the one that asks.
  virtual coordinator::Counters counters_of(const LeaseMap& backing_region) = 0;
  virtual void replica_lost() = 0;
};

// Threads: that of start(), after it. Leases, nodes, client and that thread outlive it; the owner
// may end earlier.
class Borrower {
 public:
  // Called with the region before a lease of it is used.
  using Keep = std::function<Status(const coordinator::RegionInfo&)>;

  Borrower(const PagerOptions& options, std::string name, LeaseMap& leases, NodeDirectory& nodes,
           coordinator::Client& client, Keep keep);
  ~Borrower();

  // Whom it tells of what happens, until disown().
  void own(RegionOwner& owner);
  // Before start(), and before any borrower of the engine is started: goes on with the region of a
  // dead process, whose leases are in the map. nullopt: it had only slabs in the file, or none.
  void take_over(std::optional<coordinator::RegionInfo> region);

  // Creates the region and leases its first slab, so that a cluster that cannot serve it is known
  // before the program starts. Waits up to `patience` for enough memory nodes.
  Status open_region(Milliseconds patience);
  // From now on the thread serves it. Its first turn creates the region, unless open_region() has
  // done so. Once.
  void start(BorrowerThread& thread);
  // A slab is wanted.
  void ring() {
    rung_.store(true, std::memory_order_release);
    thread_->ring();
  }
  // -- BorrowerThread --
  bool take_ring() { return rung_.exchange(false, std::memory_order_acq_rel); }
  // Does what is due. Returns when to call it again if it is not rung before.
  Instant serve();
  // The owner ends; the region stays for other readers. After the return no call to the owner runs
  // or starts.
  void disown();

  uint64_t leased_slabs() const { return leased_slabs_.load(std::memory_order_relaxed); }
  // The coordinator had no slab for us, or gave no answer, the last time, and the file has no room.
  // Any thread.
  bool lease_refused() const { return lease_refused_.load(std::memory_order_relaxed); }

 private:
  Status give_region_back();
  Status create_region();
  // Where pages can go to the file, nothing but a heartbeat waits for a coordinator that has not
  // answered: each request takes its whole deadline, while faults wait for room.
  bool does_without_coordinator() const;
  void note_answer(bool answered, Nanoseconds pause);
  Status lease_wanted();
  void lose_replica(PageIndex page, const ReplicaLease& replica, const char* why);
  // From the coordinator, or else in the file.
  Status lease_or_spill(const std::vector<SlabIndex>& slabs);
  Status lease(const std::vector<SlabIndex>& slabs);
  Status adopt(const std::vector<coordinator::Lease>& leases);
  Result<NodeIndex> node_index(const NodeId& id);
  Status check_transports(const coordinator::NodeInfo& node) const;
  Status refresh_nodes(const std::set<NodeId>& ids);
  // `late`: the last one is so old that this process must have been stopped or delayed.
  void heartbeat(bool late);
  void poll_events();
  Status refresh_leases();
  Status see_nodes_and_leases();

  const coordinator::RegionCreate request_;
  const Keep keep_;
  const std::vector<rdma::TransportKind> transports_;
  LeaseMap& leases_;
  NodeDirectory& nodes_;
  coordinator::Client& client_;
  RegionRepair repair_;
  RegionSpill spill_;
  Mutex owner_mutex_;
  RegionOwner* owner_ FARPAGE_GUARDED_BY(owner_mutex_) = nullptr;  // null when it has ended
  BorrowerThread* thread_ = nullptr;                               // null before start()
  std::atomic<bool> rung_{false};
  Instant next_heartbeat_{0};
  coordinator::RegionInfo region_;
  uint64_t events_since_ = 0;
  bool coordinator_silent_ = false;         // already logged
  Instant silent_until_{0};                 // does_without_coordinator()
  bool view_is_old_ = false;                // nodes and leases are to be read again
  std::atomic<bool> lease_refused_{false};  // already logged
  std::atomic<uint64_t> leased_slabs_{0};
};

}  // namespace farpage::pager
