#include "coordinator/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace farpage::coordinator {
namespace {

TEST(Placement, ReplicasAreOnDistinctNodesWithinTheirFreeSlabs) {
  Placement placement(42);
  const std::vector<uint32_t> free{5, 3, 7, 1};
  for (int round = 0; round < 200; ++round) {
    const auto choices = placement.place(free, 5, 2);
    ASSERT_TRUE(choices.has_value());
    std::vector<uint32_t> used(free.size(), 0);
    for (const auto& nodes : *choices) {
      EXPECT_EQ(std::set<size_t>(nodes.begin(), nodes.end()).size(), 2U);
      for (const size_t node : nodes) ++used[node];
    }
    for (size_t node = 0; node < free.size(); ++node) EXPECT_LE(used[node], free[node]);
  }
}

TEST(Placement, FindsTheOnlyPlacementThatThereIs) {
  // Every slab needs node 0: random choices alone would often miss it.
  Placement placement(42);
  for (int round = 0; round < 100; ++round)
    EXPECT_TRUE(placement.place({4, 1, 1, 1, 1}, 4, 2).has_value());
}

TEST(Placement, SaysNoWhenThereIsNone) {
  Placement placement(42);
  EXPECT_FALSE(placement.place({}, 1, 1).has_value());
  EXPECT_FALSE(placement.place({100}, 1, 2).has_value());
  EXPECT_FALSE(placement.place({2, 1}, 4, 1).has_value());
  EXPECT_FALSE(placement.place({9, 1}, 2, 2).has_value());
  EXPECT_TRUE(placement.place({}, 0, 1).has_value());
}

TEST(Placement, TwoChoicesKeepEqualNodesNearlyEqual) {
  Placement placement(42);
  std::vector<uint32_t> free(10, 1000);
  const auto choices = placement.place(free, 5000, 1);
  ASSERT_TRUE(choices.has_value());
  for (const auto& nodes : *choices) --free[nodes[0]];
  const auto [least, most] = std::minmax_element(free.begin(), free.end());
  EXPECT_LE(*most - *least, 20U);  // one choice alone would differ by some 70
}

TEST(Placement, EachSlabOfThousandsOfNodesIsChosenOnce) {
  Placement placement(42);
  const std::vector<uint32_t> free(4096, 2);
  const auto choices = placement.place(free, 2730, 3);  // all slabs but two
  ASSERT_TRUE(choices.has_value());
  std::vector<uint32_t> used(free.size(), 0);
  for (const auto& nodes : *choices) {
    EXPECT_EQ(std::set<size_t>(nodes.begin(), nodes.end()).size(), 3U);
    for (const size_t node : nodes) ++used[node];
  }
  EXPECT_LE(*std::max_element(used.begin(), used.end()), 2U);
}

TEST(Placement, ReplicasAreInDistinctDomains) {
  Placement placement(42);
  const std::vector<uint32_t> free{4, 4, 4, 4, 8};
  const std::vector<uint32_t> domains{0, 0, 1, 1, 2};
  for (int round = 0; round < 200; ++round) {
    const auto choices = placement.place(free, 8, 3, domains);  // all that there is
    ASSERT_TRUE(choices.has_value());
    std::vector<uint32_t> used(free.size(), 0);
    for (const auto& nodes : *choices) {
      std::set<uint32_t> seen;
      for (const size_t node : nodes) {
        seen.insert(domains[node]);
        ++used[node];
      }
      EXPECT_EQ(seen.size(), 3U);
    }
    EXPECT_EQ(used, free);
  }
  EXPECT_FALSE(placement.place(free, 1, 3, {0, 0, 1, 1, 1}).has_value());
  EXPECT_FALSE(placement.place(free, 9, 2, {0, 0, 0, 0, 1}).has_value());
  EXPECT_TRUE(placement.place(free, 8, 2, {0, 0, 0, 0, 1}).has_value());
}

TEST(Placement, SameSeedSamePlacement) {
  const std::vector<uint32_t> free{5, 5, 5};
  EXPECT_EQ(Placement(7).place(free, 6, 2), Placement(7).place(free, 6, 2));
}

}  // namespace
}  // namespace farpage::coordinator
