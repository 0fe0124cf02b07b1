// Borrowers that leave memory free for others.
#include "tests/unit/coordinator/state_rig.h"

namespace farpage::coordinator {
namespace {

class StateKeptFree : public StateRig {
 protected:
  StateKeptFree() : StateRig(options()) {}

  static StateOptions options() {
    StateOptions options = options_of(7);
    options.keeps_free = {
        {"batch", {.percent = 50}}, {"web", {}}, {"*", {.bytes = 2 * kMinSlabBytes}}};
    return options;
  }
  void join(const std::string& id, uint32_t slabs) {
    ASSERT_TRUE(state_.join(now_, test_node(id, slabs, ++incarnation_)).has_value());
  }
  RegionId region_of(const std::string& borrower, uint32_t replicas = 1) {
    RegionCreate create = test_region(0, replicas);
    create.borrower = borrower;
    return *state_.create_region(now_, create);
  }

  uint64_t incarnation_ = 0;
};

TEST_F(StateKeptFree, EachBorrowerGetsAsMuchAsItsPriorityAllows) {
  join("a", 10);
  const RegionId batch = region_of("batch");
  const Status refused = lease(batch, 6);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
  EXPECT_EQ(refused.error().context,
            "borrower 'batch' must leave 10M free (--keep-free): 20M are, and 12M more do not fit; "
            "start more nodes, or give slabs back");
  EXPECT_TRUE(lease(batch, 5).has_value());
  EXPECT_FALSE(lease(batch, 6).has_value());
  EXPECT_TRUE(lease(batch, 5).has_value()) << "it has these";
  const RegionId other = region_of("other");
  EXPECT_TRUE(lease(other, 3).has_value());
  EXPECT_FALSE(lease(region_of(""), 1).has_value());
  EXPECT_TRUE(lease(region_of("web"), 2).has_value());
  EXPECT_FALSE(lease(region_of("web"), 1).has_value()) << "nothing is free";
}

TEST_F(StateKeptFree, ReplicasCountAndWhatNodesAreAskedForIsNotFree) {
  join("a", 6);
  join("b", 6);
  const RegionId first = region_of("batch", 2);
  const auto asked = state_.begin_lease(now_, first, {SlabIndex{0}, SlabIndex{1}}, {});
  ASSERT_TRUE(asked.has_value());
  EXPECT_FALSE(lease(region_of("batch", 2), 2).has_value());
  EXPECT_TRUE(lease(region_of("batch", 2), 1).has_value());
}

TEST_F(StateKeptFree, OnlyLivingNodesCount) {
  join("a", 6);
  join("b", 6);
  const RegionId batch = region_of("batch");
  ASSERT_TRUE(lease(batch, 6).has_value());
  EXPECT_FALSE(lease(batch, 7).has_value());
  join("c", 8);
  EXPECT_TRUE(lease(batch, 10).has_value());
  ASSERT_TRUE(state_.set_service(NodeId{"c"}, NodeService::kDraining).has_value());
  EXPECT_FALSE(lease(batch, 11).has_value());
}

TEST_F(StateKeptFree, RepairIsNotHeldBack) {
  join("a", 2);
  join("b", 2);
  join("c", 2);
  const RegionId batch = region_of("batch", 2);
  ASSERT_TRUE(lease(batch, 1).has_value());
  ASSERT_FALSE(lease(batch, 2).has_value());
  const NodeId gone = state_.region(batch)->leases[0].node;
  join(gone.value, 2);  // with new memory
  const RepairBegin repair = repair_of(batch, SlabIndex{0});
  ASSERT_EQ(repair.live.size(), 1U);
  const auto plan = state_.begin_repair(now_, batch, repair, {});
  ASSERT_TRUE(plan.has_value()) << plan.error().message();
  EXPECT_TRUE(state_.commit_lease(*plan, granted(*plan)).has_value());
}

}  // namespace
}  // namespace farpage::coordinator
