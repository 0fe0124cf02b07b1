// State: the lenders, the borrowers, and the nodes that are alive. A pure state machine: commands
// and the time are inputs; answers, events and changes are outputs. No I/O, no clock, no lock.
//
// A node:   (join) -> alive <-> cordoned, draining (set_service()); silent for node_time_to_live ->
//           lost; heard again -> its former state, with its leases. A new incarnation replaces it:
//           its leases are lost.
// A slab of a node:
//
//   kFree --begin_lease--> kPlacing --commit--> kLeased --release, delete, expiry--> kRevoking
//     ^                       | refused / unknown answer                                |
//     |                       +--> kForeign / kRevoking                                 |
//     +--- kForeign (after region_time_to_live) --- revoked() --------------------------+
//
//   kFree --next_lend_step()--> kLeaving --end_lend_step()--> kAbsent --end_lend_step()--> kFree
//
// kPlacing: the node is being asked. kRevoking: the node must still confirm the revocation.
// kForeign: the node lends it to a borrower that this coordinator does not know (its memory store
// was lost); the coordinator does not use it for a while. kLeaving: the node is being asked to give
// its memory up. kAbsent: a number without memory (NodeJoin::withdrawn).
//
// Threads: one at a time (Cluster holds a lock).
// Invariants (check() in state_invariants.cc):
//  1. A slab of a node is in exactly one state: free, placing, leased once, revoking, foreign,
//     leaving, or absent.
//  2. The replicas of one slab of a region are on distinct nodes, except lost and stale ones, and
//     either all of them exist or none. Beside each there is at most one that is filling.
//  3. The free list of a node holds exactly its kFree slabs; slabs_by_use counts its slabs.
//  4. A lease that is not lost names a known node, and a slab inside it.
//  5. Every placing or revoking slab has exactly one Revocation, which names it.
//  6. The region of an image names the image, and ends with it alone.
//  7. The base of an image is complete, and there are at most kMaxGenerations of them.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "coordinator/api.h"
#include "coordinator/event_log.h"
#include "coordinator/placement.h"
#include "coordinator/store.h"

namespace farpage::coordinator {

// A part of the memory that living nodes lend: `percent` of it, or so many bytes.
struct KeptFree {
  static constexpr const char* kOthers = "*";  // in place of a name: all that have no entry
  uint64_t bytes = 0;
  uint32_t percent = 0;  // 0: `bytes` counts
};

struct StateOptions {
  Nanoseconds node_time_to_live = Seconds(5);
  Nanoseconds region_time_to_live = Seconds(60);
  Milliseconds region_heartbeat_interval{1000};
  size_t max_nodes = kMaxNodes;
  size_t max_regions = 4096;
  size_t max_images = 1024;
  // A longer time between two calls of tick() means that this process did not run.
  Nanoseconds longest_tick = Seconds(2);
  std::map<std::string, uint64_t> quotas;  // bytes, by RegionCreate::borrower
  // What a borrower leaves free for others, by the same name.
  std::map<std::string, KeptFree> keeps_free;
  std::string spread_by;  // of regions that do not say; empty: distinct nodes are enough
  size_t event_capacity = size_t{4} * kMaxNodes;  // all nodes lost and back, with a margin
  uint64_t seed = 0;                              // for placement and region ids
  uint64_t first_sequence = 0;                    // for the events of a new store
};

// One slab to request from its node, between begin_lease() and commit_lease().
struct PlannedLease {
  uint64_t revocation = 0;  // the record for the undo
  NodeId node;
  uint64_t incarnation = 0;
  std::string agent_url;
  uint32_t node_slab = 0;
  SlabLeaseRequest request;
};

// A node is to copy what the image lacks.
struct ImageRepair {
  ImageId image;
  NodeId node;
  std::string agent_url;
};

// What the node answered.
enum class LeaseAnswer : uint8_t {
  kNotAsked,  // nothing was sent
  kGranted,
  kRefused,  // the node refused
  kForeign,  // the node lends it to another borrower
  kUnknown,  // no answer: it may have been granted
};

// One request to a node that is to lend more or less, between begin_lend_steps() and
// end_lend_step().
struct LendStep {
  NodeId node;
  uint64_t incarnation = 0;
  std::string agent_url;
  std::vector<uint32_t> add;  // or `withdraw`, never both
  uint32_t add_in_all = 0;    // with those of the next steps
  std::vector<uint32_t> withdraw;
};

struct LeaseOutcome {
  LeaseAnswer answer = LeaseAnswer::kNotAsked;
  SlabLeaseReply grant;  // kGranted
};

// Slabs and bytes are of memory; of disks (NodeJoin::spill) only where that is said.
struct Totals {
  uint32_t nodes_alive = 0;
  uint32_t nodes_cordoned = 0;
  uint32_t nodes_draining = 0;
  uint32_t nodes_lost = 0;
  uint64_t slabs = 0;
  uint64_t slabs_free = 0;         // of nodes that are alive: they can be leased
  uint64_t slabs_unavailable = 0;  // in no lease, of nodes that are not
  uint64_t slabs_placing = 0;
  uint64_t slabs_leased = 0;
  uint64_t slabs_revoking = 0;
  uint64_t slabs_foreign = 0;
  uint64_t bytes = 0;
  uint64_t bytes_free = 0;     // of slabs_free
  uint64_t slabs_spilled = 0;  // leased, on disks
  uint64_t bytes_spill = 0;
  uint64_t bytes_spill_free = 0;  // of nodes that are alive
  uint64_t regions = 0;
  uint64_t leases = 0;
  uint64_t leases_lost = 0;
  // Of regions: with a replica that is lost, stale, or on a node that is lost.
  uint64_t slabs_degraded = 0;
  uint64_t slabs_repairing = 0;  // with one that is filling
  uint64_t slabs_moving = 0;     // with one that is to be moved elsewhere
};

class State {
 public:
  // A silent node keeps its borrowers' regions alive for this many times region_time_to_live.
  static constexpr int kSilentNodeFactor = 10;

  // All nodes and regions of the snapshot count as heard at `now`: a full grace period after a
  // restart. Inconsistent records (a lease on an unknown node) are marked lost.
  State(StateOptions options, const Snapshot& snapshot, Instant now);

  // ---- nodes (state_nodes.cc) ----
  // True for a new node or incarnation. kConflict: the same incarnation with another size, or an
  // incarnation that was replaced or removed. kExhausted: max_nodes.
  Result<bool> join(Instant now, const NodeJoin& join);
  // kNotFound: unknown, or another incarnation. kInvalid: more free slabs than slabs.
  Status heartbeat_node(Instant now, const NodeId& id, NodeHeartbeat heartbeat);
  Status set_service(const NodeId& id, NodeService service);
  // kConflict while slabs are lent, unless `force`: then the leases are lost, and revoked if the
  // node can be reached.
  Status remove_node(const NodeId& id, bool force);
  Result<NodeInfo> node(Instant now, const NodeId& id) const;
  std::vector<NodeInfo> nodes(Instant now) const;
  Result<NodeEndpoints> endpoints(const NodeId& id) const;
  // kConflict: the node has restarted in the meantime.
  Status record_exchange(const NodeId& id, uint64_t incarnation, QueuePairExchanged pair);

  // ---- how much a node lends (state_lending.cc) ----
  // kInvalid: less than one slab. kUnavailable: the node is lost. kConflict, kExhausted: what would
  // have to move does not, or there is no room for it elsewhere.
  Result<NodeInfo> lend(Instant now, const NodeId& id, const NodeLend& lend);
  // The next requests for all nodes that are on their way; at most one for each at a time.
  std::vector<LendStep> begin_lend_steps();
  // kUnavailable, kTimedOut: it is tried again. kConflict: a slab is leased. Else it ends here.
  void end_lend_step(const LendStep& step, const Status& outcome);

  // ---- even use of the nodes (state_rebalance.cc) ----
  Rebalanced rebalance(const Rebalance& rebalance);

  // ---- regions (state_regions.cc) ----
  Result<RegionId> create_region(Instant now, const RegionCreate& create);
  Status heartbeat_region(Instant now, const RegionId& id, RegionHeartbeat heartbeat);
  Status delete_region(const RegionId& id);  // queues the revocation of its slabs
  Result<RegionInfo> region(const RegionId& id) const;
  // The next ones after that id, at most `count`.
  void append_regions(const RegionId& after, size_t count, std::vector<RegionInfo>& list) const;
  std::vector<RegionInfo> regions_without_leases() const;
  Result<uint64_t> slab_bytes_of(const RegionId& id) const;
  // Reserves a node's slab for each replica of those `slabs` that are not leased yet, on no node of
  // `avoid`. All or nothing; kExhausted names what is missing. Must be followed by commit_lease().
  Result<std::vector<PlannedLease>> begin_lease(Instant now, const RegionId& id,
                                                const std::vector<SlabIndex>& slabs,
                                                const std::set<NodeId>& avoid);
  // outcomes[i] is the answer for plan[i]. If all are granted and nothing changed in the meantime,
  // they become leases. Else none does, and those that are or may be granted are to be revoked.
  // kNotFound: the region is gone. kUnavailable: a node restarted or left, or did not grant.
  Status commit_lease(const std::vector<PlannedLease>& plan,
                      const std::vector<LeaseOutcome>& outcomes);
  // The slabs' leases, ordered by slab and replica.
  Result<std::vector<Lease>> leases(const RegionId& id, const std::vector<SlabIndex>& slabs) const;
  Status release(const RegionId& id, const std::vector<SlabIndex>& slabs);

  // ---- repairs (state_repairs.cc) ----
  // Reserves a node's slab, on no node of `avoid`, for the replica of the slab that is most in need
  // of it: one that is lost, or that the request does not call live; else one on a node that is
  // draining or lost. Must be followed by commit_lease(), if it is not empty. kConflict: all
  // replicas are there. kExhausted: no node can have it. Either way the request is remembered: what
  // it does not call live is stale, and what was filling ends.
  Result<std::vector<PlannedLease>> begin_repair(Instant now, const RegionId& id,
                                                 const RepairBegin& repair,
                                                 const std::set<NodeId>& avoid);
  // What the latest request has leased. kNotFound: its node was lost since.
  Result<RepairBegun> repair_begun(const RegionId& id, SlabIndex slab) const;
  // Again: no failure. kNotFound: it is not filling.
  Status complete_repair(Instant now, const RegionId& id, const RepairComplete& repair);

  // ---- images (state_images.cc) ----
  // Makes it and its region, or goes on with one that is uploading. kConflict: it is complete, or
  // was begun with something else. kNotFound, kConflict: the base. kExhausted: max_images.
  Result<ImageInfo> create_image(Instant now, const ImageCreate& create);
  // kConflict: a later create_image() has taken the upload over, or it is complete already.
  // complete_image() again with the same: no failure.
  Status checkpoint_image(const ImageId& id, const ImageProgress& progress);
  Status complete_image(const ImageId& id, const ImageProgress& progress);
  // Queues the revocation of its slabs. kConflict: another one is made of it; or, without `force`,
  // it has readers.
  Status remove_image(const ImageId& id, bool force);
  Result<ImageInfo> image(const ImageId& id) const;
  std::vector<ImageInfo> images() const;
  Result<OpenedImage> open_image(Instant now, const ImageId& id, const ImageReader& reader);
  Result<ReaderHeard> renew_reader(Instant now, const ImageId& id, const ImageReader& reader);
  Status close_reader(const ImageId& id, const ImageReader& reader);
  // The complete images with a slab that lacks a replica, or has one that is to move, each with the
  // node that is to copy it (image/image_repair.h), if some node has room. The same node is asked
  // again each 5 s, as long as it is alive and gets on, and less often while nothing is copied;
  // call it with each tick.
  std::vector<ImageRepair> begin_image_repairs();
  // It cannot do that, or was not reached: another one is asked next time.
  void refuse_image_repair(const ImageRepair& repair);

  // ---- revocations ----
  // Those that are due, and not part of a lease request in flight.
  std::vector<Revocation> revocations() const;
  size_t pending_revocations() const { return revocations_.size(); }
  bool node_is_known(const NodeId& id) const { return nodes_.count(id) != 0; }
  // Of it, that are not lost: their borrowers have not given them up.
  size_t leases_of(const NodeId& id) const;
  void learn_generation(uint64_t revocation, Generation generation);
  // The node has confirmed (or the slab is not ours: `foreign`), or there are no more retries.
  void revoked(uint64_t revocation, bool foreign);

  // ---- time ----
  // Marks silent nodes lost, and slabs on disks as moving where memory has room for them. Frees
  // foreign slabs after region_time_to_live. Deletes a region
  // whose pager, for region_time_to_live, was silent and had no data session at any of its lenders
  // while this coordinator was running (tick() was called often enough).
  void tick(Instant now);

  const EventLog& events() const { return events_; }
  Totals totals() const;
  // Free slabs in the latest report of each node, for the metrics.
  std::map<NodeId, uint32_t> reported_free_slabs() const;

  // What changed since the last call.
  Changes take_changes();
  // For tests, after every step: the first broken invariant, empty when all hold.
  std::string check() const;

 private:
  enum class SlabUse : uint8_t { kFree, kPlacing, kLeased, kRevoking, kForeign, kLeaving, kAbsent };
  static constexpr size_t kSlabUses = 7;
  struct Node {
    NodeRecord record;
    bool silent = false;
    Instant last_heard{0};
    std::vector<SlabUse> slabs;
    std::array<uint32_t, kSlabUses> slabs_by_use{};
    uint32_t count(SlabUse use) const { return slabs_by_use[static_cast<size_t>(use)]; }
    // Longest free first: a slab released recently is still being scrubbed.
    std::deque<uint32_t> free;
    std::deque<std::pair<Instant, uint32_t>> foreign;
    std::string lend_refused;     // NodeInfo
    bool lend_step_open = false;  // the node is being asked
    // An answer was lost, or a coordinator died before it came: the node may have memory of slabs
    // that are absent here, and is told to give that up first.
    bool lend_unsure = false;
    bool lend_singly = false;  // one of several slabs was not given up
    uint32_t reported_free = 0;
    Counters counters;
    // From the node's latest heartbeat, sorted; nullopt: none since the start of this coordinator.
    std::optional<std::vector<uint32_t>> session_groups;
    std::deque<QueuePairExchanged> exchanged;
  };
  // By slab and number; the filling ones of a slab behind its others (kFillingReplica).
  using Replicas = std::map<std::pair<SlabIndex, uint32_t>, Lease>;
  struct LeaseCounts {
    uint64_t lost = 0;
    uint64_t degraded = 0;  // slabs, as those below
    uint64_t repairing = 0;
    uint64_t moving = 0;
    bool operator==(const LeaseCounts&) const = default;
  };
  struct Region {
    RegionRecord record;
    Instant last_heard{0};
    Instant last_wanted{0};  // when nodes last reported, or may have reported, use
    Counters counters;
    Replicas leases;  // note_lease() with each change
    // Of the leases, as if no node were silent; none: one has changed since.
    mutable std::optional<LeaseCounts> counts;
    ImageId image;                 // empty: none
    uint64_t leases_version = 0;   // of an image: the event with which its leases have changed
    Instant return_not_before{0};  // from a disk to memory: after a refusal
  };
  struct Image {
    ImageRecord record;
    std::map<std::string, Instant> readers;  // when they were heard
    NodeId repairer;                         // empty: none
    NodeId avoided;                          // was the repairer before, and did not repair
    Instant repair_due{0};                   // the repairer is asked again
    uint64_t repair_left = 0;                // slabs, when it was asked last
    uint32_t asked_in_vain = 0;              // in a row: as many were left, and none was filling
  };
  struct PendingRevocation {
    Revocation revocation;
    bool placing = false;
    Instant replaced_at{0};  // of an image: its readers have it until they have heard of another
  };

  // state.cc
  void emit(EventKind kind, const NodeId& node, const RegionId& region = {}, SlabIndex slab = {});
  void set_use(Node& node, uint32_t slab, SlabUse use);
  Node* node_of(const Revocation& revocation);  // null: left or replaced
  uint64_t add_revocation(Revocation revocation, bool placing, Instant replaced_at = Instant{0});
  void erase_revocation(uint64_t id);
  void restore(const Snapshot& snapshot, Instant now);
  void restore_lease(const LeaseKey& key, const Lease& lease);
  // state_nodes.cc
  static NodeState state_of(const Node& node);
  NodeInfo info_of(Instant now, const Node& node) const;
  void reset_slabs(Node& node, Instant now);
  Status renew(Instant now, Node& node, const NodeJoin& join);
  void replace(Instant now, const NodeJoin& join);
  void hear(Instant now, Node& node);
  void lose_leases(const NodeId& id);
  // state_lending.cc
  static uint32_t lent_slabs(const Node& node);      // that have memory, and keep it
  static uint32_t surplus_of(const Node& node);      // of those, more than it is to lend
  static uint32_t lendable_slabs(const Node& node);  // that are free, and stay
  void write_extent(Node& node);
  static void grow_numbers(Node& node, size_t numbers);
  bool can_move(const Region& region, const Lease& lease, const NodeId& from) const;
  // Leases of the node that can move; `places`: for how many, up to `wanted`, there is room.
  size_t movable_slabs(const Node& from, size_t wanted, size_t& places);
  Status check_lend(const Node& node, uint32_t slabs);
  void set_moving(Region& region, Replicas::iterator lease, bool moving);
  void mark_moving(const Node& node, size_t wanted);
  std::optional<LendStep> next_lend_step(Node& node);
  void settle_lend_step(Node& node, const LendStep& step, const Status& outcome);
  void adopt_extent(Node& node, const NodeJoin& join);
  void end_slab(Node& node, uint32_t slab);
  void retire(const NodeId& id, uint64_t incarnation);
  size_t slabs_in_use(const Node& node) const;
  // state_regions.cc
  Result<Region*> find_region(const RegionId& id);
  static RegionInfo summary_of(const Region& region, const StateOptions& options);  // no leases
  static RegionInfo info_of(const Region& region, const StateOptions& options);
  void drop_lease(Region& region, Replicas::iterator lease, Instant replaced_at = Instant{0});
  uint64_t borrowed_bytes(const std::string& borrower) const;
  // kExhausted: so much more is more than the quota of the region's borrower.
  Status check_quota(const Region& region, uint64_t more_bytes) const;
  // kExhausted: so much more memory would leave less free than the region's borrower has to.
  Status check_kept_free(const Region& region, uint64_t more_bytes) const;
  std::vector<SlabIndex> missing_slabs(const Region& region,
                                       const std::vector<SlabIndex>& slabs) const;
  // The nodes that can lend slabs to a region, how many each, and the domains that they are in
  // (none where the region is not spread).
  struct Lenders {
    std::vector<Node*> nodes;
    std::vector<uint32_t> free_slabs;
    std::vector<uint32_t> domains;
    std::map<std::string, uint32_t> numbers;  // of the domains, by value of the label
  };
  Lenders find_lenders(const RegionRecord& region, const std::set<NodeId>& avoid);
  // "zone=a: 12, zone=b: 3"
  static std::string room_of(const RegionRecord& region, const Lenders& lenders);
  // The value of the label; empty: it has none.
  static std::string domain_of(const Node& node, const std::string& key);
  // No live replica of the slab but `replaced` (null: none) is there, or in the same domain.
  bool may_hold(const Node& node, const Region& region, SlabIndex slab,
                const Lease* replaced) const;
  // Some node that can lend now may hold it; `disks`: one that lends a disk, too.
  bool any_may_hold(const Region& region, const Lease& replaced, bool disks) const;
  PlannedLease reserve(Node& node, SlabLeaseRequest request);
  Status check_outcomes(const std::vector<PlannedLease>& plan,
                        const std::vector<LeaseOutcome>& outcomes) const;
  void settle(const PlannedLease& planned, const LeaseOutcome& outcome, bool keep);
  void erase_region(std::map<RegionId, Region>::iterator region);
  bool may_be_in_use(Instant now, const Region& region) const;
  Nanoseconds silence(Instant now, Instant last_heard) const;
  // state_repairs.cc
  Replicas::iterator choose_replaced(Region& region, SlabIndex slab);
  PlannedLease reserve_filling(Node& node, const Region& region,
                               const Replicas::value_type& replaced);
  void mark_stale(Region& region, const RepairBegin& repair);
  // For the store, and for totals(). Null: the lease ends.
  void note_lease(Region& region, const Replicas::key_type& key, std::optional<Lease> lease);
  // Replicas on the silent nodes count as degraded.
  static LeaseCounts counts_of(const Region& region, const std::set<NodeId>& silent);
  static LeaseCounts count_leases(const Region& region, const std::set<NodeId>& silent);
  // state_rebalance.cc
  struct Seat {
    Node* node = nullptr;
    uint32_t used = 0;
    std::vector<std::pair<Region*, Replicas::iterator>> leases;  // that can move from it
    std::vector<std::pair<Region*, Replicas::iterator>> marked;  // that are to, and have not begun
  };
  static double share_of(uint32_t used, const Node& node);
  static bool is_balanced(const Node& node);  // it takes part
  static bool evens_out(uint32_t used_from, const Node& from, uint32_t used_to, const Node& to);
  // The emptiest, if a slab may move there.
  std::optional<size_t> pick_emptier(const Node& from, const Lenders& lenders) const;
  std::vector<Seat> seats_of(uint64_t slab_bytes, Rebalanced& done);
  void expect_move(std::vector<Seat>& seats, Seat& from, Region& region, Replicas::iterator lease,
                   Rebalanced& done);
  Seat* emptiest(std::vector<Seat>& seats, const Region& region,
                 const Replicas::value_type& lease) const;
  void rebalance_slabs_of(uint64_t slab_bytes, const Rebalance& rebalance, Rebalanced& done);
  // state_spill.cc
  static bool is_disk(const Node& node) { return node.record.join.spill; }
  // Its slabs are to be in memory, if that has room.
  static bool gives_to_memory(const Node& node);
  // In memory as far as that has room; `memory`: it may be used.
  std::optional<std::vector<std::vector<size_t>>> place(const Lenders& lenders, size_t slabs,
                                                        uint32_t replicas, bool memory);
  void return_to_memory(Instant now);
  // `room`: slabs that are free in memory.
  void mark_returning(Region& region, size_t room);
  // state_images.cc
  Result<Image*> find_image(const ImageId& id);
  Result<Image*> find_upload(const ImageId& id, uint64_t upload);
  Status check_base(const ImageCreate& create) const;
  uint32_t generations_of(const Image& image) const;
  ImageInfo info_of(const Image& image) const;
  uint64_t leases_version_of(const Image& image) const;
  // Whoever uploads one that is not complete copies nothing.
  bool is_repaired(const Region& region) const;
  std::set<NodeId> leaving_nodes() const;
  Node* choose_repairer(Image& image, const LeaseCounts& lacking);
  static void avoid_repairer(Image& image);
  bool can_repair(const Region& region, const std::set<NodeId>& leaving) const;
  uint32_t image_session_group();
  void restore_images(const Snapshot& snapshot);
  void expire_readers(Instant now);
  // state_invariants.cc
  std::string check_images() const;
  std::string check_node(const Node& node) const;
  std::string check_region(const Region& region) const;
  std::string check_slab_uses() const;

  const StateOptions options_;
  Instant last_tick_{0};
  // Silence counts from here: the start, or the end of this process's latest pause.
  Instant awake_since_{0};
  std::map<NodeId, Node> nodes_;
  std::map<RegionId, Region> regions_;
  std::map<ImageId, Image> images_;
  std::map<uint64_t, PendingRevocation> revocations_;
  uint64_t next_revocation_ = 1;
  // Incarnations that must not join again; the oldest are forgotten first.
  std::deque<std::pair<NodeId, uint64_t>> retired_;
  Placement placement_;
  EventLog events_;
  Changes changes_;
};

}  // namespace farpage::coordinator
