#include "pager/compress/compression_policy.h"

#include <gtest/gtest.h>

#include "base/strong.h"

namespace farpage::pager {
namespace {

constexpr uint64_t kShare = 1600;
constexpr size_t kSmall = 800;  // bytes of a copy

class PolicyRig {
 public:
  // Pages leave, and what of them is tried gives copies of that size; then it is reviewed.
  void round(uint64_t pages, size_t bytes, uint64_t hits, uint64_t early) {
    for (uint64_t i = 0; i < pages; ++i) {
      if (!policy.tries_next()) continue;
      policy.tried(bytes);
      ++tries;
    }
    use.departures += pages;
    use.hits += hits;
    use.early_hits += early;
    policy.review(use);
  }
  uint64_t part() const { return policy.part_of(kShare); }

  CompressionPolicy policy{/*adaptive=*/true};
  CompressionPolicy::Use use{.remote_fault_ns = 16'000, .compressed_fault_ns = 7'000};
  uint64_t tries = 0;
};

TEST(CompressionPolicy, AFixedShareIsAlwaysUsed) {
  CompressionPolicy policy(/*adaptive=*/false);
  for (int i = 0; i < 10'000; ++i) {
    EXPECT_TRUE(policy.tries_next());
    policy.tried(kPageBytes);
  }
  EXPECT_EQ(policy.part_of(kShare), kShare);
  EXPECT_FALSE(policy.is_due(1'000'000, 0));
}

TEST(CompressionPolicy, BeginsWithAPartAndGrowsWhereCopiesSaveReads) {
  PolicyRig rig;
  EXPECT_EQ(rig.part(), kShare / 4);
  rig.round(1000, kSmall, 800, 0);
  EXPECT_EQ(rig.part(), kShare / 2);
  rig.round(1000, kSmall, 800, 0);
  rig.round(1000, kSmall, 800, 0);
  EXPECT_EQ(rig.part(), kShare);
}

TEST(CompressionPolicy, ShrinksToNothingWhereThePagesWouldHaveBeenHere) {
  PolicyRig rig;
  rig.round(1000, kSmall, 800, 700);
  EXPECT_EQ(rig.part(), kShare / 8);
  rig.round(1000, kSmall, 800, 700);
  rig.round(1000, kSmall, 800, 700);
  EXPECT_EQ(rig.part(), 0U);
  EXPECT_FALSE(rig.policy.tries_next());
}

TEST(CompressionPolicy, ShrinksWhereFewCopiesAreUsed) {
  PolicyRig rig;
  rig.round(1000, kSmall, 50, 0);
  EXPECT_EQ(rig.part(), kShare / 8);
}

TEST(CompressionPolicy, ShrinksWhereAReadIsAsFast) {
  PolicyRig rig;
  rig.use.remote_fault_ns = 6'000;
  rig.round(1000, kSmall, 900, 0);
  EXPECT_EQ(rig.part(), kShare / 8);
}

TEST(CompressionPolicy, TriesAgainAfterAPause) {
  PolicyRig rig;
  for (int i = 0; i < 3; ++i) rig.round(1000, kSmall, 0, 0);
  ASSERT_EQ(rig.part(), 0U);
  for (uint32_t i = 1; i < CompressionPolicy::kPause; ++i) {
    rig.round(1000, kSmall, 0, 0);
    EXPECT_EQ(rig.part(), 0U) << i;
  }
  rig.round(1000, kSmall, 0, 0);
  EXPECT_EQ(rig.part(), kShare / 16);
}

TEST(CompressionPolicy, PagesThatDoNotCompressAreOnlySampled) {
  PolicyRig rig;
  rig.round(CompressionPolicy::kWindow, kPageBytes, 0, 0);
  EXPECT_EQ(rig.part(), 0U);
  rig.tries = 0;
  rig.round(3200, kPageBytes, 0, 0);
  EXPECT_EQ(rig.tries, 3200 / CompressionPolicy::kSampleEvery);
  rig.round(2 * CompressionPolicy::kWindow * CompressionPolicy::kSampleEvery, kSmall, 0, 0);
  EXPECT_GT(rig.part(), 0U) << "they compress now";
}

TEST(CompressionPolicy, FortyPercentOnAverageIsEnough) {
  for (const uint64_t percent : {40, 41}) {
    PolicyRig rig;
    const size_t bytes = kPageBytes * percent / 100;
    for (uint32_t i = 0; i < CompressionPolicy::kWindow; ++i) rig.policy.tried(bytes);
    EXPECT_EQ(rig.part() > 0, percent == 40) << percent;
  }
}

TEST(CompressionPolicy, AReviewIsDueAfterTwiceThePoolHasLeft) {
  const CompressionPolicy policy(/*adaptive=*/true);
  EXPECT_FALSE(policy.is_due(CompressionPolicy::kFewest - 1, 10));
  EXPECT_TRUE(policy.is_due(CompressionPolicy::kFewest, 10));
  EXPECT_FALSE(policy.is_due(3999, 2000));
  EXPECT_TRUE(policy.is_due(4000, 2000));
}

}  // namespace
}  // namespace farpage::pager
