#include "pager/links/region_repair.h"

#include <gtest/gtest.h>

#include "one_node_for_each_slab.h"
#include "target_rig.h"

namespace farpage::pager {
namespace {

constexpr uint32_t kMostSlabs = 6;
constexpr uint32_t kSpare = 2;  // the node that is to have what is made again

// Records which slabs are to be repaired, and leases each of them on the spare node.
class RepairingClient : public OneNodeForEachSlab {
 public:
  Result<coordinator::RepairBegun> begin_repair(const RegionId&,
                                                const coordinator::RepairBegin& repair) override {
    asked.push_back(repair.slab.value);
    if (is_full || without_room.contains(repair.slab.value))
      return fail(ErrorCode::kExhausted, "no node has room");
    coordinator::RepairBegun begun;
    begun.filling.slab = repair.slab;
    begun.filling.node = NodeId{"n" + std::to_string(kSpare)};
    begun.filling.address = RemoteAddress{repair.slab.value * kSlabBytes};
    begun.filling.bytes = kSlabBytes;
    begun.filling.generation = Generation{static_cast<uint32_t>(asked.size()) + 1};
    begun.filling.rkeys[rdma::TransportKind::kLoop] = RemoteKey{7};
    begun.filling.filling = true;
    begun.replaces = repair.live.front();
    return begun;
  }
  Status complete_repair(const RegionId&, const coordinator::RepairComplete&) override {
    return {};
  }

  std::vector<uint32_t> asked;  // slabs
  bool is_full = false;
  std::set<uint32_t> without_room;  // slabs
};

// Slab N has its only replica on node N; further ones have it on node 1.
class RegionRepairRig : public TargetRig {
 public:
  explicit RegionRepairRig(uint32_t slabs = kSpare)
      : TargetRig({.pages = kMostSlabs * kSlabPages, .nodes = kSpare + 1, .checksums = false}) {
    for (uint32_t slab = 0; slab < slabs; ++slab) {
      auto replica = std::make_unique<ReplicaLease>();
      replica->node = NodeIndex{static_cast<uint16_t>(std::min(slab, 1U))};
      replica->address = RemoteAddress{slab * kSlabBytes};
      replica->generation = Generation{1};
      replica->keys[static_cast<size_t>(rdma::TransportKind::kLoop)] = RemoteKey{7};
      std::vector<std::unique_ptr<const ReplicaLease>> replicas;
      replicas.push_back(std::move(replica));
      leases->publish(SlabIndex{slab}, std::move(replicas));
      leases->touch(PageIndex{slab * kSlabPages});
    }
    for (const auto& each : nodes) each->answer_all(rdma::CompletionStatus::kOk);
    region.replicas = 1;
    region.slab_bytes = kSlabBytes;
  }
  ~RegionRepairRig() { repairer.stop(); }

  void is(uint32_t node, coordinator::NodeState state) {
    coordinator::NodeInfo info;
    info.join.id = NodeId{"n" + std::to_string(node)};
    info.join.transports.push_back({.kind = rdma::TransportKind::kShm, .text = "somewhere"});
    info.state = state;
    ASSERT_TRUE(engine.nodes->put(info).has_value());
  }
  void is_away(uint32_t node) {
    is(node, coordinator::NodeState::kLost);
    const Instant long_ago = SteadyClock::read() - Seconds(5);
    engine.peers[NodeIndex{static_cast<uint16_t>(node)}].unreachable_since_ns = long_ago.count();
  }
  Instant serve() { return repair.serve(region, repairer); }

  RepairingClient coordinator;
  coordinator::RegionInfo region;
  std::unique_ptr<LeaseMap> leases =
      std::move(*LeaseMap::create(kMostSlabs * kSlabPages, kSlabBytes));
  std::unique_ptr<LinkPort> port = make_port(Repairer::kBufferBytes);
  Repairer repairer{{.rate = {uint64_t{1} << 40}, .checksums = false},
                    engine.copy_gate,
                    *engine.nodes,
                    engine.peers,
                    *port};
  RegionRepair repair{
      {*leases, *engine.nodes, coordinator,
       [this](const NodeId& id) -> Result<NodeIndex> { return *engine.nodes->find(id); }, [] {}}};
};

TEST(RegionRepair, SlabsThatCannotBeReadKeepNoOtherOneFromBeingMoved) {
  RegionRepairRig rig;
  rig.is_away(0);
  rig.is(1, coordinator::NodeState::kDraining);
  rig.serve();
  EXPECT_EQ(rig.coordinator.asked, std::vector<uint32_t>{1});
  ASSERT_TRUE(becomes_true([&] {
    rig.serve();
    return rig.leases->find(SlabIndex{1})->find(NodeIndex{kSpare}, Generation{2})->is_read();
  }));
  EXPECT_EQ(rig.coordinator.asked, std::vector<uint32_t>{1}) << "the other one waits for its node";
}

// As those whose other replica is where there is room.
TEST(RegionRepair, SlabsForWhichThereIsNoRoomKeepNoOtherOneWaiting) {
  RegionRepairRig rig(kMostSlabs);
  for (uint32_t node = 0; node < kSpare; ++node) rig.is(node, coordinator::NodeState::kDraining);
  for (uint32_t slab = 0; slab + 1 < kMostSlabs; ++slab) rig.coordinator.without_room.insert(slab);
  constexpr uint32_t kLast = kMostSlabs - 1;
  const Instant start = SteadyClock::read();
  ASSERT_TRUE(becomes_true([&] {
    rig.serve();
    const auto& asked = rig.coordinator.asked;
    return std::ranges::find(asked, kLast) != asked.end() ||
           SteadyClock::read() - start > Seconds(30);
  }));
  EXPECT_EQ(rig.coordinator.asked.back(), kLast);
  EXPECT_EQ(rig.coordinator.asked.size(), kMostSlabs) << "each one once, before any is tried again";
}

TEST(RegionRepair, ASlabIsMovedWhenItsNodeIsBack) {
  RegionRepairRig rig;
  rig.is_away(1);
  rig.serve();
  EXPECT_TRUE(rig.coordinator.asked.empty());
  rig.engine.peers[NodeIndex{1}].unreachable_since_ns = 0;
  rig.serve();
  EXPECT_EQ(rig.coordinator.asked, std::vector<uint32_t>{1});
}

// A full cluster looks at all of its nodes for each question.
TEST(RegionRepair, AFullClusterIsAskedLessAndLessOften) {
  RegionRepairRig rig;
  for (uint32_t node = 0; node < kSpare; ++node) rig.is(node, coordinator::NodeState::kDraining);
  rig.coordinator.is_full = true;
  std::vector<Nanoseconds> pauses;
  for (uint32_t i = 0; i < kSpare; ++i) {
    const Instant due = rig.serve();
    rig.serve();
    EXPECT_EQ(rig.coordinator.asked.size(), pauses.size() + 1) << "not before";
    pauses.push_back(due - SteadyClock::read());
    std::this_thread::sleep_for(due - SteadyClock::read());
  }
  EXPECT_EQ(rig.coordinator.asked, (std::vector<uint32_t>{0, 1})) << "one after the other";
  EXPECT_GT(pauses[1], pauses[0]);
  rig.coordinator.is_full = false;
  ASSERT_TRUE(becomes_true([&] {
    rig.serve();
    return rig.coordinator.asked.size() > kSpare;
  }));
}

}  // namespace
}  // namespace farpage::pager
