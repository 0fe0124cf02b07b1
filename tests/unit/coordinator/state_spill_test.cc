// Nodes that lend room of a disk: the last resort, and the way back.
#include "tests/unit/coordinator/state_rig.h"

namespace farpage::coordinator {
namespace {

class StateSpill : public StateRig {
 protected:
  StateSpill() : StateRig(options()) {}

  static StateOptions options() {
    StateOptions options = options_of(5);
    options.keeps_free = {{"batch", {.bytes = 3 * kMinSlabBytes}}};
    return options;
  }
  void join(const std::string& id, uint32_t slabs, bool disk = false) {
    NodeJoin node = test_node(id, slabs);
    node.spill = disk;
    ASSERT_TRUE(state_.join(now_, node).has_value());
  }
  void join_disk(const std::string& id, uint32_t slabs) { join(id, slabs, true); }
  RegionId region_of(uint32_t replicas = 1, const std::string& borrower = "") {
    RegionCreate create = test_region(0, replicas);
    create.borrower = borrower;
    return *state_.create_region(now_, create);
  }
  void borrow(const RegionId& region, uint32_t slabs) {
    const Status leased = lease(region, slabs);
    ASSERT_TRUE(leased.has_value()) << leased.error().message();
  }
  uint32_t used(const std::string& id) const {
    const NodeInfo node = *state_.node(now_, NodeId{id});
    return node.total_slabs - node.free_slabs;
  }
  std::vector<Lease> moving(const RegionId& region) const {
    std::vector<Lease> moving;
    const RegionInfo info = *state_.region(region);
    for (const Lease& lease : info.leases)
      if (lease.moving) moving.push_back(lease);
    return moving;
  }
  void tick(Nanoseconds later = Seconds(1)) {
    now_ += later;
    for (const NodeInfo& node : state_.nodes(now_))
      ASSERT_TRUE(state_.heartbeat_node(now_, node.join.id, {.incarnation = node.join.incarnation})
                      .has_value());
    for (const RegionInfo& region : state_.regions_without_leases())
      static_cast<void>(state_.heartbeat_region(now_, region.id, {}));
    state_.tick(now_);
    EXPECT_EQ(state_.check(), "");
  }
  Status move(const RegionId& region, SlabIndex slab) {
    FARPAGE_TRY(plan, state_.begin_repair(now_, region, repair_of(region, slab), {}));
    return fill(region, slab, plan);
  }
  // Until nothing moves; the number of moves.
  uint32_t return_all(const RegionId& region) {
    uint32_t moves = 0;
    for (int i = 0; i < 1000; ++i) {
      tick();
      const std::vector<Lease> now = moving(region);
      EXPECT_LE(now.size(), 8U) << "its borrower copies one after the other";
      if (now.empty()) return moves;
      for (const Lease& lease : now) {
        EXPECT_TRUE(move(region, lease.slab).has_value());
        ++moves;
      }
    }
    ADD_FAILURE() << "it does not end";
    return moves;
  }
};

TEST_F(StateSpill, DiskGetsOnlyWhatMemoryHasNoRoomFor) {
  join("memory", 4);
  join_disk("disk", 8);
  const RegionId region = region_of();
  borrow(region, 3);
  EXPECT_EQ(used("disk"), 0U);
  borrow(region, 7);
  EXPECT_EQ(used("memory"), 4U);
  EXPECT_EQ(used("disk"), 3U);
  borrow(region, 12);
  const Status full = lease(region, 13);
  ASSERT_FALSE(full.has_value());
  EXPECT_EQ(full.error().code, ErrorCode::kExhausted);
}

TEST_F(StateSpill, ReplicasAreOnDistinctDisksOrInMemoryAsFarAsThatGoes) {
  join("memory", 2);
  join_disk("disk-1", 8);
  join_disk("disk-2", 8);
  const RegionId region = region_of(2);
  borrow(region, 9);
  EXPECT_EQ(used("memory") + used("disk-1") + used("disk-2"), 18U) << "all there is";
  EXPECT_FALSE(lease(region, 10).has_value());
}

TEST_F(StateSpill, DisksAreCountedApart) {
  join("memory", 4);
  join_disk("disk", 8);
  borrow(region_of(), 7);
  const Totals totals = state_.totals();
  EXPECT_EQ(totals.nodes_alive, 2U);
  EXPECT_EQ(totals.slabs, 4U);
  EXPECT_EQ(totals.slabs_leased, 4U);
  EXPECT_EQ(totals.bytes, 4 * kMinSlabBytes);
  EXPECT_EQ(totals.bytes_free, 0U);
  EXPECT_EQ(totals.slabs_spilled, 3U);
  EXPECT_EQ(totals.bytes_spill, 8 * kMinSlabBytes);
  EXPECT_EQ(totals.bytes_spill_free, 5 * kMinSlabBytes);
  EXPECT_EQ(totals.leases, 7U);
}

TEST_F(StateSpill, SlabsMoveToMemoryThatComes) {
  join("memory-1", 1);
  join_disk("disk", 8);
  const RegionId region = region_of();
  borrow(region, 7);
  EXPECT_EQ(return_all(region), 0U) << "memory is full";
  join("memory-2", 4);
  EXPECT_EQ(return_all(region), 4U);
  EXPECT_EQ(used("disk"), 2U);
  EXPECT_EQ(used("memory-2"), 4U);
  join("memory-3", 4);
  EXPECT_EQ(return_all(region), 2U);
  EXPECT_EQ(state_.totals().slabs_spilled, 0U);
  EXPECT_EQ(return_all(region), 0U) << "nothing moves on";
}

TEST_F(StateSpill, FewMoveAtATime) {
  join_disk("disk", 40);
  const RegionId region = region_of();
  borrow(region, 40);
  join("memory", 40);
  tick();
  EXPECT_EQ(moving(region).size(), 8U);
  tick();
  EXPECT_EQ(moving(region).size(), 8U) << "those that move already count";
  EXPECT_EQ(state_.totals().slabs_moving, 8U);
  EXPECT_EQ(return_all(region), 40U);
}

TEST_F(StateSpill, SlabsMoveToMemoryThatOthersGiveBack) {
  join("memory", 4);
  join_disk("disk", 8);
  const RegionId early = region_of();
  borrow(early, 4);
  const RegionId late = region_of();
  borrow(late, 3);
  EXPECT_EQ(used("disk"), 3U);
  ASSERT_TRUE(state_.delete_region(early).has_value());
  tick();
  EXPECT_TRUE(moving(late).empty()) << "its node has not taken it back yet";
  for (const Revocation& revocation : state_.revocations()) state_.revoked(revocation.id, false);
  EXPECT_EQ(return_all(late), 3U);
  EXPECT_EQ(used("disk"), 0U);
}

TEST_F(StateSpill, BothReplicasMoveToMemory) {
  join_disk("disk-1", 8);
  join_disk("disk-2", 8);
  const RegionId region = region_of(2);
  borrow(region, 3);
  join("memory-1", 8);
  EXPECT_EQ(return_all(region), 3U) << "one of each slab";
  join("memory-2", 8);
  EXPECT_EQ(return_all(region), 3U);
  EXPECT_EQ(state_.totals().slabs_spilled, 0U);
  EXPECT_EQ(state_.totals().slabs_degraded, 0U);
}

TEST_F(StateSpill, MoveWithoutRoomEndsAndIsNotAskedForAgainSoon) {
  join_disk("disk-1", 8);
  const RegionId region = region_of();
  borrow(region, 2);
  join("memory", 2);
  join_disk("disk-2", 8);
  tick();
  ASSERT_EQ(moving(region).size(), 2U);
  const RegionId other = region_of();
  borrow(other, 2);
  EXPECT_EQ(used("memory"), 2U);
  for (const Lease& lease : moving(region))
    EXPECT_EQ(move(region, lease.slab).error().code, ErrorCode::kConflict) << "not to another disk";
  EXPECT_TRUE(moving(region).empty());
  ASSERT_TRUE(state_.delete_region(other).has_value());
  for (const Revocation& revocation : state_.revocations()) state_.revoked(revocation.id, false);
  tick();
  EXPECT_TRUE(moving(region).empty());
  tick(Seconds(10));
  EXPECT_EQ(moving(region).size(), 2U);
}

TEST_F(StateSpill, NodeThatTheBorrowerCannotReachIsNotAskedForAllTheTime) {
  join_disk("disk", 8);
  const RegionId region = region_of();
  borrow(region, 1);
  join("memory", 8);
  uint32_t asked = 0;
  for (int second = 0; second < 60; ++second) {
    tick();
    if (moving(region).empty()) continue;
    ++asked;
    RepairBegin repair = repair_of(region, SlabIndex{0});
    repair.avoid = {NodeId{"memory"}};
    EXPECT_EQ(state_.begin_repair(now_, region, repair, {}).error().code, ErrorCode::kConflict);
  }
  EXPECT_LE(asked, 7U);
  EXPECT_GE(asked, 5U);
}

TEST_F(StateSpill, RepairTakesMemoryFirstAndThenADisk) {
  join("a", 1);
  join("b", 1);
  join("c", 1);
  join_disk("disk", 8);
  const RegionId region = region_of(2);
  borrow(region, 1);
  const auto lose = [&](const std::string& id) {
    NodeJoin node = test_node(id, 1, ++generation_);
    ASSERT_TRUE(state_.join(now_, node).has_value());
    ASSERT_TRUE(state_.set_service(NodeId{id}, NodeService::kCordoned).has_value());
  };
  lose(state_.region(region)->leases[0].node.value);
  ASSERT_TRUE(move(region, SlabIndex{0}).has_value());
  EXPECT_EQ(used("disk"), 0U);
  lose(state_.region(region)->leases[0].node.value);
  ASSERT_TRUE(move(region, SlabIndex{0}).has_value());
  EXPECT_EQ(used("disk"), 1U);
  EXPECT_EQ(state_.totals().slabs_degraded, 0U);
}

TEST_F(StateSpill, DrainedNodeEmptiesIntoMemoryAndThenToADisk) {
  join("memory-1", 4);
  join_disk("disk-1", 8);
  const RegionId region = region_of();
  borrow(region, 4);
  ASSERT_TRUE(state_.set_service(NodeId{"memory-1"}, NodeService::kDraining).has_value());
  join("memory-2", 3);
  for (uint32_t slab = 0; slab < 4; ++slab) ASSERT_TRUE(move(region, SlabIndex{slab}).has_value());
  EXPECT_EQ(used("memory-2"), 3U);
  EXPECT_EQ(used("disk-1"), 1U);
  join_disk("disk-2", 8);
  ASSERT_TRUE(state_.set_service(NodeId{"disk-1"}, NodeService::kDraining).has_value());
  const RegionInfo before = *state_.region(region);
  for (const Lease& lease : before.leases) {
    if (lease.node != NodeId{"disk-1"}) continue;
    ASSERT_TRUE(move(region, lease.slab).has_value());
  }
  EXPECT_EQ(used("disk-2"), 1U);
  EXPECT_EQ(return_all(region), 0U);
}

TEST_F(StateSpill, RebalancingLeavesDisksOut) {
  join("memory-1", 8);
  borrow(region_of(), 8);
  join_disk("disk", 64);
  const Rebalanced done = state_.rebalance({5, 16});
  EXPECT_EQ(done.moving, 0U);
  EXPECT_EQ(done.lowest_percent, 100U);
}

TEST_F(StateSpill, BorrowerThatLeavesMemoryToOthersGetsTheDisk) {
  join("memory", 4);
  join_disk("disk", 8);
  const RegionId batch = region_of(1, "batch");
  borrow(batch, 1);
  EXPECT_EQ(used("disk"), 0U);
  borrow(batch, 3);
  EXPECT_EQ(used("memory"), 1U);
  EXPECT_EQ(used("disk"), 2U);
  EXPECT_EQ(return_all(batch), 0U) << "3 slabs are for others";
  const Status full = lease(batch, 10);
  ASSERT_FALSE(full.has_value());
  EXPECT_NE(full.error().context.find("--keep-free"), std::string::npos) << full.error().context;
  join("memory-2", 1);
  EXPECT_EQ(return_all(batch), 1U);
  EXPECT_EQ(used("disk"), 1U);
}

TEST_F(StateSpill, ImagesStayOnTheDisk) {
  join_disk("disk", 8);
  const auto image = state_.create_image(now_, {.name = ImageId{"i"},
                                                .base = {},
                                                .bytes = kPageBytes,
                                                .replicas = 1,
                                                .slab_bytes = kMinSlabBytes});
  const auto plan = state_.begin_lease(now_, image->region, {SlabIndex{0}}, {});
  ASSERT_TRUE(state_.commit_lease(*plan, granted(*plan)).has_value());
  join("memory", 8);
  tick();
  EXPECT_TRUE(moving(image->region).empty());
}

TEST_F(StateSpill, DiskLendsLessAsMemoryDoes) {
  join_disk("disk-1", 8);
  const RegionId region = region_of();
  borrow(region, 6);
  join_disk("disk-2", 8);
  ASSERT_TRUE(state_.lend(now_, NodeId{"disk-1"}, {2 * kMinSlabBytes}).has_value());
  for (int i = 0; i < 100 && state_.node(now_, NodeId{"disk-1"})->lend_bytes; ++i) {
    for (const LendStep& step : state_.begin_lend_steps()) state_.end_lend_step(step, {});
    tick();
    for (const Lease& lease : moving(region)) ASSERT_TRUE(move(region, lease.slab).has_value());
  }
  EXPECT_EQ(state_.node(now_, NodeId{"disk-1"})->total_slabs, 2U);
  EXPECT_EQ(used("disk-1"), 2U);
  EXPECT_EQ(used("disk-2"), 4U);
}

}  // namespace
}  // namespace farpage::coordinator
