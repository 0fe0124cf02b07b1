#include <algorithm>

#include "tests/unit/coordinator/state_rig.h"

namespace farpage::coordinator {
namespace {

class StateRebalance : public StateRig {
 protected:
  StateRebalance() : StateRig(options_of(9)) {}

  void join(const std::string& id, uint32_t slabs, const std::string& zone = "") {
    NodeJoin node = test_node(id, slabs);
    if (!zone.empty()) node.labels["zone"] = zone;
    ASSERT_TRUE(state_.join(now_, node).has_value());
  }
  void borrow(uint32_t slabs, uint32_t replicas = 1, const std::string& spread_by = "") {
    RegionCreate create = test_region(0, replicas);
    create.spread_by = spread_by;
    region_ = *state_.create_region(now_, create);
    const Status leased = lease(region_, slabs);
    ASSERT_TRUE(leased.has_value()) << leased.error().message();
  }
  std::vector<Lease> leases() const { return state_.region(region_)->leases; }
  // What the borrower does about one slab that moves; false: the coordinator does not want it.
  bool move(const Lease& moving) {
    const auto plan = state_.begin_repair(now_, region_, repair_of(region_, moving.slab), {});
    EXPECT_EQ(state_.check(), "");
    if (!plan) return false;
    EXPECT_TRUE(fill(region_, moving.slab, *plan).has_value());
    return true;
  }
  // Until nothing moves; the number of moves.
  uint32_t run(const Rebalance& rebalance = {}) {
    uint32_t moves = 0;
    for (int i = 0; i < 1000; ++i) {
      last_ = state_.rebalance(rebalance);
      EXPECT_EQ(state_.check(), "");
      EXPECT_LE(last_.moving, rebalance.at_most);
      if (last_.moving == 0 && last_.left == 0) return moves;
      for (const Lease& lease : leases())
        if (lease.moving && move(lease)) ++moves;
    }
    ADD_FAILURE() << "it does not end";
    return moves;
  }
  uint32_t used(const std::string& id) const {
    const NodeInfo node = *state_.node(now_, NodeId{id});
    return node.total_slabs - node.free_slabs;
  }

  RegionId region_;
  Rebalanced last_;
};

TEST_F(StateRebalance, NewNodeGetsItsShareByAsFewMovesAsThatTakes) {
  join("n1", 20);
  join("n2", 20);
  borrow(30);
  join("n3", 40);
  EXPECT_EQ(run(), 14U) << "then 16 of 40 slabs are used, and 14 of 40: 5 % less";
  EXPECT_EQ(used("n3"), 14U);
  EXPECT_LE(last_.highest_percent - last_.lowest_percent, 5U);
  EXPECT_EQ(run(), 0U) << "again: nothing to do";
}

TEST_F(StateRebalance, NoMoreThanSoManyMoveAtATime) {
  join("n1", 20);
  borrow(16);
  join("n2", 20);
  const Rebalanced first = state_.rebalance({5, 3});
  EXPECT_EQ(first.moving, 3U);
  EXPECT_EQ(first.left, 3U) << "it counts no further";
  const Rebalanced again = state_.rebalance({5, 3});
  EXPECT_EQ(again.moving, 3U) << "those that move already count";
  EXPECT_EQ(again.left, 3U);
  EXPECT_EQ(run({5, 3}), 8U);
  EXPECT_EQ(used("n2"), 8U);
}

TEST_F(StateRebalance, NodesOfOtherSizesAreFilledInProportion) {
  join("n1", 10);
  borrow(10);
  join("n2", 30);
  run();
  EXPECT_NEAR(used("n1"), 2.5, 0.6);
  EXPECT_NEAR(used("n2"), 7.5, 0.6);
}

TEST_F(StateRebalance, ReplicasStayOnDistinctNodesAndInDistinctZones) {
  join("a1", 20, "a");
  join("b1", 20, "b");
  borrow(16, 2, "zone");
  join("a2", 20, "a");
  run();
  EXPECT_EQ(used("b1"), 16U) << "its zone has no other node";
  EXPECT_EQ(used("a1"), 8U);
  EXPECT_EQ(used("a2"), 8U);
}

TEST_F(StateRebalance, SlabThatHasNoEmptierNodeAnyMoreStays) {
  join("n1", 20);
  borrow(4);
  join("n2", 20);
  ASSERT_EQ(state_.rebalance({5, 16}).moving, 2U);
  ASSERT_TRUE(state_.set_service(NodeId{"n2"}, NodeService::kCordoned).has_value());
  for (const Lease& lease : leases()) {
    if (!lease.moving) continue;
    EXPECT_FALSE(move(lease));
  }
  for (const Lease& lease : leases()) EXPECT_FALSE(lease.moving);
  EXPECT_EQ(run(), 0U);
  EXPECT_EQ(used("n1"), 4U);
}

// A borrower that asks for one slab in each round: it waits after each refusal.
TEST_F(StateRebalance, MarksThatEvenOutNothingMakeNoOthers) {
  join("n1", 32);
  join("n2", 32);
  borrow(25, 2);
  join("n3", 32);
  SlabIndex asked{0};
  for (int i = 0; i < 400; ++i) {
    const Rebalanced done = state_.rebalance({5, 16});
    if (done.moving == 0 && done.left == 0) break;
    std::vector<Lease> moving;
    for (const Lease& lease : leases())
      if (lease.moving) moving.push_back(lease);
    ASSERT_EQ(moving.size(), done.moving);
    const auto next = std::ranges::find_if(
        moving, [&](const Lease& lease) { return lease.slab.value > asked.value; });
    const Lease& chosen = next == moving.end() ? moving.front() : *next;
    asked = chosen.slab;
    move(chosen);
  }
  const Rebalanced done = state_.rebalance({5, 16});
  EXPECT_EQ(done.moving, 0U);
  for (const char* node : {"n1", "n2", "n3"}) EXPECT_NEAR(used(node), 17, 1) << node;
}

TEST_F(StateRebalance, ImagesAndNodesThatAreNotInServiceStayAsTheyAre) {
  join("n1", 8);
  const auto image = state_.create_image(now_, {.name = ImageId{"i"},
                                                .base = {},
                                                .bytes = kPageBytes,
                                                .replicas = 1,
                                                .slab_bytes = kMinSlabBytes});
  const auto plan = state_.begin_lease(now_, image->region, {SlabIndex{0}, SlabIndex{1}}, {});
  ASSERT_TRUE(state_.commit_lease(*plan, granted(*plan)).has_value());
  borrow(2);
  join("n2", 8);
  ASSERT_TRUE(state_.set_service(NodeId{"n1"}, NodeService::kDraining).has_value());
  EXPECT_EQ(run(), 0U);
  ASSERT_TRUE(state_.set_service(NodeId{"n1"}, NodeService::kFull).has_value());
  EXPECT_EQ(run(), 2U);
  EXPECT_EQ(used("n1"), 2U) << "the image";
}

TEST_F(StateRebalance, EmptyClusterIsBalanced) {
  EXPECT_EQ(run(), 0U);
  join("n1", 4);
  EXPECT_EQ(run(), 0U);
  EXPECT_EQ(last_.lowest_percent, 0U);
}

}  // namespace
}  // namespace farpage::coordinator
