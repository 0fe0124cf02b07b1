// SimulatedCluster: memory nodes that answer late or never, die and restart, and a coordinator that
// comes and goes, behind the seams coordinator::Client and rdma::Transport.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "coordinator/client.h"
#include "rdma/transport.h"
#include "scheduler.h"

namespace farpage::simulation {

inline constexpr uint64_t kSlabBytes = uint64_t{2} << 20;

// One operation on its way. It has its effect at the node, whatever becomes of its channel.
struct Flight {
  rdma::Operation operation;
  std::vector<std::byte> sent;  // of a WRITE that may come late: the bytes as they were posted
  uint64_t session = 0;
  uint64_t channel = 0;  // number of it in its session
  Instant posted{0};
  Instant effect{0};
  Instant answer{0};
  // A WRITE comes once more, as of a network that repeats what was not acknowledged. 0: it does
  // not.
  Instant again{0};
  bool effective = false;
  bool abandoned = false;  // its channel is broken or gone: its buffer is not its own any more
  rdma::CompletionStatus result = rdma::CompletionStatus::kOk;
};

// Memory and connections of one node.
class SimulatedNode {
 public:
  SimulatedNode(Scheduler& scheduler, std::string name)
      : scheduler_(scheduler), name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  bool alive() const { return alive_; }
  // Until then it answers nothing and does nothing.
  Instant silent_until() const { return silent_until_; }
  void be_silent(Nanoseconds time) { silent_until_ = scheduler_.now() + time; }
  void kill();
  void corrupt();  // a bit of a page that it has
  void restart();  // with empty memory, and without leases

  // A slab of zeros, under a new generation.
  coordinator::Lease lend();
  void take_back(uint32_t slab) { lent_.erase(slab); }
  bool lends(uint32_t slab, Generation generation) const;

  // A new channel of the session: WRITEs of earlier ones have no effect from now on.
  uint64_t enter(uint64_t session) { return ++channels_[session]; }
  bool is_fenced(uint64_t session, uint64_t channel) const;
  void post(const std::shared_ptr<Flight>& flight) { flights_.push_back(flight); }
  // The engine was killed: what it has posted is on its way still, some of it for long.
  void outlive_sender();
  // Lets everything happen that is due.
  void advance();

 private:
  using Page = std::array<std::byte, kPageBytes>;
  struct Slab {
    Generation generation;
    std::map<uint64_t, Page> pages;  // by offset; absent: zeros
  };
  void take_effect(Flight& flight);

  Scheduler& scheduler_;
  const std::string name_;
  bool alive_ = true;
  Instant silent_until_{0};
  uint32_t last_generation_ = 0;
  std::map<uint32_t, Slab> lent_;
  std::map<uint64_t, uint64_t> channels_;  // of each session, the number of the last one
  std::deque<std::shared_ptr<Flight>> flights_;
};

// How often what goes wrong, in one run: once in so many operations; 0: never.
struct Weather {
  uint64_t late = 0;        // later than the operation timeout, but with its effect
  uint64_t unanswered = 0;  // the effect takes place, the answer is lost
  uint64_t refused = 0;     // the channel accepts no more at the moment
  bool fenced = true;       // sessions have numbers
};

// Threads: fibers of one scheduler.
class SimulatedCluster final : public coordinator::Client {
 public:
  SimulatedCluster(Scheduler& scheduler, size_t nodes, Weather weather);

  std::vector<std::unique_ptr<rdma::Transport>> transports();
  size_t nodes_count() const { return nodes_.size(); }
  SimulatedNode& node(size_t index) { return *nodes_[index]; }
  void kill(size_t node) { nodes_[node]->kill(); }
  void outlive_engine() {
    for (const auto& node : nodes_) node->outlive_sender();
  }
  void restart(size_t node);
  void set_answering(bool answering) { answering_ = answering; }
  // It is started again without its state.
  void forget();
  void set_heartbeat_interval(Milliseconds interval) { heartbeat_interval_ = interval; }
  // No slab lacks a replica.
  bool is_whole() const;
  uint64_t repaired() const { return repaired_; }
  size_t regions_held() const { return regions_.size(); }

  Result<coordinator::NodeInfo> join(const coordinator::NodeJoin&) override { return never(); }
  Status heartbeat_node(const NodeId&, const coordinator::NodeHeartbeat&) override {
    return never();
  }
  Status remove_node(const NodeId&, bool) override { return never(); }
  Status drain_node(const NodeId&) override { return never(); }
  Status cordon_node(const NodeId&) override { return never(); }
  Status uncordon_node(const NodeId&) override { return never(); }
  Result<coordinator::RegionInfo> create_region(const coordinator::RegionCreate& region) override;
  Result<coordinator::RegionInfo> region(const RegionId& region) override;
  Result<std::vector<coordinator::Lease>> lease_slabs(const RegionId& region,
                                                      const std::vector<SlabIndex>& slabs) override;
  Status release_slabs(const RegionId&, const std::vector<SlabIndex>&) override { return {}; }
  Result<coordinator::RepairBegun> begin_repair(const RegionId& region,
                                                const coordinator::RepairBegin& repair) override;
  Status complete_repair(const RegionId& region,
                         const coordinator::RepairComplete& repair) override;
  Result<coordinator::RegionHeard> heartbeat_region(
      const RegionId& region, const coordinator::RegionHeartbeat& heartbeat) override;
  Status delete_region(const RegionId& region) override;
  Result<rdma::QueuePairEndpoint> exchange(const NodeId&, const rdma::QueuePairEndpoint&) override {
    return never();
  }
  Result<std::vector<coordinator::NodeInfo>> nodes() override { return never(); }
  Result<coordinator::NodeInfo> node(const NodeId& node) override;
  Result<std::vector<coordinator::RegionInfo>> regions() override { return never(); }
  Result<coordinator::EventBatch> events(uint64_t since, Milliseconds timeout) override;
  Result<std::string> get(const std::string&) override { return never(); }

 private:
  static tl::unexpected<Error> never() {
    return fail(ErrorCode::kUnsupported, "not a part of the simulation");
  }
  // Takes time. Fails while the coordinator does not answer.
  Status request();
  SimulatedNode& node_named(const NodeId& name);
  // All replicas of the slab, or none.
  Status lend(coordinator::RegionInfo& region, SlabIndex slab);
  void tell(coordinator::Event event);
  // Its slab is lent no more.
  void end(const coordinator::Lease& lease);

  Scheduler& scheduler_;
  const Weather weather_;
  std::vector<std::unique_ptr<SimulatedNode>> nodes_;
  std::map<RegionId, coordinator::RegionInfo> regions_;
  std::vector<coordinator::Event> events_;  // since the coordinator's start
  uint64_t events_before_ = 0;              // of coordinators that are gone
  bool answering_ = true;
  uint64_t regions_made_ = 0;
  uint64_t repaired_ = 0;  // slabs
  Milliseconds heartbeat_interval_{1000};
};

}  // namespace farpage::simulation
