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
  // How many rounds until there are no copies any more, at most 1,000.
  int rounds_to_the_end(uint64_t hits, uint64_t early) {
    int rounds = 0;
    while (is_on() && rounds < 1000) {
      round(1000, kSmall, hits, early);
      ++rounds;
    }
    return rounds;
  }
  bool is_on() const { return policy.part_of(kShare) == kShare; }

  CompressionPolicy policy{/*adaptive=*/true};
  CompressionPolicy::Use use{
      .share_pages = kShare, .remote_fault_ns = 16'000, .compressed_fault_ns = 7'000};
  uint64_t tries = 0;
};

TEST(CompressionPolicy, AFixedShareIsAlwaysUsed) {
  CompressionPolicy policy(/*adaptive=*/false);
  for (int i = 0; i < 10'000; ++i) {
    EXPECT_TRUE(policy.tries_next());
    policy.tried(kPageBytes);
  }
  EXPECT_EQ(policy.part_of(kShare), kShare);
  EXPECT_FALSE(policy.is_due(1'000'000));
}

TEST(CompressionPolicy, CopiesThatSaveReadsStay) {
  PolicyRig rig;
  EXPECT_EQ(rig.rounds_to_the_end(/*hits=*/800, /*early=*/50), 1000);
}

TEST(CompressionPolicy, ThereAreNoneWherePagesWouldHaveBeenHere) {
  PolicyRig rig;
  EXPECT_LT(rig.rounds_to_the_end(/*hits=*/800, /*early=*/400), 40);
  EXPECT_EQ(rig.policy.part_of(kShare), 0U);
  EXPECT_FALSE(rig.policy.tries_next());
}

TEST(CompressionPolicy, ThereAreNoneWhereTheyAreNotUsed) {
  PolicyRig rig;
  const int rounds = rig.rounds_to_the_end(/*hits=*/50, /*early=*/0);
  EXPECT_GT(rounds, 5) << "the pool fills first";
  EXPECT_LT(rounds, 50);
}

TEST(CompressionPolicy, ThereAreNoneWhereAReadIsAsFast) {
  PolicyRig rig;
  rig.use.remote_fault_ns = 6'000;
  EXPECT_LT(rig.rounds_to_the_end(/*hits=*/900, /*early=*/0), 40);
}

TEST(CompressionPolicy, ThereAreNoneOverATransportThatIsFasterThanTheCodec) {
  PolicyRig rig;
  rig.use.wire_ns = 500;
  EXPECT_EQ(rig.rounds_to_the_end(/*hits=*/900, /*early=*/0), 1);
}

TEST(CompressionPolicy, TheyAreTriedAgainAfterAPauseThatGetsLonger) {
  PolicyRig rig;
  uint64_t last = 0;
  for (int i = 0; i < 4; ++i) {
    (void)rig.rounds_to_the_end(0, 0);
    ASSERT_FALSE(rig.is_on());
    uint64_t pause = 0;
    while (!rig.is_on() && ++pause < 10'000) rig.round(1000, kSmall, 0, 0);
    EXPECT_GT(pause, last);
    last = pause;
  }
  // And stay where they are worth it now.
  EXPECT_EQ(rig.rounds_to_the_end(/*hits=*/900, /*early=*/0), 1000);
}

TEST(CompressionPolicy, PagesThatDoNotCompressAreOnlySampled) {
  PolicyRig rig;
  rig.round(CompressionPolicy::kWindow, kPageBytes, 0, 0);
  EXPECT_FALSE(rig.is_on());
  rig.tries = 0;
  rig.round(3200, kPageBytes, 0, 0);
  EXPECT_EQ(rig.tries, 3200 / CompressionPolicy::kSampleEvery);
  rig.round(2 * CompressionPolicy::kWindow * CompressionPolicy::kSampleEvery, kSmall, 0, 0);
  EXPECT_TRUE(rig.is_on()) << "they compress now";
}

TEST(CompressionPolicy, FortyPercentOnAverageIsEnough) {
  for (const uint64_t percent : {40, 41}) {
    PolicyRig rig;
    const size_t bytes = kPageBytes * percent / 100;
    for (uint32_t i = 0; i < CompressionPolicy::kWindow; ++i) rig.policy.tried(bytes);
    EXPECT_EQ(rig.is_on(), percent == 40) << percent;
  }
}

TEST(CompressionPolicy, AReviewIsDueAfterAThousandPages) {
  const CompressionPolicy policy(/*adaptive=*/true);
  EXPECT_FALSE(policy.is_due(CompressionPolicy::kFewest - 1));
  EXPECT_TRUE(policy.is_due(CompressionPolicy::kFewest));
}

}  // namespace
}  // namespace farpage::pager
