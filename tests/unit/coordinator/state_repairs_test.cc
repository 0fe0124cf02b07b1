#include "tests/unit/coordinator/state_rig.h"

namespace farpage::coordinator {
namespace {

// Three nodes, of which two have the only slab of a region.
class StateRepairs : public StateRig {
 protected:
  StateRepairs() : StateRig(options_of(3)) {}
  void SetUp() override {
    for (const char* name : {"n1", "n2", "n3"}) join(name);
    region_ = *state_.create_region(now_, test_region(0, 2));
    ASSERT_TRUE(lease(region_, 1).has_value());
  }

  void join(const std::string& id, uint64_t incarnation = 1) {
    ASSERT_TRUE(state_.join(now_, test_node(id, 4, incarnation)).has_value());
  }
  Lease replica(uint32_t number) const {
    const RegionInfo info = *state_.region(region_);
    for (const Lease& lease : info.leases)
      if (lease.replica == number && !lease.filling) return lease;
    return {};
  }
  // All but the replicas with these numbers are live.
  RepairBegin request_without(std::set<uint32_t> numbers) const {
    RepairBegin repair{kSlab, {}, {}};
    for (const uint32_t number : {0U, 1U})
      if (!numbers.contains(number)) repair.live.push_back(name_of(replica(number)));
    return repair;
  }
  Result<RepairBegun> begin(const RepairBegin& repair) {
    FARPAGE_TRY(plan, state_.begin_repair(now_, region_, repair, {}));
    EXPECT_EQ(state_.check(), "");
    FARPAGE_TRY_VOID(state_.commit_lease(plan, granted(plan)));
    return state_.repair_begun(region_, kSlab);
  }
  ErrorCode refusal_of(const RepairBegin& repair) {
    const auto plan = state_.begin_repair(now_, region_, repair, {});
    EXPECT_FALSE(plan.has_value());
    return plan ? ErrorCode::kIo : plan.error().code;
  }
  NodeId node_without_replica() const {
    for (const char* name : {"n1", "n2", "n3"})
      if (replica(0).node.value != name && replica(1).node.value != name) return NodeId{name};
    return {};
  }

  static constexpr SlabIndex kSlab{0};
  RegionId region_;
};

TEST_F(StateRepairs, WholeSlabIsNotRepairedAndNothingIsDegraded) {
  EXPECT_EQ(state_.totals().slabs_degraded, 0U);
  EXPECT_EQ(refusal_of(request_without({})), ErrorCode::kConflict);
  EXPECT_EQ(state_.totals().slabs_repairing, 0U);
}

TEST_F(StateRepairs, LostReplicaIsReplacedOnANodeThatHasNone) {
  const Lease old = replica(1);
  const Lease other = replica(0);
  join(old.node.value, 2);  // with new memory
  EXPECT_EQ(state_.totals().slabs_degraded, 1U);
  const auto begun = begin(request_without({1}));
  ASSERT_TRUE(begun.has_value()) << begun.error().message();
  EXPECT_TRUE(begun->filling.filling);
  EXPECT_EQ(begun->filling.replica, 1U);
  EXPECT_NE(begun->filling.node, other.node);
  EXPECT_EQ(begun->replaces, name_of(old));
  EXPECT_EQ(state_.totals().slabs_repairing, 1U);
  EXPECT_EQ(state_.totals().slabs_degraded, 1U) << "until it is filled";
  const RepairComplete complete{kSlab, name_of(begun->filling)};
  ASSERT_TRUE(state_.complete_repair(now_, region_, complete).has_value());
  ASSERT_TRUE(state_.complete_repair(now_, region_, complete).has_value()) << "again";
  EXPECT_EQ(name_of(replica(1)), name_of(begun->filling));
  EXPECT_EQ(name_of(replica(0)), name_of(other));
  EXPECT_EQ(state_.totals().slabs_degraded, 0U);
  EXPECT_EQ(state_.totals().slabs_repairing, 0U);
  EXPECT_EQ(state_.totals().slabs_leased, 2U);
}

TEST_F(StateRepairs, StaleReplicaIsKeptUntilItsPlaceIsTakenAndThenRevoked) {
  const Lease stale = replica(0);
  const auto begun = begin(request_without({0}));
  ASSERT_TRUE(begun.has_value());
  EXPECT_TRUE(replica(0).stale);
  EXPECT_EQ(state_.totals().slabs_degraded, 1U);
  EXPECT_TRUE(state_.revocations().empty());
  ASSERT_TRUE(state_.complete_repair(now_, region_, {kSlab, name_of(begun->filling)}).has_value());
  ASSERT_EQ(state_.revocations().size(), 1U);
  EXPECT_EQ(state_.revocations().front().node, stale.node);
  EXPECT_EQ(state_.revocations().front().generation, stale.generation);
}

TEST_F(StateRepairs, StaleReplicasNodeMayHaveTheNextOne) {
  ASSERT_TRUE(state_.remove_node(node_without_replica(), false).has_value());
  const Lease stale = replica(0);
  const auto begun = begin(request_without({0}));
  ASSERT_TRUE(begun.has_value()) << begun.error().message();
  EXPECT_EQ(begun->filling.node, stale.node);
  EXPECT_NE(begun->filling.node_slab, stale.node_slab);
}

TEST_F(StateRepairs, DrainingNodesReplicaStaysLiveWhileItIsCopied) {
  const Lease leaving = replica(1);
  ASSERT_TRUE(state_.set_service(leaving.node, NodeService::kDraining).has_value());
  EXPECT_EQ(state_.totals().slabs_degraded, 0U);
  const auto begun = begin(request_without({}));
  ASSERT_TRUE(begun.has_value()) << begun.error().message();
  EXPECT_EQ(begun->replaces, name_of(leaving));
  EXPECT_FALSE(replica(1).stale);
  EXPECT_EQ(state_.remove_node(leaving.node, false).error().code, ErrorCode::kConflict);
  ASSERT_TRUE(state_.complete_repair(now_, region_, {kSlab, name_of(begun->filling)}).has_value());
  EXPECT_TRUE(state_.remove_node(leaving.node, false).has_value()) << "it lends nothing any more";
}

TEST_F(StateRepairs, SilentNodesReplicaIsReplacedAndCountsAsMissing) {
  now_ += Seconds(6);
  for (const char* name : {"n1", "n2", "n3"}) {
    if (replica(0).node.value == name) continue;
    ASSERT_TRUE(state_.heartbeat_node(now_, NodeId{name}, NodeHeartbeat{1, 0, {}}).has_value());
  }
  state_.tick(now_);
  EXPECT_EQ(state_.totals().slabs_degraded, 1U);
  const auto begun = begin(request_without({}));
  ASSERT_TRUE(begun.has_value()) << begun.error().message();
  EXPECT_EQ(begun->replaces, name_of(replica(0)));
}

TEST_F(StateRepairs, NextRequestEndsWhatWasFilling) {
  const auto first = begin(request_without({1}));
  ASSERT_TRUE(first.has_value());
  const auto second = begin(request_without({1}));
  ASSERT_TRUE(second.has_value());
  EXPECT_NE(name_of(second->filling), name_of(first->filling));
  ASSERT_EQ(state_.revocations().size(), 1U);
  EXPECT_EQ(state_.revocations().front().generation, first->filling.generation);
  EXPECT_EQ(state_.complete_repair(now_, region_, {kSlab, name_of(first->filling)}).error().code,
            ErrorCode::kNotFound);
}

TEST_F(StateRepairs, FillingReplicaThatIsLostDoesNotBecomeLive) {
  const auto begun = begin(request_without({1}));
  ASSERT_TRUE(begun.has_value());
  join(begun->filling.node.value, 2);
  EXPECT_EQ(state_.totals().slabs_repairing, 0U);
  EXPECT_EQ(state_.complete_repair(now_, region_, {kSlab, name_of(begun->filling)}).error().code,
            ErrorCode::kNotFound);
  EXPECT_TRUE(begin(request_without({1})).has_value());
}

TEST_F(StateRepairs, AbandonedReplicaEndsAndNothingIsReplaced) {
  const auto begun = begin(request_without({1}));
  ASSERT_TRUE(begun.has_value());
  const RepairComplete abandoned{kSlab, name_of(begun->filling), true};
  ASSERT_TRUE(state_.complete_repair(now_, region_, abandoned).has_value());
  ASSERT_TRUE(state_.complete_repair(now_, region_, abandoned).has_value()) << "again";
  EXPECT_EQ(state_.totals().slabs_repairing, 0U);
  EXPECT_TRUE(replica(1).stale);
  ASSERT_EQ(state_.revocations().size(), 1U);
  EXPECT_EQ(state_.revocations().front().generation, begun->filling.generation);
}

TEST_F(StateRepairs, BorrowerKnowsOfMoreDegradedSlabs) {
  ASSERT_TRUE(
      state_.heartbeat_region(now_, region_, RegionHeartbeat{{{std::string(kDegradedCounter), 5}}})
          .has_value());
  EXPECT_EQ(state_.totals().slabs_degraded, 5U);
  ASSERT_TRUE(state_.heartbeat_region(now_, region_, RegionHeartbeat{}).has_value());
  EXPECT_EQ(state_.totals().slabs_degraded, 0U);
}

TEST_F(StateRepairs, ReplicaThatIsLiveAgainIsNotStale) {
  ASSERT_TRUE(begin(request_without({0})).has_value());
  EXPECT_TRUE(replica(0).stale);
  ASSERT_TRUE(begin(request_without({1})).has_value());
  EXPECT_FALSE(replica(0).stale);
  EXPECT_TRUE(replica(1).stale);
}

TEST_F(StateRepairs, RequestsThatCannotBeMetNameWhy) {
  RepairBegin unknown = request_without({});
  unknown.live[0].generation = Generation{999};
  EXPECT_EQ(refusal_of(unknown), ErrorCode::kConflict) << "a replica that the slab does not have";
  EXPECT_FALSE(replica(0).stale);
  RepairBegin other = request_without({1});
  other.slab = SlabIndex{7};
  EXPECT_EQ(refusal_of(other), ErrorCode::kNotFound);
  RepairBegin nowhere = request_without({1});
  nowhere.avoid = {NodeId{"n1"}, NodeId{"n2"}, NodeId{"n3"}};
  EXPECT_EQ(refusal_of(nowhere), ErrorCode::kExhausted);
  EXPECT_TRUE(replica(1).stale) << "remembered all the same";
}

TEST_F(StateRepairs, RestartedCoordinatorKnowsWhatIsFillingAndWhatIsStale) {
  const auto begun = begin(request_without({1}));
  ASSERT_TRUE(begun.has_value());
  Snapshot kept;
  for (const char* name : {"n1", "n2", "n3"})
    kept.nodes.push_back({test_node(name, 4), NodeService::kFull});
  const RegionInfo info = *state_.region(region_);
  kept.regions.push_back({region_, info.name, 2, kMinSlabBytes, 0});
  for (const Lease& lease : info.leases)
    kept.leases[{region_, lease.slab, number_of(lease)}] = lease;
  State again(options_of(3), kept, now_);
  EXPECT_EQ(again.check(), "");
  EXPECT_EQ(again.totals().slabs_repairing, 1U);
  EXPECT_EQ(again.totals().slabs_degraded, 1U);
  ASSERT_TRUE(again.complete_repair(now_, region_, {kSlab, name_of(begun->filling)}).has_value());
  EXPECT_EQ(again.check(), "");
  EXPECT_EQ(again.totals().slabs_degraded, 0U);
}

TEST_F(StateRepairs, DeletedRegionGivesBackWhatIsFilling) {
  ASSERT_TRUE(begin(request_without({1})).has_value());
  ASSERT_TRUE(state_.delete_region(region_).has_value());
  EXPECT_EQ(state_.revocations().size(), 3U);
}

}  // namespace
}  // namespace farpage::coordinator
