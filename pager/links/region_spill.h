// RegionSpill: the slabs of one region that no node had room for. They are in a file of this host
// (rdma/slab_file.h) until a node has.
//
// Such a slab is published with one replica, in the file. From time to time the coordinator is
// asked for a lease of one; the leased replicas are added as filling, the repairer fills them, and
// then the one in the file is withdrawn. The coordinator knows nothing of the file: a lease that
// could not be filled is released before it is asked for again.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "coordinator/client.h"
#include "pager/links/lease_map.h"
#include "pager/links/node_directory.h"
#include "pager/links/repairer.h"

namespace farpage::pager {

// Threads: the borrower's. Without a file it does nothing.
class RegionSpill {
 public:
  // Of the file, after which it is said that it is nearly full.
  static constexpr uint32_t kWarnPercent = 80;

  struct Parts {
    LeaseMap& leases;
    NodeDirectory& nodes;
    coordinator::Client& client;
    std::function<Result<NodeIndex>(const NodeId&)> node_index;
    std::function<void()> ring;  // the borrower: a replica has been filled. Any thread
  };
  explicit RegionSpill(Parts parts) : parts_(std::move(parts)) {}
  // The places are free.
  ~RegionSpill();
  RegionSpill(const RegionSpill&) = delete;
  RegionSpill& operator=(const RegionSpill&) = delete;

  // The slabs that a dead process has put into the file. Before any place of it is taken.
  void take_over();
  // The coordinator has leased what was wanted.
  void leased() { refused_since_ = Instant{0}; }
  // It has not: the first of the slabs is in the file from now on. One at a time, since its place
  // is written, which blocks. While the coordinator or a node may only be late, nothing is put
  // there. A failure: why not.
  Status spill(const std::vector<SlabIndex>& slabs, const Error& why);
  // One step on the way back, at most three requests to the coordinator, none if it may not be
  // asked. Returns when the next one is due, if nothing happens before.
  Instant serve(const coordinator::RegionInfo& region, Repairer& repairer, bool may_ask);
  void count(coordinator::Counters& counters) const;

  bool has_slabs() const { return !in_file_.empty(); }
  uint64_t spilled_slabs() const { return in_file_.size(); }

 private:
  // To nodes, of one slab after the other: one that cannot be read keeps no other one here.
  struct Move {
    SlabIndex slab;
    const ReplicaLease& from;
    std::vector<std::shared_ptr<Fill>> fills;
    Instant begun_at{0};
  };
  bool has_returned(const SlabLease& lease, const ReplicaLease& in_file) const;
  bool put(SlabIndex slab);
  Status release(const coordinator::RegionInfo& region, SlabIndex slab);
  void warn_of_room(const Error& why);
  void begin(const coordinator::RegionInfo& region, Repairer& repairer);
  Status begin_move(const coordinator::RegionInfo& region, Repairer& repairer, SlabIndex slab);
  void take_end();
  void give_back(Instant now);
  // Twice as long as the last time.
  void wait(Milliseconds& pause, Milliseconds longest);

  const Parts parts_;
  std::set<SlabIndex> in_file_;
  std::set<SlabIndex> to_release_;  // of these, those that the coordinator may have leased in vain
  std::optional<Move> move_;
  SlabIndex tried_{0};  // the latest
  // Withdrawn: free from that time on, when the READs that are under way have ended.
  std::deque<std::pair<Instant, const ReplicaLease*>> withdrawn_;
  Instant refused_since_{0};
  Instant not_before_{0};
  Milliseconds ask_pause_{0};
  Milliseconds fill_pause_{0};  // after copies that have failed
  bool said_spilling_ = false;
  bool said_nearly_full_ = false;
  uint64_t returned_ = 0;
};

}  // namespace farpage::pager
