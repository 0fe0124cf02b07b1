#include "coordinator/state.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/unit/coordinator/fake_agents.h"

namespace farpage::coordinator {
namespace {

constexpr Instant kStart = Seconds(100);

StateOptions options_with(uint64_t seed) {
  StateOptions options;
  options.seed = seed;
  options.first_sequence = 1000;
  options.longest_tick = Seconds(1 << 20);  // these tests move the clock in large steps
  return options;
}

std::vector<LeaseOutcome> all_granted(const std::vector<PlannedLease>& plan) {
  std::vector<LeaseOutcome> outcomes;
  for (const PlannedLease& planned : plan) {
    LeaseOutcome outcome;
    outcome.answer = LeaseAnswer::kGranted;
    outcome.grant.bytes = kMinSlabBytes;
    outcome.grant.generation = Generation{planned.node_slab + 1};
    outcome.grant.address = RemoteAddress{4096};
    outcomes.push_back(outcome);
  }
  return outcomes;
}

class StateTest : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(state_.check(), ""); }

  RegionId region_with(uint32_t slabs, uint32_t replicas = 1) {
    const RegionId id = *state_.create_region(now_, test_region(0, replicas));
    std::vector<SlabIndex> wanted;
    for (uint32_t i = 0; i < slabs; ++i) wanted.push_back(SlabIndex{i});
    const auto plan = state_.begin_lease(now_, id, wanted, {});
    EXPECT_TRUE(plan.has_value());
    EXPECT_EQ(state_.check(), "");
    EXPECT_TRUE(state_.commit_lease(*plan, all_granted(*plan)).has_value());
    return id;
  }
  void join(const std::string& id, uint32_t slabs, uint64_t incarnation = 1) {
    ASSERT_TRUE(state_.join(now_, test_node(id, slabs, incarnation)).has_value());
  }
  std::vector<EventKind> kinds_since(uint64_t since) const {
    std::vector<EventKind> kinds;
    const EventBatch batch = state_.events().since(since);
    for (const Event& event : batch.events) kinds.push_back(event.kind);
    return kinds;
  }
  NodeState state_of(const std::string& id) const { return state_.node(now_, NodeId{id})->state; }

  Instant now_ = kStart;
  State state_{options_with(1), Snapshot{}, kStart};
};

TEST_F(StateTest, SilentNodeIsLostOnlyForPlacementAndComesBackWithItsLeases) {
  join("n1", 4);
  const RegionId region = region_with(2);
  const uint64_t before = state_.events().last();
  now_ += Seconds(5);
  state_.tick(now_);
  EXPECT_EQ(state_of("n1"), NodeState::kAlive);
  now_ += Milliseconds(1);
  state_.tick(now_);
  EXPECT_EQ(state_of("n1"), NodeState::kLost);
  EXPECT_EQ(kinds_since(before), std::vector{EventKind::kNodeLost});
  const auto leases = state_.leases(region, {SlabIndex{0}, SlabIndex{1}});
  for (const Lease& lease : *leases) EXPECT_FALSE(lease.lost);
  EXPECT_EQ(state_.begin_lease(now_, region, {SlabIndex{2}}, {}).error().code,
            ErrorCode::kExhausted);
  ASSERT_TRUE(state_.heartbeat_node(now_, NodeId{"n1"}, NodeHeartbeat{1, 2, {}}).has_value());
  EXPECT_EQ(state_of("n1"), NodeState::kAlive);
  EXPECT_EQ(kinds_since(before), (std::vector{EventKind::kNodeLost, EventKind::kNodeJoined}));
  EXPECT_EQ(state_.totals().slabs_leased, 2U);
}

TEST_F(StateTest, NewIncarnationLosesTheOldLeasesAndFreesEverySlab) {
  join("n1", 4);
  const RegionId region = region_with(2);
  const uint64_t before = state_.events().last();
  join("n1", 4, 2);
  EXPECT_EQ(kinds_since(before), (std::vector{EventKind::kNodeLost, EventKind::kLeaseLost,
                                              EventKind::kLeaseLost, EventKind::kNodeJoined}));
  const auto leases = state_.leases(region, {SlabIndex{0}, SlabIndex{1}});
  for (const Lease& lease : *leases) EXPECT_TRUE(lease.lost);
  EXPECT_EQ(state_.totals().slabs_free, 4U);
  EXPECT_EQ(state_.totals().leases_lost, 2U);
  // The old process can neither take the name again nor count as alive.
  EXPECT_EQ(state_.join(now_, test_node("n1", 4, 1)).error().code, ErrorCode::kConflict);
  EXPECT_EQ(state_.heartbeat_node(now_, NodeId{"n1"}, NodeHeartbeat{1, 0, {}}).error().code,
            ErrorCode::kNotFound);
  // Lost leases are released without a request to a node.
  ASSERT_TRUE(state_.release(region, {SlabIndex{0}, SlabIndex{1}}).has_value());
  EXPECT_TRUE(state_.revocations().empty());
}

TEST_F(StateTest, SameIncarnationKeepsItsLeasesAndMayMove) {
  join("n1", 4);
  region_with(2);
  NodeJoin moved = test_node("n1", 4);
  moved.agent_url = "http://elsewhere:1";
  EXPECT_EQ(*state_.join(now_, moved), false);
  EXPECT_EQ(state_.node(now_, NodeId{"n1"})->join.agent_url, "http://elsewhere:1");
  EXPECT_EQ(state_.totals().slabs_leased, 2U);
  NodeJoin other = test_node("n1", 4);
  other.slab_bytes *= 2;
  EXPECT_EQ(state_.join(now_, other).error().code, ErrorCode::kConflict);
}

TEST_F(StateTest, DrainingNodeLendsNothingNewAndStaysDrainingAfterSilence) {
  join("n1", 4);
  const RegionId region = region_with(1);
  ASSERT_TRUE(state_.set_service(NodeId{"n1"}, NodeService::kDraining).has_value());
  EXPECT_EQ(state_of("n1"), NodeState::kDraining);
  EXPECT_FALSE(state_.begin_lease(now_, region, {SlabIndex{1}}, {}).has_value());
  now_ += Seconds(6);
  state_.tick(now_);
  EXPECT_EQ(state_of("n1"), NodeState::kLost);
  ASSERT_TRUE(state_.heartbeat_node(now_, NodeId{"n1"}, NodeHeartbeat{1, 3, {}}).has_value());
  EXPECT_EQ(state_of("n1"), NodeState::kDraining);
}

TEST_F(StateTest, SilentRegionIsDeletedAndItsSlabsAreRevoked) {
  join("n1", 4);
  const RegionId region = region_with(2);
  now_ += Seconds(60);
  state_.tick(now_);
  EXPECT_TRUE(state_.region(region).has_value());
  now_ += Milliseconds(1);
  state_.tick(now_);
  EXPECT_FALSE(state_.region(region).has_value());
  ASSERT_EQ(state_.revocations().size(), 2U);
  EXPECT_EQ(state_.totals().slabs_revoking, 2U);
  for (const Revocation& revocation : state_.revocations()) {
    EXPECT_EQ(revocation.generation.value, revocation.node_slab + 1);
    state_.revoked(revocation.id, false);
  }
  EXPECT_EQ(state_.totals().slabs_unavailable, 4U) << "the node is silent, too";
}

TEST_F(StateTest, SlabIsNotLentAgainBeforeTheNodeConfirmsTheRevocation) {
  join("n1", 1);
  const RegionId region = region_with(1);
  ASSERT_TRUE(state_.release(region, {SlabIndex{0}}).has_value());
  EXPECT_FALSE(state_.begin_lease(now_, region, {SlabIndex{0}}, {}).has_value());
  state_.revoked(state_.revocations().at(0).id, false);
  const auto plan = state_.begin_lease(now_, region, {SlabIndex{0}}, {});
  ASSERT_TRUE(plan.has_value());
  EXPECT_TRUE(state_.commit_lease(*plan, all_granted(*plan)).has_value());
}

// The node scrubs it first, and its next borrower would wait for that.
TEST_F(StateTest, SlabThatCameBackLastIsLentLast) {
  join("n1", 3);
  const RegionId region = region_with(1);
  ASSERT_TRUE(state_.release(region, {SlabIndex{0}}).has_value());
  state_.revoked(state_.revocations().at(0).id, false);
  std::vector<uint32_t> order;
  const auto plan =
      state_.begin_lease(now_, region, {SlabIndex{0}, SlabIndex{1}, SlabIndex{2}}, {});
  ASSERT_TRUE(plan.has_value());
  for (const PlannedLease& planned : *plan) order.push_back(planned.node_slab);
  EXPECT_EQ(order, (std::vector<uint32_t>{1, 2, 0}));
  EXPECT_TRUE(state_.commit_lease(*plan, all_granted(*plan)).has_value());
}

TEST_F(StateTest, OneRefusalUndoesTheWholeRequest) {
  join("n1", 4);
  const RegionId region = *state_.create_region(now_, test_region(0));
  const auto plan = state_.begin_lease(
      now_, region, {SlabIndex{0}, SlabIndex{1}, SlabIndex{2}, SlabIndex{3}}, {});
  auto outcomes = all_granted(*plan);
  outcomes[1].answer = LeaseAnswer::kUnknown;
  outcomes[2].answer = LeaseAnswer::kForeign;
  outcomes[3].answer = LeaseAnswer::kRefused;
  EXPECT_EQ(state_.commit_lease(*plan, outcomes).error().code, ErrorCode::kUnavailable);
  EXPECT_TRUE(state_.region(region)->leases.empty());
  const Totals totals = state_.totals();
  EXPECT_EQ(totals.slabs_revoking, 2U);  // one granted, one unknown
  EXPECT_EQ(totals.slabs_foreign, 1U);
  EXPECT_EQ(totals.slabs_free, 1U);
  EXPECT_EQ(totals.slabs_placing, 0U);
  EXPECT_EQ(state_.revocations().at(0).generation.value, plan->at(0).node_slab + 1);
  EXPECT_EQ(state_.revocations().at(1).generation.value, 0U);
}

TEST_F(StateTest, NodeThatRestartsDuringARequestSpoilsIt) {
  join("n1", 2);
  join("n2", 2);
  const RegionId region = *state_.create_region(now_, test_region(0, 2));
  const auto plan = state_.begin_lease(now_, region, {SlabIndex{0}}, {});
  join("n2", 2, 2);
  EXPECT_EQ(state_.commit_lease(*plan, all_granted(*plan)).error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(state_.totals().slabs_free, 3U);
  EXPECT_EQ(state_.totals().slabs_revoking, 1U);
}

TEST_F(StateTest, RegionDeletedDuringARequestGetsNothing) {
  join("n1", 2);
  const RegionId region = *state_.create_region(now_, test_region(0));
  const auto plan = state_.begin_lease(now_, region, {SlabIndex{0}}, {});
  ASSERT_TRUE(state_.delete_region(region).has_value());
  EXPECT_EQ(state_.commit_lease(*plan, all_granted(*plan)).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(state_.revocations().size(), 1U);
}

TEST_F(StateTest, SlabsOfADrainingNodeAreNotFree) {
  join("n1", 2);
  join("n2", 3);
  ASSERT_TRUE(state_.set_service(NodeId{"n2"}, NodeService::kDraining).has_value());
  EXPECT_EQ(state_.totals().slabs, 5U);
  EXPECT_EQ(state_.totals().slabs_free, 2U);
  EXPECT_EQ(state_.totals().slabs_unavailable, 3U);
  EXPECT_EQ(state_.totals().bytes_free, 2 * test_node("n1", 2).slab_bytes);
}

TEST_F(StateTest, ForeignSlabIsTriedAgainLater) {
  join("n1", 1);
  const RegionId region = *state_.create_region(now_, test_region(0));
  const auto plan = state_.begin_lease(now_, region, {SlabIndex{0}}, {});
  auto outcomes = all_granted(*plan);
  outcomes[0].answer = LeaseAnswer::kForeign;
  EXPECT_FALSE(state_.commit_lease(*plan, outcomes).has_value());
  EXPECT_EQ(state_.totals().slabs_free, 0U);
  now_ += Seconds(61);
  state_.tick(now_);
  EXPECT_EQ(state_.totals().slabs_unavailable, 1U) << "the node is silent";
}

TEST_F(StateTest, RemovedNodeLeavesRevocationsThatBelongToNobody) {
  join("n1", 2);
  const RegionId region = region_with(2);
  EXPECT_EQ(state_.remove_node(NodeId{"n1"}, false).error().code, ErrorCode::kConflict);
  ASSERT_TRUE(state_.remove_node(NodeId{"n1"}, true).has_value());
  EXPECT_EQ(state_.revocations().size(), 2U);
  const auto info = state_.region(region);
  for (const Lease& lease : info->leases) EXPECT_TRUE(lease.lost);
  for (const Revocation& revocation : state_.revocations()) state_.revoked(revocation.id, false);
  EXPECT_TRUE(state_.revocations().empty());
}

TEST_F(StateTest, LimitsAreKept) {
  StateOptions options = options_with(1);
  options.max_nodes = 1;
  options.max_regions = 1;
  State state(options, Snapshot{}, now_);
  ASSERT_TRUE(state.join(now_, test_node("n1", 1)).has_value());
  EXPECT_EQ(state.join(now_, test_node("n2", 1)).error().code, ErrorCode::kExhausted);
  EXPECT_TRUE(state.join(now_, test_node("n1", 1, 2)).has_value());
  ASSERT_TRUE(state.create_region(now_, test_region(0)).has_value());
  EXPECT_EQ(state.create_region(now_, test_region(0)).error().code, ErrorCode::kExhausted);
  EXPECT_EQ(state.heartbeat_node(now_, NodeId{"n1"}, NodeHeartbeat{2, 2, {}}).error().code,
            ErrorCode::kNotFound);  // it joins again
}

TEST_F(StateTest, ChangesBuildTheSameStateAgain) {
  Changes all;
  join("n1", 4);
  join("n2", 4);
  const RegionId region = region_with(2, 2);
  all.add(state_.take_changes());
  const auto unanswered = state_.begin_lease(now_, region, {SlabIndex{7}}, {});
  all.add(state_.take_changes());
  Snapshot snapshot;
  for (const auto& [id, record] : all.nodes) snapshot.nodes.push_back(*record);
  for (const auto& [id, record] : all.regions) snapshot.regions.push_back(*record);
  for (const auto& [key, lease] : all.leases) snapshot.leases.emplace(key, *lease);
  for (const auto& [id, revocation] : all.revocations)
    if (revocation) snapshot.revocations.push_back(*revocation);
  snapshot.last_sequence = all.last_sequence;
  const Instant later = now_ + Seconds(10000);
  State restored(options_with(2), snapshot, later);
  EXPECT_EQ(restored.check(), "");
  restored.tick(later + Seconds(4));
  EXPECT_EQ(restored.totals().nodes_alive, 2U);  // a full grace period
  EXPECT_EQ(restored.region(region)->leases.size(), 4U);
  EXPECT_EQ(restored.totals().slabs_leased, 4U);
  EXPECT_EQ(restored.revocations().size(), 2U);  // requested, never answered
  EXPECT_EQ(restored.events().last(), all.last_sequence);
  EXPECT_TRUE(restored.events().since(0).missed);
  EXPECT_FALSE(restored.events().since(all.last_sequence).missed);
  const auto outcomes = std::vector<LeaseOutcome>(unanswered->size());
  EXPECT_FALSE(state_.commit_lease(*unanswered, outcomes).has_value());
}

TEST_F(StateTest, SnapshotThatDoesNotFitTogetherIsRepaired) {
  Snapshot snapshot;
  snapshot.regions.push_back(RegionRecord{RegionId{"r"}, "r", 1, kMinSlabBytes});
  Lease lease;
  lease.node = NodeId{"unknown"};
  lease.bytes = kMinSlabBytes;
  snapshot.leases.emplace(LeaseKey{RegionId{"r"}, SlabIndex{0}, 0}, lease);
  snapshot.leases.emplace(LeaseKey{RegionId{"gone"}, SlabIndex{0}, 0}, lease);
  State state(options_with(1), snapshot, now_);
  EXPECT_EQ(state.check(), "");
  EXPECT_TRUE(state.region(RegionId{"r"})->leases.at(0).lost);
  EXPECT_EQ(state.take_changes().leases.size(), 2U);
}

// Random commands in random order; the invariants hold after each.
class StateWalk {
 public:
  explicit StateWalk(uint64_t seed)
      : random_(seed), state_(options_with(seed), Snapshot{}, kStart) {}

  void step() {
    ++steps_;
    now_ += Milliseconds(static_cast<int64_t>(below(400)));
    const std::string id = "n" + std::to_string(below(5));
    switch (below(18)) {
      case 0:
        static_cast<void>(state_.join(now_, test_node(id, 6, 1 + steps_ / 100 + below(2))));
        break;
      case 1:
        static_cast<void>(state_.remove_node(NodeId{id}, below(2) == 0));
        break;
      case 2:
        if (below(8) == 0)
          static_cast<void>(state_.set_service(NodeId{id}, NodeService::kDraining));
        break;
      case 3:
      case 4:
        for (const NodeInfo& node : state_.nodes(now_))
          if (below(4) != 0)
            static_cast<void>(state_.heartbeat_node(now_, node.join.id,
                                                    NodeHeartbeat{node.join.incarnation, 0, {}}));
        break;
      case 5:
        if (const auto region =
                state_.create_region(now_, test_region(0, static_cast<uint32_t>(1 + below(3)))))
          regions_.push_back(*region);
        break;
      case 6:
        state_.tick(now_);
        break;
      case 7:
        if (!regions_.empty() && below(4) == 0) static_cast<void>(state_.delete_region(some()));
        break;
      case 8:
        if (!regions_.empty())
          static_cast<void>(state_.release(some(), {SlabIndex{static_cast<uint32_t>(below(4))}}));
        break;
      case 9:
        for (const Revocation& revocation : state_.revocations())
          if (below(2) == 0) state_.revoked(revocation.id, below(10) == 0);
        break;
      case 10:
        begin();
        break;
      case 11:
      case 12:
        image();
        break;
      case 13:
        if (below(4) == 0)
          static_cast<void>(state_.lend(now_, NodeId{id}, {(1 + below(12)) * kMinSlabBytes}));
        break;
      case 14:
        for (LendStep& step : state_.begin_lend_steps()) lending_.push_back(std::move(step));
        break;
      case 15:
        end_lending();
        break;
      case 16:
        static_cast<void>(state_.rebalance(
            {static_cast<uint32_t>(1 + below(20)), static_cast<uint32_t>(1 + below(4))}));
        break;
      default:
        commit();
    }
  }
  std::string check() const { return state_.check(); }
  uint64_t leased() const { return leased_; }
  uint64_t completed() const { return completed_; }
  uint64_t changed() const { return changed_; }

 private:
  uint64_t below(uint64_t bound) { return random_() % bound; }
  RegionId some() { return regions_[below(regions_.size())]; }

  void image() {
    const ImageId name{"i" + std::to_string(below(6))};
    const ImageReader reader{"r" + std::to_string(below(3))};
    const auto known = state_.image(name);
    switch (below(6)) {
      case 0: {
        const ImageCreate create{
            .name = name,
            .base = ImageId{below(2) == 0 ? "" : "i" + std::to_string(below(6))},
            .bytes = kPageBytes,
            .replicas = 1,
            .slab_bytes = kMinSlabBytes};
        if (const auto made = state_.create_image(now_, create)) regions_.push_back(made->region);
        break;
      }
      case 1:
        if (known)
          static_cast<void>(state_.checkpoint_image(name, {known->upload - below(2), 1, "1"}));
        break;
      case 2:
        if (known && state_.complete_image(name, {known->upload, 1, "1"})) ++completed_;
        break;
      case 3:
        static_cast<void>(state_.remove_image(name, below(2) == 0));
        break;
      case 4:
        static_cast<void>(state_.open_image(now_, name, reader));
        break;
      default:
        static_cast<void>(state_.close_reader(name, reader));
    }
  }
  void begin() {
    if (regions_.empty()) return;
    const auto first = static_cast<uint32_t>(below(4));
    auto plan = state_.begin_lease(now_, some(), {SlabIndex{first}, SlabIndex{first + 1}}, {});
    if (plan && !plan->empty()) open_.push_back(std::move(*plan));
  }
  void end_lending() {
    if (lending_.empty()) return;
    constexpr ErrorCode kAnswers[] = {ErrorCode::kUnavailable, ErrorCode::kTimedOut,
                                      ErrorCode::kConflict, ErrorCode::kExhausted};
    const bool well = below(4) != 0;
    state_.end_lend_step(lending_.back(),
                         well ? Status() : Status(fail(kAnswers[below(4)], "a reason")));
    changed_ += well ? lending_.back().add.size() + lending_.back().withdraw.size() : 0;
    lending_.pop_back();
  }
  void commit() {
    if (open_.empty()) return;
    const size_t which = below(open_.size());
    auto outcomes = all_granted(open_[which]);
    if (below(3) == 0)
      for (LeaseOutcome& outcome : outcomes) outcome.answer = static_cast<LeaseAnswer>(below(5));
    if (state_.commit_lease(open_[which], outcomes)) leased_ += outcomes.size();
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(which));
  }

  std::mt19937_64 random_;
  Instant now_ = kStart;
  uint64_t steps_ = 0;
  State state_;
  std::vector<RegionId> regions_;
  std::vector<std::vector<PlannedLease>> open_;
  std::vector<LendStep> lending_;
  uint64_t leased_ = 0;
  uint64_t completed_ = 0;
  uint64_t changed_ = 0;
};

TEST(State, InvariantsHoldOnRandomWalks) {
  uint64_t leased = 0;
  uint64_t completed = 0;
  uint64_t changed = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    StateWalk walk(seed);
    for (int i = 0; i < 1000; ++i) {
      walk.step();
      ASSERT_EQ(walk.check(), "") << "seed " << seed << " step " << i;
    }
    leased += walk.leased();
    completed += walk.completed();
    changed += walk.changed();
  }
  // Else the walks tested nothing.
  EXPECT_GT(leased, 500U);
  EXPECT_GT(completed, 100U);
  EXPECT_GT(changed, 200U);
}

}  // namespace
}  // namespace farpage::coordinator
