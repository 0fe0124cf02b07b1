// Which node is asked to copy an image, and when.
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
      state_.complete_repair(region(), {SlabIndex{0}, name_of(begun->filling)}).has_value());
  EXPECT_TRUE(asked(3).empty());
}

TEST_F(StateImages, AnotherNodeIsAskedWhenOneIsLostOrRefusesOrDoesNothing) {
  silent_.insert(holder().value);
  pass(Seconds(6));
  const std::set<std::string> first = asked(4);
  ASSERT_EQ(first.size(), 1U);
  EXPECT_EQ(first.count(*silent_.begin()), 0U);

  pass(Seconds(5));
  const std::vector<ImageRepair> refused = state_.begin_image_repairs();
  ASSERT_EQ(refused.size(), 1U);
  state_.refuse_image_repair(refused.front());
  const std::set<std::string> second = asked(4);
  ASSERT_EQ(second.size(), 1U);
  EXPECT_NE(second, first);

  EXPECT_EQ(asked(4).size(), 2U) << "it has copied nothing for 30 s";
  silent_.insert(*first.begin());
  silent_.insert(*second.begin());
  EXPECT_LE(asked(2).size(), 1U);
  EXPECT_TRUE(asked(2).empty()) << "nobody is left";
}

}  // namespace
}  // namespace farpage::coordinator
