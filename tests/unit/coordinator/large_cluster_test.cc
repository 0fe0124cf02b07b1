// The largest number of nodes in a cluster.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "coordinator/api_json.h"
#include "coordinator/state.h"
#include "http/caller.h"
#include "tests/unit/coordinator/fake_agents.h"

namespace farpage::coordinator {
namespace {

constexpr uint32_t kNodes = 4096;
constexpr uint32_t kSlabsOfANode = 4;
constexpr uint32_t kBatch = 16;  // slabs of a lease request

std::string name_of(uint32_t node) {
  return "n" + std::to_string(node);
}

class LargeCluster : public ::testing::Test {
 protected:
  void SetUp() override {
    for (uint32_t i = 0; i < kNodes; ++i)
      ASSERT_TRUE(state_.join(now_, test_node(name_of(i), kSlabsOfANode)).has_value()) << i;
  }
  void TearDown() override { EXPECT_EQ(state_.check(), ""); }

  Status lease(const RegionId& region, uint32_t first) {
    std::vector<SlabIndex> slabs;
    for (uint32_t i = 0; i < kBatch; ++i) slabs.push_back(SlabIndex{first + i});
    FARPAGE_TRY(plan, state_.begin_lease(now_, region, slabs, {}));
    std::vector<LeaseOutcome> outcomes(plan.size());
    for (LeaseOutcome& outcome : outcomes) {
      outcome.answer = LeaseAnswer::kGranted;
      outcome.grant.bytes = kMinSlabBytes;
      outcome.grant.generation = Generation{1};
    }
    return state_.commit_lease(plan, outcomes);
  }

  Instant now_ = Seconds(100);
  // The clock moves in large steps here.
  State state_{StateOptions{.longest_tick = Seconds(1 << 20), .seed = 1, .first_sequence = 1000},
               Snapshot{}, now_};
};

TEST_F(LargeCluster, TakesNoNodeMore) {
  const auto refused = state_.join(now_, test_node("one-too-many", 1));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
  EXPECT_TRUE(state_.join(now_, test_node(name_of(0), 1, 2)).has_value()) << "a known one may";
}

TEST_F(LargeCluster, LendsEverySlabOnceAndGetsAllBack) {
  const RegionId region = *state_.create_region(now_, test_region(0));
  for (uint32_t first = 0; first < kNodes * kSlabsOfANode; first += kBatch) {
    const Status leased = lease(region, first);
    ASSERT_TRUE(leased.has_value()) << first << ": " << leased.error().message();
  }
  EXPECT_EQ(state_.totals().slabs_leased, kNodes * kSlabsOfANode);
  EXPECT_EQ(state_.totals().slabs_free, 0U);
  EXPECT_EQ(state_.check(), "");
  EXPECT_EQ(lease(region, kNodes * kSlabsOfANode).error().code, ErrorCode::kExhausted);
  ASSERT_TRUE(state_.delete_region(region).has_value());
  EXPECT_EQ(state_.totals().leases, 0U);
  for (const Revocation& revocation : state_.revocations()) state_.revoked(revocation.id, false);
  EXPECT_EQ(state_.totals().slabs_free, kNodes * kSlabsOfANode);
}

TEST_F(LargeCluster, SpreadsARegionOverItsNodes) {
  const RegionId region = *state_.create_region(now_, test_region(0, 3));
  for (uint32_t first = 0; first < kNodes; first += kBatch)
    ASSERT_TRUE(lease(region, first).has_value()) << first;
  std::map<NodeId, uint32_t> lent;
  const auto info = state_.region(region);
  for (const Lease& lease : info->leases) ++lent[lease.node];
  // Three slabs per node on average.
  EXPECT_GT(lent.size(), size_t{kNodes} * 95 / 100);
}

TEST_F(LargeCluster, EventsOfAllNodesThatAreLostAndComeBackAreKept) {
  const uint64_t before = state_.events().last();
  now_ += Seconds(60);
  state_.tick(now_);
  EXPECT_EQ(state_.totals().nodes_lost, kNodes);
  for (uint32_t i = 0; i < kNodes; ++i)
    ASSERT_TRUE(state_.heartbeat_node(now_, NodeId{name_of(i)}, NodeHeartbeat{1, 4, {}}));
  EXPECT_EQ(state_.totals().nodes_alive, kNodes);
  const EventBatch batch = state_.events().since(before);
  EXPECT_FALSE(batch.missed);
  EXPECT_EQ(batch.events.size(), size_t{2} * kNodes);
}

// A replaced node cannot join again, however many nodes were replaced after it.
TEST_F(LargeCluster, NoNodeThatWasReplacedJoinsAgain) {
  for (uint32_t i = 0; i < kNodes; ++i)
    ASSERT_TRUE(state_.join(now_, test_node(name_of(i), kSlabsOfANode, 2)).has_value());
  EXPECT_EQ(state_.join(now_, test_node(name_of(0), kSlabsOfANode, 1)).error().code,
            ErrorCode::kConflict);
}

TEST_F(LargeCluster, ListOfItsNodesWithManyCountersFitsIntoAnAnswer) {
  NodeHeartbeat heartbeat{1, 4, {}};
  for (int i = 0; i < 50; ++i)
    heartbeat.counters["farpage_node_some_events_total{transport=\"tcp\",kind=\"" +
                       std::to_string(i) + "\"}"] = ~uint64_t{0};
  for (uint32_t i = 0; i < kNodes; ++i)
    ASSERT_TRUE(state_.heartbeat_node(now_, NodeId{name_of(i)}, heartbeat).has_value());
  const std::string answer = encode(state_.nodes(now_));
  EXPECT_LT(answer.size(), http::kMaxAnswerBytes / 2);
  const auto nodes = decode_node_list(answer);
  ASSERT_TRUE(nodes.has_value()) << nodes.error().message();
  EXPECT_EQ(nodes->size(), size_t{kNodes});
}

}  // namespace
}  // namespace farpage::coordinator
