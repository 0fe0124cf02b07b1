// When the coordinator reclaims a silent region, and when it keeps it.
#include <gtest/gtest.h>

#include "coordinator/state.h"
#include "tests/unit/coordinator/fake_agents.h"

namespace farpage::coordinator {
namespace {

constexpr uint32_t kGroup = 0xbeef;

// Two nodes, n1 and n2, each with a replica of the region's one slab. The region never sends a
// heartbeat; time passes in seconds, with a tick at each, and the nodes report the given sessions.
class StateSilenceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* id : {"n1", "n2"})
      ASSERT_TRUE(state_.join(now_, test_node(id, 4)).has_value());
    region_ = *region_of(kGroup);
  }
  void TearDown() override { EXPECT_EQ(state_.check(), ""); }

  Result<RegionId> region_of(uint32_t group) {
    RegionCreate create = test_region(0, 2);
    create.session_group = group;
    FARPAGE_TRY(region, state_.create_region(now_, create));
    FARPAGE_TRY(plan, state_.begin_lease(now_, region, {SlabIndex{0}}, {}));
    std::vector<LeaseOutcome> outcomes(plan.size());
    for (size_t i = 0; i < plan.size(); ++i) {
      outcomes[i].answer = LeaseAnswer::kGranted;
      outcomes[i].grant.bytes = kMinSlabBytes;
      outcomes[i].grant.generation = Generation{1};
    }
    FARPAGE_TRY_VOID(state_.commit_lease(plan, outcomes));
    return region;
  }
  void hear(const std::string& node, std::vector<uint32_t> groups) {
    NodeHeartbeat heartbeat{1, 3, {}};
    heartbeat.session_groups = std::move(groups);
    ASSERT_TRUE(state_.heartbeat_node(now_, NodeId{node}, heartbeat).has_value());
  }
  // `talking`: the nodes that send heartbeats meanwhile, with the groups of their sessions.
  void pass(int seconds, const std::map<std::string, std::vector<uint32_t>>& talking) {
    for (int i = 0; i < seconds; ++i) {
      now_ += Seconds(1);
      for (const auto& [node, groups] : talking) hear(node, groups);
      state_.tick(now_);
    }
  }
  bool is_kept() const { return state_.region(region_).has_value(); }

  Instant now_ = Seconds(100);
  State state_{StateOptions{}, Snapshot{}, now_};
  RegionId region_;
};

TEST_F(StateSilenceTest, RegionWithADataSessionAtOneOfItsNodesIsKept) {
  pass(100000, {{"n1", {}}, {"n2", {1, kGroup}}});
  EXPECT_TRUE(is_kept());
}

TEST_F(StateSilenceTest, RegionIsTakenBackAfterItsTimeWithoutAnySession) {
  pass(1000, {{"n1", {kGroup}}, {"n2", {}}});
  pass(60, {{"n1", {}}, {"n2", {7}}});
  EXPECT_TRUE(is_kept());
  pass(1, {{"n1", {}}, {"n2", {7}}});
  EXPECT_FALSE(is_kept());
  EXPECT_EQ(state_.revocations().size(), 2U);
}

TEST_F(StateSilenceTest, RegionWithoutASessionGroupIsKeptByItsHeartbeatsAlone) {
  const RegionId other = *region_of(0);
  pass(60, {{"n1", {0, kGroup}}, {"n2", {}}});
  EXPECT_TRUE(state_.region(other).has_value());
  pass(1, {{"n1", {0, kGroup}}, {"n2", {}}});
  EXPECT_FALSE(state_.region(other).has_value());
  EXPECT_TRUE(is_kept());
}

TEST_F(StateSilenceTest, SilentNodeMayHaveASessionForAWhileAndNotForEver) {
  pass(1, {{"n1", {}}, {"n2", {kGroup}}});
  pass(600, {{"n1", {}}});
  EXPECT_TRUE(is_kept());
  pass(70, {{"n1", {}}});
  EXPECT_FALSE(is_kept());
}

TEST_F(StateSilenceTest, CoordinatorThatHearsNoNodeTakesNothingBack) {
  pass(100000, {});
  EXPECT_TRUE(is_kept());
  pass(5, {{"n1", {kGroup}}, {"n2", {kGroup}}});
  EXPECT_TRUE(is_kept());
}

TEST_F(StateSilenceTest, CoordinatorThatWasStoppedTakesNothingBackAndLosesNoNode) {
  pass(1, {{"n1", {}}, {"n2", {}}});
  for (int i = 0; i < 5; ++i) {
    now_ += Seconds(3600);
    state_.tick(now_);
    EXPECT_TRUE(is_kept());
    EXPECT_EQ(state_.totals().nodes_alive, 2U);
  }
  pass(60, {{"n1", {}}, {"n2", {}}});
  EXPECT_TRUE(is_kept()) << "the whole time counts anew";
  pass(1, {{"n1", {}}, {"n2", {}}});
  EXPECT_FALSE(is_kept());
}

TEST_F(StateSilenceTest, RestartedCoordinatorWaitsUntilItsNodesHaveReported) {
  const Changes changes = state_.take_changes();
  Snapshot snapshot;
  for (const auto& [id, record] : changes.nodes) snapshot.nodes.push_back(*record);
  for (const auto& [id, record] : changes.regions) snapshot.regions.push_back(*record);
  for (const auto& [key, lease] : changes.leases) snapshot.leases.emplace(key, *lease);
  snapshot.last_sequence = changes.last_sequence;
  State restarted(StateOptions{}, snapshot, now_);
  NodeHeartbeat heartbeat{1, 3, {}};
  heartbeat.session_groups = {kGroup};
  for (int i = 0; i < 1000; ++i) {
    now_ += Seconds(1);
    ASSERT_TRUE(restarted.heartbeat_node(now_, NodeId{"n1"}, heartbeat).has_value());
    restarted.tick(now_);
  }
  EXPECT_TRUE(restarted.region(region_).has_value()) << "the session group is in the store";
}

}  // namespace
}  // namespace farpage::coordinator
