#include <algorithm>

#include "tests/unit/coordinator/state_rig.h"

namespace farpage::coordinator {
namespace {

const NodeId kLender{"n1"};

// One node of 8 slabs, which lends 3 of them; `others` may join later.
class StateLending : public StateRig {
 protected:
  StateLending() : StateRig(options_of(5)) {}
  void SetUp() override {
    join("n1", 8);
    region_ = *state_.create_region(now_, test_region(0));
    lease(3);
  }

  void join(const std::string& id, uint32_t slabs) {
    ASSERT_TRUE(state_.join(now_, test_node(id, slabs)).has_value());
  }
  void lease(uint32_t slabs) {
    const Status leased = StateRig::lease(region_, slabs);
    ASSERT_TRUE(leased.has_value()) << leased.error().message();
  }
  Result<NodeInfo> lend(uint32_t slabs) {
    return state_.lend(now_, kLender, {slabs * kMinSlabBytes});
  }
  // As long as nodes are to be asked and do what they are asked for.
  void take_steps(const Status& answer = {}) {
    for (int i = 0; i < 100; ++i) {
      const std::vector<LendStep> steps = state_.begin_lend_steps();
      EXPECT_EQ(state_.check(), "");
      for (const LendStep& step : steps) state_.end_lend_step(step, answer);
      EXPECT_EQ(state_.check(), "");
      if (steps.empty() || !answer) return;
    }
    FAIL() << "it does not end";
  }
  std::vector<Lease> moving() const {
    std::vector<Lease> list;
    const RegionInfo info = *state_.region(region_);
    for (const Lease& lease : info.leases)
      if (lease.moving) list.push_back(lease);
    return list;
  }
  void move(const Lease& lease) {
    const auto plan = state_.begin_repair(now_, region_, {lease.slab, {name_of(lease)}, {}}, {});
    ASSERT_TRUE(plan.has_value()) << plan.error().message();
    ASSERT_TRUE(fill(region_, lease.slab, *plan).has_value());
  }
  NodeInfo node() const { return *state_.node(now_, kLender); }

  RegionId region_;
};

TEST_F(StateLending, MoreSlabsAreLentWhenTheNodeHasMadeThem) {
  ASSERT_TRUE(lend(12).has_value());
  EXPECT_EQ(node().lend_bytes, 12 * kMinSlabBytes);
  EXPECT_EQ(node().total_slabs, 8U);
  const auto steps = state_.begin_lend_steps();
  ASSERT_EQ(steps.size(), 1U);
  EXPECT_EQ(steps[0].add, (std::vector<uint32_t>{8, 9, 10, 11}));
  EXPECT_TRUE(state_.begin_lend_steps().empty()) << "one request at a time";
  state_.end_lend_step(steps[0], {});
  take_steps();
  EXPECT_EQ(node().total_slabs, 12U);
  EXPECT_EQ(node().free_slabs, 9U);
  EXPECT_EQ(node().join.capacity_bytes, 12 * kMinSlabBytes);
  EXPECT_FALSE(node().lend_bytes);
  lease(12);
}

TEST_F(StateLending, NodeWithoutTheMemorySaysSoAndStaysAsItIs) {
  ASSERT_TRUE(lend(12).has_value());
  take_steps(fail(ErrorCode::kExhausted, "this host has 3M available"));
  EXPECT_FALSE(node().lend_bytes);
  EXPECT_NE(node().lend_refused.find("3M available"), std::string::npos);
  EXPECT_EQ(node().total_slabs, 8U);
  ASSERT_TRUE(lend(9).has_value());
  EXPECT_TRUE(node().lend_refused.empty());
  take_steps();
  EXPECT_EQ(node().total_slabs, 9U);
}

TEST_F(StateLending, NodeThatDoesNotAnswerIsAskedAgain) {
  ASSERT_TRUE(lend(9).has_value());
  take_steps(fail(ErrorCode::kUnavailable, "not reached"));
  take_steps(fail(ErrorCode::kTimedOut, "no answer"));
  EXPECT_EQ(node().lend_bytes, 9 * kMinSlabBytes);
  take_steps();
  EXPECT_EQ(node().total_slabs, 9U);
}

TEST_F(StateLending, MemoryOfALostAnswerIsGivenUpWhenItIsNotWantedAnyMore) {
  ASSERT_TRUE(lend(10).has_value());
  EXPECT_EQ(state_.begin_lend_steps()[0].add_in_all, 2U);
  state_.end_lend_step({kLender, 1, "", {8, 9}, 2, {}}, fail(ErrorCode::kTimedOut, "no answer"));
  EXPECT_TRUE(state_.heartbeat_node(now_, kLender, NodeHeartbeat{1, 7, {}}).has_value())
      << "the node has them";
  ASSERT_TRUE(lend(8).has_value());
  const auto steps = state_.begin_lend_steps();
  ASSERT_EQ(steps.size(), 1U);
  EXPECT_EQ(steps[0].withdraw, (std::vector<uint32_t>{8, 9}));
  state_.end_lend_step(steps[0], {});
  take_steps();
  EXPECT_EQ(node().total_slabs, 8U);
}

TEST_F(StateLending, FreeSlabsGoFirstAndNothingMoves) {
  ASSERT_TRUE(lend(3).has_value());
  EXPECT_FALSE(state_.begin_lease(now_, region_, {SlabIndex{7}}, {}).has_value())
      << "what is to go is not lent";
  take_steps();
  EXPECT_EQ(node().total_slabs, 3U);
  EXPECT_EQ(node().free_slabs, 0U);
  EXPECT_EQ(node().join.withdrawn.size(), 5U);
  EXPECT_TRUE(moving().empty());
  EXPECT_EQ(state_.totals().slabs, 3U);
}

TEST_F(StateLending, SlabsThatCameBackAreUsedBeforeNewNumbers) {
  ASSERT_TRUE(lend(4).has_value());
  take_steps();
  const std::vector<uint32_t> withdrawn = node().join.withdrawn;
  ASSERT_TRUE(lend(9).has_value());
  const auto steps = state_.begin_lend_steps();
  ASSERT_EQ(steps.size(), 1U);
  EXPECT_TRUE(std::ranges::includes(steps[0].add, withdrawn));
  EXPECT_EQ(steps[0].add.size(), 5U);
  state_.end_lend_step(steps[0], {});
  EXPECT_TRUE(node().join.withdrawn.empty());
  EXPECT_EQ(node().total_slabs, 9U);
}

TEST_F(StateLending, LeasedSlabsMoveElsewhereBeforeTheyGo) {
  join("n2", 4);
  ASSERT_TRUE(lend(1).has_value());
  take_steps();
  EXPECT_EQ(node().total_slabs, 3U) << "the free ones are gone";
  ASSERT_EQ(moving().size(), 2U);
  EXPECT_EQ(state_.totals().slabs_moving, 2U);
  for (const Lease& lease : moving()) move(lease);
  take_steps();
  EXPECT_EQ(node().total_slabs, 1U);
  EXPECT_FALSE(node().lend_bytes);
  EXPECT_TRUE(moving().empty());
  EXPECT_EQ(state_.node(now_, NodeId{"n2"})->free_slabs, 2U);
}

TEST_F(StateLending, RegionThatEndsSparesOthersTheirMove) {
  join("n2", 4);
  ASSERT_TRUE(lend(2).has_value());
  take_steps();
  ASSERT_EQ(moving().size(), 1U);
  ASSERT_TRUE(state_.release(region_, {SlabIndex{0}, SlabIndex{1}, SlabIndex{2}}).has_value());
  lease(1);
  for (const Revocation& revocation : state_.revocations()) state_.revoked(revocation.id, false);
  take_steps();
  EXPECT_TRUE(moving().empty());
  EXPECT_EQ(node().total_slabs, 2U);
}

TEST_F(StateLending, AnotherSizeEndsWhatIsUnderWay) {
  join("n2", 4);
  ASSERT_TRUE(lend(1).has_value());
  take_steps();
  ASSERT_EQ(moving().size(), 2U);
  ASSERT_TRUE(lend(8).has_value());
  EXPECT_TRUE(moving().empty());
  take_steps();
  EXPECT_EQ(node().total_slabs, 8U);
}

TEST_F(StateLending, WhatCannotBeIsRefusedWithTheReason) {
  const auto no_room = lend(1);
  ASSERT_FALSE(no_room.has_value());
  EXPECT_EQ(no_room.error().code, ErrorCode::kExhausted);
  EXPECT_NE(no_room.error().context.find("2 slabs of node 'n1' would have to move, and other nodes "
                                         "have room for 0 of them"),
            std::string::npos)
      << no_room.error().context;
  EXPECT_EQ(lend(0).error().code, ErrorCode::kInvalid);
  EXPECT_EQ(state_.lend(now_, NodeId{"n9"}, {kMinSlabBytes}).error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(state_.set_service(kLender, NodeService::kDraining).has_value());
  EXPECT_EQ(lend(12).error().code, ErrorCode::kConflict);
  now_ += Seconds(6);
  state_.tick(now_);
  EXPECT_EQ(lend(12).error().code, ErrorCode::kUnavailable);
  EXPECT_FALSE(node().lend_bytes);
}

TEST_F(StateLending, SlabsOfImagesDoNotMove) {
  join("n2", 8);
  ASSERT_TRUE(state_.set_service(NodeId{"n2"}, NodeService::kCordoned).has_value());
  const auto image = state_.create_image(now_, {.name = ImageId{"i"},
                                                .base = {},
                                                .bytes = kPageBytes,
                                                .replicas = 1,
                                                .slab_bytes = kMinSlabBytes});
  ASSERT_TRUE(image.has_value());
  const auto plan = state_.begin_lease(now_, image->region, {SlabIndex{0}, SlabIndex{1}}, {});
  ASSERT_TRUE(state_.commit_lease(*plan, granted(*plan)).has_value());
  ASSERT_TRUE(state_.set_service(NodeId{"n2"}, NodeService::kFull).has_value());
  EXPECT_EQ(lend(1).error().code, ErrorCode::kConflict);
  ASSERT_TRUE(lend(2).has_value());
  take_steps();
  ASSERT_EQ(moving().size(), 3U);
  for (const Lease& lease : moving()) move(lease);
  take_steps();
  EXPECT_EQ(node().total_slabs, 2U);
}

TEST_F(StateLending, SlabThatAStrangerHasIsLeftAlone) {
  ASSERT_TRUE(lend(3).has_value());
  const auto steps = state_.begin_lend_steps();
  ASSERT_EQ(steps[0].withdraw.size(), 5U);
  state_.end_lend_step(steps[0], fail(ErrorCode::kConflict, "node_slab 4 is leased"));
  EXPECT_EQ(node().free_slabs, 5U);
  for (int i = 0; i < 10; ++i)
    for (const LendStep& step : state_.begin_lend_steps()) {
      ASSERT_EQ(step.withdraw.size(), 1U) << "one by one from now on";
      state_.end_lend_step(step, step.withdraw[0] == 4
                                     ? Status(fail(ErrorCode::kConflict, "it is leased"))
                                     : Status());
    }
  EXPECT_EQ(node().total_slabs, 4U);
  EXPECT_EQ(state_.totals().slabs_foreign, 1U);
  EXPECT_EQ(moving().size(), 1U) << "another one has to go instead";
}

TEST_F(StateLending, RestartOfTheNodeEndsIt) {
  ASSERT_TRUE(lend(4).has_value());
  take_steps();
  ASSERT_TRUE(lend(6).has_value());
  ASSERT_TRUE(state_.join(now_, test_node("n1", 8, 2)).has_value());
  EXPECT_EQ(node().total_slabs, 8U);
  EXPECT_FALSE(node().lend_bytes);
  EXPECT_TRUE(state_.begin_lend_steps().empty());
}

TEST_F(StateLending, SlabsOfANodeThatJoinsAgainAreThoseThatItSays) {
  NodeJoin again = test_node("n1", 8);
  again.capacity_bytes = 7 * kMinSlabBytes;
  again.withdrawn = {0, 5};  // it lends 9 numbers but for these; 0 was leased
  ASSERT_EQ(*state_.join(now_, again), false);
  EXPECT_EQ(node().total_slabs, 7U);
  EXPECT_EQ(node().free_slabs, 5U);
  uint32_t lost = 0;
  const RegionInfo info = *state_.region(region_);
  for (const Lease& lease : info.leases) lost += lease.lost ? 1 : 0;
  EXPECT_EQ(lost, 1U);
}

TEST_F(StateLending, RestartedCoordinatorTellsTheNodeAgainWhatIsGone) {
  join("n2", 4);
  ASSERT_TRUE(lend(1).has_value());
  take_steps();
  Snapshot kept;
  for (const auto& [id, record] : state_.take_changes().nodes) kept.nodes.push_back(*record);
  const RegionInfo info = *state_.region(region_);
  kept.regions.push_back({region_, info.name, 1, kMinSlabBytes, 0});
  for (const Lease& lease : info.leases) kept.leases[{region_, lease.slab, 0}] = lease;
  State again(options_of(5), kept, now_);
  EXPECT_EQ(again.check(), "");
  EXPECT_EQ(again.totals().slabs_moving, 2U);
  const auto steps = again.begin_lend_steps();
  ASSERT_EQ(steps.size(), 1U);
  EXPECT_EQ(steps[0].withdraw, node().join.withdrawn);
  EXPECT_EQ(steps[0].withdraw.size(), 5U);
  again.end_lend_step(steps[0], {});
  EXPECT_TRUE(again.begin_lend_steps().empty()) << "two slabs still have to move";
  EXPECT_EQ(again.node(now_, kLender)->lend_bytes, kMinSlabBytes);
  EXPECT_EQ(again.check(), "");
}

}  // namespace
}  // namespace farpage::coordinator
