// RegionRepair: gives the slabs of one region the replicas that they lack.
//
// A replica is missing when it is lost, or when its node is going to be: it drains, or the
// coordinator has not heard it for some time; or when the coordinator wants this one elsewhere. The
// coordinator leases another one, on a node that has none of the slab's; the repairer fills it from
// a live one, while whatever is evicted is written to it as well; then it is live, and what it
// replaces ends.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/clock.h"
#include "coordinator/client.h"
#include "pager/links/lease_map.h"
#include "pager/links/node_directory.h"
#include "pager/links/repairer.h"

namespace farpage::pager {

// A lease as it is in the map; a stale one is as any other.
std::unique_ptr<ReplicaLease> replica_on(NodeIndex node, const coordinator::Lease& lease);
// The same for a borrower, which does not use a stale one any more. kUnavailable, kUnsupported: its
// node cannot be used.
Result<std::unique_ptr<ReplicaLease>> replica_of(
    const coordinator::Lease& lease,
    const std::function<Result<NodeIndex>(const NodeId&)>& node_index);

// Threads: the borrower's.
class RegionRepair {
 public:
  struct Parts {
    LeaseMap& leases;
    NodeDirectory& nodes;
    coordinator::Client& client;
    std::function<Result<NodeIndex>(const NodeId&)> node_index;
    std::function<void()> ring;  // the borrower: a replica has been filled. Any thread
  };
  explicit RegionRepair(Parts parts) : parts_(std::move(parts)) {}

  // One step, at most one request to the coordinator. Returns when the next one is due, if nothing
  // happens before.
  Instant serve(const coordinator::RegionInfo& region, Repairer& repairer);
  // Nothing is under way, and no slab lacks a replica that could be made.
  bool is_done(uint32_t replicas, const Repairer& repairer) const;
  bool is_filling() const { return fill_ != nullptr; }
  // Another process fills replicas of the region: it has ended ours, or there is one that is not.
  bool is_contested(const coordinator::RegionInfo& region) const;
  // The coordinator has refused what its view, as we know it, allows: nodes and leases are to be
  // read again. Once.
  bool take_old_view() { return std::exchange(view_is_old_, false); }
  // The coordinator's view: a dead process may have completed, or left, what it does not know of.
  void compare(const coordinator::RegionInfo& region);
  // Slabs without all of their replicas, bytes to copy, and what was done.
  void count(coordinator::Counters& counters, const coordinator::RegionInfo& region) const;

 private:
  struct Need {
    SlabIndex slab;
    uint32_t live = 0;
  };
  // What the coordinator is to be told of a replica.
  struct Answer {
    coordinator::RepairComplete repair;
    Instant due{0};
  };
  // After a failure: twice as long each time.
  struct Pause {
    Milliseconds length{0};
    Instant until{0};
    void extend(Milliseconds first, Milliseconds longest);
    void at_least(Milliseconds pause);
  };
  // Of the slabs that may be asked for now and can be copied, the one with the fewest live
  // replicas, and of these the one that was tried longest ago; after a refusal one that was not
  // tried yet, if there is one: what finds no room keeps no other slab waiting. Also counts.
  std::optional<Need> most_endangered(uint32_t replicas, const Repairer& repairer);
  void refused(const Need& need, const Error& error);
  Status begin(const coordinator::RegionInfo& region, Repairer& repairer, SlabIndex slab);
  void take_end();
  void abandon(SlabIndex slab, coordinator::ReplicaName filling);
  // Returns when to look again.
  Instant tell(const coordinator::RegionInfo& region);

  bool is_ours(const coordinator::Lease& filling) const;
  bool lacks_replica(SlabIndex slab, uint32_t replicas, const Repairer& repairer,
                     const std::set<NodeIndex>& leaving) const;
  static bool has_source(const SlabLease& lease, const Repairer& repairer);
  bool is_moving(SlabIndex slab, const ReplicaLease& replica) const;

  const Parts parts_;
  std::shared_ptr<Fill> fill_;  // under way
  coordinator::ReplicaName filling_;
  const ReplicaLease* replaced_ = nullptr;  // by it
  Instant begun_at_{0};
  std::deque<Answer> answers_;
  std::map<SlabIndex, Pause> pauses_;  // of slabs whose latest repair has failed
  Pause refused_;                      // of all slabs, since the coordinator has refused one
  // Of the coordinator's latest view: those that it wants elsewhere.
  std::multimap<SlabIndex, std::pair<NodeIndex, Generation>> moving_;
  std::set<NodeId> avoid_;  // of the next request: could not be filled
  uint64_t degraded_ = 0;
  uint64_t repaired_ = 0;
  std::string said_;  // the last refusal: each one is logged once
  bool view_is_old_ = false;
};

}  // namespace farpage::pager
