// Which node is asked to copy an image, and when.
#include <algorithm>
#include <set>

#include "tests/unit/coordinator/state_rig.h"

namespace farpage::coordinator {
namespace {

class StateImages : public StateRig {
 protected:
  StateImages() : StateRig(options_of(5)) {
    for (const char* name : {"n1", "n2", "n3"})
      EXPECT_TRUE(state_.join(now_, test_node(name, 8)).has_value());
    push("vm");
  }
  void push(const std::string& name, bool complete = true) {
    const auto image = state_.create_image(now_, {.name = ImageId{name},
                                                  .base = {},
                                                  .bytes = 8 * kPageBytes,
                                                  .replicas = 2,
                                                  .slab_bytes = kMinSlabBytes});
    ASSERT_TRUE(image.has_value());
    ASSERT_TRUE(lease(image->region, 1).has_value());
    if (complete) {
      ASSERT_TRUE(state_.complete_image(ImageId{name}, {image->upload, 7, "ab"}).has_value());
    }
  }
  RegionId region() const { return state_.image(ImageId{"vm"})->region; }
  // The node with a replica of it.
  NodeId holder() const { return state_.region(region())->leases.front().node; }
  void pass(Nanoseconds time) {
    now_ += time;
    for (const NodeInfo& node : state_.nodes(now_))
      if (silent_.count(node.join.id.value) == 0) {
        EXPECT_TRUE(state_.heartbeat_node(now_, node.join.id, NodeHeartbeat{1, 7, {}}).has_value());
      }
    state_.tick(now_);
    EXPECT_EQ(state_.check(), "");
  }
  // Who is asked in the next so many rounds.
  std::set<std::string> asked(int rounds) {
    std::set<std::string> nodes;
    for (int i = 0; i < rounds; ++i) {
      pass(Seconds(5));
      for (const ImageRepair& repair : state_.begin_image_repairs()) {
        EXPECT_EQ(repair.image.value, "vm");
        nodes.insert(repair.node.value);
      }
      EXPECT_TRUE(state_.begin_image_repairs().empty()) << "not more often";
    }
    return nodes;
  }

  // It is asked less and less often.
  ImageRepair next() {
    for (int i = 0; i < 20; ++i) {
      pass(Seconds(5));
      const std::vector<ImageRepair> repairs = state_.begin_image_repairs();
      if (!repairs.empty()) return repairs.front();
    }
    ADD_FAILURE() << "nobody is asked";
    return {};
  }

  std::set<std::string> silent_;
};

TEST_F(StateImages, NobodyIsAskedWhileTheyLackNothing) {
  EXPECT_TRUE(asked(3).empty());
}

TEST_F(StateImages, OneThatIsUploadingIsNotCopied) {
  push("begun", false);
  ASSERT_TRUE(state_.set_service(holder(), NodeService::kDraining).has_value());
  EXPECT_EQ(asked(3).size(), 1U) << "for the other one";
}

TEST_F(StateImages, TheSameNodeIsAskedUntilAllIsCopied) {
  const NodeId drained = holder();
  ASSERT_TRUE(state_.set_service(drained, NodeService::kDraining).has_value());
  const std::set<std::string> first = asked(4);
  ASSERT_EQ(first.size(), 1U);
  EXPECT_EQ(first.count(drained.value), 0U);
  const auto plan = state_.begin_repair(now_, region(), repair_of(region(), SlabIndex{0}), {});
  ASSERT_TRUE(plan.has_value()) << plan.error().message();
  ASSERT_TRUE(state_.commit_lease(*plan, granted(*plan)).has_value());
  EXPECT_EQ(asked(20), first) << "it fills one";
  const auto begun = state_.repair_begun(region(), SlabIndex{0});
  ASSERT_TRUE(begun.has_value());
  ASSERT_TRUE(
      state_.complete_repair(now_, region(), {SlabIndex{0}, name_of(begun->filling)}).has_value());
  EXPECT_TRUE(asked(3).empty());
}

TEST_F(StateImages, AnotherNodeIsAskedWhenOneIsLostOrRefusesOrDoesNothing) {
  silent_.insert(holder().value);
  pass(Seconds(6));
  const ImageRepair first = next();
  EXPECT_NE(first.node.value, *silent_.begin());
  EXPECT_EQ(next().node, first.node);
  EXPECT_EQ(next().node, first.node);
  const ImageRepair second = next();
  EXPECT_NE(second.node, first.node) << "that one has copied nothing";
  state_.refuse_image_repair(second);
  EXPECT_EQ(next().node, first.node);
  silent_ = {"n1", "n2", "n3"};
  pass(Seconds(6));
  EXPECT_TRUE(asked(20).empty());
}

TEST_F(StateImages, NobodyIsAskedWhileNoNodeHasRoom) {
  for (const NodeInfo& node : state_.nodes(now_)) {
    const std::vector<Lease> leases = state_.region(region())->leases;
    const bool holds =
        std::ranges::any_of(leases, [&](const Lease& lease) { return lease.node == node.join.id; });
    if (!holds) {
      ASSERT_TRUE(state_.set_service(node.join.id, NodeService::kCordoned).has_value());
    }
  }
  ASSERT_TRUE(state_.set_service(holder(), NodeService::kDraining).has_value());
  EXPECT_TRUE(asked(5).empty());
  ASSERT_TRUE(state_.join(now_, test_node("n4", 8)).has_value());
  EXPECT_EQ(asked(2).size(), 1U);
}

}  // namespace
}  // namespace farpage::coordinator
