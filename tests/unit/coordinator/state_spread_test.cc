// Replicas on nodes with different values of a label; quotas of borrowers.
#include "tests/unit/coordinator/state_rig.h"

namespace farpage::coordinator {
namespace {

class StateSpread : public StateRig {
 protected:
  StateSpread() : StateRig(options()) {}

  static StateOptions options() {
    StateOptions options = options_of(7);
    options.spread_by = "zone";
    options.quotas = {{"batch", 6 * kMinSlabBytes}};
    return options;
  }
  void join(const std::string& id, const std::string& zone, uint32_t slabs = 4) {
    NodeJoin node = test_node(id, slabs, ++incarnation_);
    if (!zone.empty()) node.labels["zone"] = zone;
    node.labels["rack"] = id;
    ASSERT_TRUE(state_.join(now_, node).has_value());
    zones_[NodeId{id}] = zone;
  }
  RegionId region_of(uint32_t replicas, const std::string& spread_by = "") {
    RegionCreate create = test_region(0, replicas);
    create.spread_by = spread_by;
    return *state_.create_region(now_, create);
  }
  RegionId region_with_quota() {
    RegionCreate create = test_region(0, 2);
    create.borrower = "batch";
    return *state_.create_region(now_, create);
  }
  // Of each slab, with how many replicas it has there.
  std::map<SlabIndex, std::multiset<std::string>> zones_of(const RegionId& region) const {
    std::map<SlabIndex, std::multiset<std::string>> zones;
    const RegionInfo info = *state_.region(region);
    for (const Lease& lease : info.leases) zones[lease.slab].insert(zones_.at(lease.node));
    return zones;
  }

  uint64_t incarnation_ = 0;
  std::map<NodeId, std::string> zones_;
};

TEST_F(StateSpread, ReplicasAreInDifferentZones) {
  for (const char* id : {"a1", "a2", "a3"}) join(id, "a");
  join("b1", "b", 12);
  const RegionId region = region_of(2);
  EXPECT_EQ(state_.region(region)->spread_by, "zone") << "what the coordinator was told";
  ASSERT_TRUE(lease(region, 12).has_value());
  for (const auto& [slab, zones] : zones_of(region))
    EXPECT_EQ(zones, (std::multiset<std::string>{"a", "b"}));
}

TEST_F(StateSpread, RegionMayAskForAnotherLabel) {
  for (const char* id : {"a1", "a2"}) join(id, "a");
  const RegionId region = region_of(2, "rack");
  ASSERT_TRUE(lease(region, 4).has_value());
  EXPECT_EQ(lease(region_of(2), 1).error().code, ErrorCode::kExhausted);
}

TEST_F(StateSpread, NodesWithoutTheLabelAreOneZone) {
  for (const char* id : {"x1", "x2"}) join(id, "");
  EXPECT_FALSE(lease(region_of(2), 1).has_value());
  join("a1", "a");
  EXPECT_TRUE(lease(region_of(2), 1).has_value());
}

TEST_F(StateSpread, WhatDoesNotFitSaysWhichZonesHaveRoom) {
  join("a1", "a", 3);
  join("a2", "a", 5);
  join("b1", "b", 2);
  join("x1", "", 1);
  const Status refused = lease(region_of(2), 4);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
  EXPECT_NE(refused.error().context.find("each in another zone, do not fit; free slabs of that "
                                         "size: without zone: 1, zone=a: 8, zone=b: 2;"),
            std::string::npos)
      << refused.error().context;
}

TEST_F(StateSpread, BorrowerHasNoMoreThanItsQuotaInAllItsRegions) {
  join("a1", "a", 20);
  join("b1", "b", 20);
  const RegionId first = region_with_quota();
  const RegionId second = region_with_quota();
  ASSERT_TRUE(lease(first, 2).has_value()) << "4 slabs with their replicas";
  const Status refused = lease(second, 2);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
  EXPECT_EQ(refused.error().context,
            "borrower 'batch' has 8M of its quota of 12M: 8M more do not fit");
  const auto asked = state_.begin_lease(now_, second, {SlabIndex{0}}, {});
  ASSERT_TRUE(asked.has_value());
  EXPECT_FALSE(lease(first, 3).has_value()) << "what nodes are being asked for counts";
  ASSERT_TRUE(state_.commit_lease(*asked, granted(*asked)).has_value());
  ASSERT_TRUE(state_.release(first, {SlabIndex{0}}).has_value());
  EXPECT_TRUE(lease(second, 2).has_value());
  EXPECT_TRUE(lease(region_of(2), 8).has_value()) << "others have no quota";
}

TEST_F(StateSpread, ReplicasThatWillBeMadeAgainCountForTheQuota) {
  join("a1", "a", 20);
  join("b1", "b", 20);
  const RegionId region = region_with_quota();
  ASSERT_TRUE(lease(region, 3).has_value());
  join("b1", "b", 20);  // with new memory
  EXPECT_FALSE(lease(region, 4).has_value()) << "three slabs have one replica, and will have two";
  join("a1", "a", 20);
  EXPECT_TRUE(lease(region, 6).has_value()) << "nothing is left of which they could be made";
}

TEST_F(StateSpread, RepairKeepsToIt) {
  join("a1", "a");
  join("b1", "b");
  const RegionId region = region_of(2);
  ASSERT_TRUE(lease(region, 1).has_value());
  join("a2", "a");
  join("b1", "b");  // with new memory
  const RepairBegin repair = repair_of(region, SlabIndex{0});
  ASSERT_EQ(repair.live.size(), 1U);
  ASSERT_TRUE(state_.set_service(NodeId{"b1"}, NodeService::kCordoned).has_value());
  const auto nowhere = state_.begin_repair(now_, region, repair, {});
  ASSERT_FALSE(nowhere.has_value()) << "a2 has room, but is in the zone of the other replica";
  EXPECT_NE(nowhere.error().context.find("no node in another zone"), std::string::npos);
  join("b2", "b");
  const auto plan = state_.begin_repair(now_, region, repair, {});
  ASSERT_TRUE(plan.has_value()) << plan.error().message();
  EXPECT_EQ(plan->front().node, NodeId{"b2"});
  EXPECT_TRUE(state_.commit_lease(*plan, granted(*plan)).has_value());
}

TEST_F(StateSpread, SlabMayMoveWithinItsZone) {
  join("a1", "a");
  join("b1", "b");
  const RegionId region = region_of(2);
  ASSERT_TRUE(lease(region, 1).has_value());
  join("a2", "a");
  ASSERT_TRUE(state_.set_service(NodeId{"a1"}, NodeService::kDraining).has_value());
  const auto plan = state_.begin_repair(now_, region, repair_of(region, SlabIndex{0}), {});
  ASSERT_TRUE(plan.has_value()) << plan.error().message();
  EXPECT_EQ(plan->front().node, NodeId{"a2"});
  EXPECT_TRUE(state_.commit_lease(*plan, granted(*plan)).has_value());
}

}  // namespace
}  // namespace farpage::coordinator
