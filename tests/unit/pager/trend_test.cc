#include "pager/trend.h"

#include <gtest/gtest.h>

#include <random>

namespace farpage::pager {
namespace {

// Faults as a walker makes them that skips what was fetched ahead. Returns the pages fetched ahead.
uint64_t walk(TrendDetector& detector, uint64_t start, int64_t stride, int faults) {
  uint64_t ahead = 0;
  auto page = static_cast<int64_t>(start);
  for (int i = 0; i < faults; ++i) {
    const auto plan = detector.observe(1, PageIndex{static_cast<uint64_t>(page)});
    page += stride;
    if (!plan) continue;
    EXPECT_EQ(plan->stride, stride);
    EXPECT_EQ(plan->first.value, static_cast<uint64_t>(page));
    page += stride * plan->pages;
    ahead += plan->pages;
  }
  return ahead;
}

TEST(TrendDetector, FollowsSequentialWalksUpAndDown) {
  TrendDetector up(32);
  EXPECT_GT(walk(up, 100, 1, 20), 300U);
  TrendDetector down(32);
  EXPECT_GT(walk(down, 100'000, -1, 20), 300U);
}

TEST(TrendDetector, FollowsAStride) {
  TrendDetector detector(16);
  EXPECT_GT(walk(detector, 0, 7, 20), 100U);
}

TEST(TrendDetector, DepthGrowsWhileTheWindowIsUsedUpAndNeverOverTheLimit) {
  TrendDetector detector(16);
  uint64_t page = 0;
  uint32_t last = 0;
  for (int i = 0; i < 20; ++i) {
    const auto plan = detector.observe(1, PageIndex{page++});
    if (!plan) continue;
    EXPECT_GE(plan->pages, last);
    EXPECT_LE(plan->pages, 16U);
    last = plan->pages;
    page += plan->pages;
  }
  EXPECT_EQ(last, 16U);
}

TEST(TrendDetector, SaysNothingOnRandomFaults) {
  constexpr uint64_t kSeed = 3;
  std::mt19937_64 random(kSeed);
  TrendDetector detector(32);
  uint64_t ahead = 0;
  for (int i = 0; i < 10'000; ++i)
    if (const auto plan = detector.observe(1, PageIndex{random() % 1'000'000}))
      ahead += plan->pages;
  EXPECT_LT(ahead, 100U) << "seed " << kSeed;
}

TEST(TrendDetector, ThreadsDoNotDisturbEachOther) {
  TrendDetector detector(32);
  std::mt19937_64 random(4);
  uint64_t page = 1000;
  uint64_t ahead = 0;
  for (int i = 0; i < 40; ++i) {
    if (const auto plan = detector.observe(1, PageIndex{page++})) {
      page += plan->pages;
      ahead += plan->pages;
    }
    (void)detector.observe(2, PageIndex{random() % 1'000'000});
  }
  EXPECT_GT(ahead, 300U);
}

TEST(TrendDetector, DepthZeroIsOff) {
  TrendDetector detector(0);
  EXPECT_EQ(walk(detector, 0, 1, 100), 0U);
}

}  // namespace
}  // namespace farpage::pager
