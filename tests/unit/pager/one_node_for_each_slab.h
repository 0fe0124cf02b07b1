// A fake of the coordinator for borrowers.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/client.h"
#include "pager/options.h"

namespace farpage::pager {

// The coordinator of a cluster in which node N lends slab N, and node 0 lends one slab more.
// Records its calls. Threads: any.
class OneNodeForEachSlab : public coordinator::Client {
 public:
  static constexpr uint64_t kSlabBytes = uint64_t{2} << 20;
  static constexpr Seconds kPatience{60};
  static constexpr uint32_t kOnAKnownNode = kMaxNodes + 1;  // the slab that node 0 lends, too

  std::vector<std::string> calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  size_t count(const std::string& call) const {
    const std::lock_guard lock(mutex_);
    return static_cast<size_t>(std::count(calls_.begin(), calls_.end(), call));
  }
  bool comes_true(const std::function<bool()>& condition) const {
    const Instant start = SteadyClock::read();
    while (!condition()) {
      if (SteadyClock::read() - start > kPatience) return false;
      std::this_thread::sleep_for(Milliseconds(1));
    }
    return true;
  }
  // That leased the last slabs.
  RegionId lessee() const {
    const std::lock_guard lock(mutex_);
    return lessee_;
  }
  size_t leases_held() const {
    const std::lock_guard lock(mutex_);
    return leases_.size();
  }
  void happens(coordinator::EventKind kind, const std::string& node, const std::string& region) {
    const std::lock_guard lock(mutex_);
    coordinator::Event event;
    event.sequence = ++last_event_;
    event.kind = kind;
    event.node = NodeId{node};
    event.region = RegionId{region};
    events_.push_back(event);
  }
  void lose_node(const std::string& id) {
    const std::lock_guard lock(mutex_);
    gone_.insert(NodeId{id});
    for (auto& [slab, lease] : leases_) lease.lost = lease.lost || lease.node.value == id;
  }
  void offer(rdma::TransportKind transport) {
    const std::lock_guard lock(mutex_);
    transports_ = {transport};
  }
  void forget_events() {
    const std::lock_guard lock(mutex_);
    missed_ = true;
    ++last_event_;
  }
  // Of the next delete_region() calls, `not_done` requests and `done` replies are lost.
  void lose_deletes(int not_done, int done) {
    const std::lock_guard lock(mutex_);
    deletes_not_done_ = not_done;
    delete_answers_lost_ = done;
  }

  // As if it had lost its state: it knows no region that was made before.
  void forget_regions() {
    const std::lock_guard lock(mutex_);
    for (int i = 1; i <= regions_; ++i) forgotten_.insert(RegionId{"r" + std::to_string(i)});
  }
  // From now on such calls fail like this. nullopt: they succeed.
  void fail_heartbeats(std::optional<ErrorCode> code) {
    const std::lock_guard lock(mutex_);
    heartbeat_failure_ = code;
  }
  void fail_leases(std::optional<ErrorCode> code) {
    const std::lock_guard lock(mutex_);
    lease_failure_ = code;
  }
  // Further slabs do not fit.
  void lend_at_most(size_t slabs) {
    const std::lock_guard lock(mutex_);
    most_leases_ = slabs;
  }
  void fail_lookups(std::optional<ErrorCode> code) {
    const std::lock_guard lock(mutex_);
    lookup_failure_ = code;
  }
  void lend_slabs_of(uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    lent_bytes_ = bytes;
  }

  Result<coordinator::NodeInfo> join(const coordinator::NodeJoin&) override { return never(); }
  Status heartbeat_node(const NodeId&, const coordinator::NodeHeartbeat&) override {
    return never();
  }
  Status remove_node(const NodeId&, bool) override { return never(); }
  Status drain_node(const NodeId&) override { return never(); }
  Status cordon_node(const NodeId&) override { return never(); }
  Status uncordon_node(const NodeId&) override { return never(); }

  Result<coordinator::RegionInfo> create_region(const coordinator::RegionCreate& create) override {
    const std::lock_guard lock(mutex_);
    calls_.push_back("create");
    coordinator::RegionInfo region;
    region.id = RegionId{"r" + std::to_string(++regions_)};
    region.replicas = create.replicas;
    region.slab_bytes = create.slab_bytes;
    region.heartbeat_interval = Milliseconds(1);
    exists_ = true;
    return region;
  }
  Result<coordinator::RegionInfo> region(const RegionId& id) override {
    const std::lock_guard lock(mutex_);
    calls_.push_back("region");
    coordinator::RegionInfo region;
    region.id = id;
    region.slab_bytes = kSlabBytes;
    for (const auto& [slab, lease] : leases_) region.leases.push_back(lease);
    return region;
  }
  Result<std::vector<coordinator::Lease>> lease_slabs(
      const RegionId& region, const std::vector<SlabIndex>& slabs) override {
    const std::lock_guard lock(mutex_);
    calls_.push_back("lease");
    if (lease_failure_) return fail(*lease_failure_, "no slab");
    const auto is_new = [&](SlabIndex slab) { return !leases_.contains(slab); };
    if (leases_.size() + static_cast<size_t>(std::ranges::count_if(slabs, is_new)) > most_leases_)
      return fail(ErrorCode::kExhausted, "they do not fit");
    lessee_ = region;
    std::vector<coordinator::Lease> list;
    for (const SlabIndex slab : slabs) {
      coordinator::Lease& lease = leases_[slab];
      if (lease.bytes == 0) {
        lease.slab = slab;
        const uint32_t number = slab.value == kOnAKnownNode ? 0 : slab.value + 1000 * releases_;
        lease.node = NodeId{"n" + std::to_string(number)};
        lease.bytes = lent_bytes_;
        lease.generation = Generation{1};
        lease.rkeys[rdma::TransportKind::kTcp] = RemoteKey{7};
      }
      list.push_back(lease);
    }
    return list;
  }
  Status release_slabs(const RegionId&, const std::vector<SlabIndex>& slabs) override {
    const std::lock_guard lock(mutex_);
    calls_.push_back("release");
    ++releases_;
    for (const SlabIndex slab : slabs) leases_.erase(slab);
    return {};
  }
  Result<coordinator::RepairBegun> begin_repair(const RegionId&,
                                                const coordinator::RepairBegin&) override {
    return never();
  }
  Status complete_repair(const RegionId&, const coordinator::RepairComplete&) override {
    return never();
  }
  Result<coordinator::RegionHeard> heartbeat_region(const RegionId& region,
                                                    const coordinator::RegionHeartbeat&) override {
    const std::lock_guard lock(mutex_);
    calls_.push_back("heartbeat");
    if (heartbeat_failure_) return fail(*heartbeat_failure_, "no answer");
    if (forgotten_.contains(region)) return fail(ErrorCode::kNotFound, "no such region");
    return coordinator::RegionHeard{last_event_};
  }
  Status delete_region(const RegionId&) override {
    const std::lock_guard lock(mutex_);
    calls_.push_back("delete");
    if (deletes_not_done_ > 0) {
      --deletes_not_done_;
      return fail(ErrorCode::kUnavailable, "does not answer");
    }
    if (!exists_) return fail(ErrorCode::kNotFound, "no such region");
    exists_ = false;
    leases_.clear();
    if (delete_answers_lost_ > 0) {
      --delete_answers_lost_;
      return fail(ErrorCode::kTimedOut, "did not answer in time");
    }
    return {};
  }
  Result<rdma::QueuePairEndpoint> exchange(const NodeId&, const rdma::QueuePairEndpoint&) override {
    return never();
  }

  Result<std::vector<coordinator::NodeInfo>> nodes() override {
    const std::lock_guard lock(mutex_);
    calls_.push_back("nodes");
    return never();
  }
  Result<coordinator::NodeInfo> node(const NodeId& id) override {
    const std::lock_guard lock(mutex_);
    calls_.push_back("node " + id.value);
    if (lookup_failure_) return fail(*lookup_failure_, "no answer");
    if (gone_.contains(id)) return fail(ErrorCode::kNotFound, "no node " + id.value);
    coordinator::NodeInfo info;
    info.join.id = id;
    for (const rdma::TransportKind kind : transports_)
      info.join.transports.push_back({.kind = kind, .text = "somewhere"});
    return info;
  }
  Result<std::vector<coordinator::RegionInfo>> regions() override { return never(); }
  Result<coordinator::EventBatch> events(uint64_t since, Milliseconds) override {
    const std::lock_guard lock(mutex_);
    calls_.push_back("events");
    coordinator::EventBatch batch{.events = {}, .next_since = last_event_, .missed = missed_};
    for (const coordinator::Event& event : events_)
      if (event.sequence > since) batch.events.push_back(event);
    missed_ = false;
    return batch;
  }
  Result<std::string> get(const std::string&) override { return never(); }

 private:
  static tl::unexpected<Error> never() {
    return fail(ErrorCode::kUnsupported, "not a call of a borrower");
  }

  mutable std::mutex mutex_;
  std::vector<std::string> calls_;
  std::map<SlabIndex, coordinator::Lease> leases_;
  std::vector<coordinator::Event> events_;
  std::set<NodeId> gone_;
  uint64_t last_event_ = 5000;  // many events happened before
  uint32_t releases_ = 0;
  int regions_ = 0;  // ever made
  std::set<RegionId> forgotten_;
  RegionId lessee_;
  uint64_t lent_bytes_ = kSlabBytes;
  std::optional<ErrorCode> heartbeat_failure_, lease_failure_, lookup_failure_;
  size_t most_leases_ = SIZE_MAX;
  // Of all nodes.
  std::vector<rdma::TransportKind> transports_ = {rdma::TransportKind::kShm,
                                                  rdma::TransportKind::kLoop};
  bool exists_ = false;
  bool missed_ = false;
  int deletes_not_done_ = 0;
  int delete_answers_lost_ = 0;
};

}  // namespace farpage::pager
