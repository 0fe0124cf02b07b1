#include "pager/fault/trend.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace farpage::pager {
namespace {

// A thread that walks through memory in which only prefetched pages are resident.
struct Walk {
  TrendDetector& detector;
  uint32_t thread = 1;
  uint32_t max_depth = 32;
  bool sequential = false;
  std::set<int64_t> resident = {};  // from the start
  std::set<int64_t> fetched = {};
  std::vector<PrefetchPlan> plans = {};
  int faults = 0;
  std::set<int64_t> asked_now = {};
  int waits = 0;  // for pages that the previous fault requested

  void touch(int64_t page) {
    if (resident.contains(page)) return;
    if (fetched.contains(page)) {
      if (asked_now.contains(page)) ++waits;
      asked_now.clear();
      return;
    }
    ++faults;
    asked_now.clear();
    const auto plan =
        detector.observe(thread, PageIndex{static_cast<uint64_t>(page)}, max_depth, sequential);
    if (!plan) return;
    plans.push_back(*plan);
    for (uint32_t i = 0; i < plan->pages; ++i) {
      if (i == plan->gap) continue;
      const auto ahead =
          static_cast<int64_t>(plan->first.value) + plan->stride * static_cast<int64_t>(i);
      EXPECT_TRUE(fetched.insert(ahead).second) << "page " << ahead << " is asked for twice";
      asked_now.insert(ahead);
    }
  }
  void steps(int64_t start, int64_t stride, int count) {
    for (int i = 0; i < count; ++i) touch(start + stride * i);
  }
};

TEST(TrendDetector, AWalkOverPagesThatCameWithOthersIsSequential) {
  for (const bool up : {true, false}) {
    TrendDetector detector;
    std::optional<PrefetchPlan> plan;
    for (uint64_t i = 0; i < 8 && !plan; ++i) {
      const uint64_t page = up ? 800 + 8 * i : 807 - 8 * i;
      plan = detector.observe(1, PageIndex{page}, 64);
      const Cluster neighbours{PageIndex{page / 8 * 8}, up ? 0b1111'1110U : 0b0111'1111U};
      if (!plan) detector.came_with(1, PageIndex{page}, neighbours);
    }
    ASSERT_TRUE(plan);
    EXPECT_EQ(plan->stride, up ? 1 : -1);
  }
}

TEST(TrendDetector, FollowsSequentialWalksUpAndDown) {
  TrendDetector detector;
  Walk up{.detector = detector};
  up.steps(100, 1, 1000);
  EXPECT_LT(up.faults, 50);
  Walk down{.detector = detector, .thread = 2};
  down.steps(100'000, -1, 1000);
  EXPECT_EQ(down.faults, up.faults);
}

TEST(TrendDetector, FollowsAStride) {
  TrendDetector detector;
  Walk walk{.detector = detector};
  walk.steps(0, 7, 1000);
  EXPECT_LT(walk.faults, 130);
  for (const PrefetchPlan& plan : walk.plans) EXPECT_LE(plan.pages, 17U) << "a READ for each";
}

TEST(TrendDetector, BatchesGrowToTheLimitAndNeverOverIt) {
  TrendDetector detector;
  Walk walk{.detector = detector};
  walk.steps(0, 1, 1000);
  uint32_t last = 0;
  for (const PrefetchPlan& plan : walk.plans) {
    const uint32_t batch = plan.gap < plan.pages ? plan.gap : plan.pages;
    EXPECT_GE(batch, last);
    EXPECT_LE(batch, 32U);
    last = batch;
  }
  EXPECT_EQ(last, 32U);
}

TEST(TrendDetector, TheNextBatchIsAskedForWhileOneIsUsed) {
  TrendDetector detector;
  Walk walk{.detector = detector};
  walk.steps(0, 1, 1000);
  EXPECT_LE(walk.waits, 2) << "only the first two batches begin with a page just asked for";
}

TEST(TrendDetector, AnAnnouncedWalkIsFollowedFromItsFirstFaultOn) {
  TrendDetector detector;
  Walk walk{.detector = detector, .sequential = true};
  walk.steps(50, 1, 1000);
  ASSERT_FALSE(walk.plans.empty());
  EXPECT_EQ(walk.plans.front().first.value, 51U);
  EXPECT_EQ(walk.plans.front().pages, 32U);
  EXPECT_LT(walk.faults, 35);
}

TEST(TrendDetector, AWalkThatIsInterruptedBeginsAgain) {
  TrendDetector detector;
  Walk walk{.detector = detector};
  walk.steps(0, 1, 500);
  walk.steps(1'000'000, 1, 500);
  EXPECT_LT(walk.faults, 70);
}

TEST(TrendDetector, FollowsSeveralStreamsOfOneThread) {
  TrendDetector detector;
  Walk walk{.detector = detector};
  for (int i = 0; i < 1000; ++i)
    for (const int64_t array : {100'000, 200'000, 300'000, 400'000}) walk.touch(array + i);
  EXPECT_LT(walk.faults, 4 * 50);
}

TEST(TrendDetector, FollowsAStreamAmongRandomFaults) {
  constexpr uint64_t kSeed = 5;
  std::mt19937_64 random(kSeed);
  TrendDetector detector;
  Walk walk{.detector = detector};
  int64_t random_touches = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    walk.touch(5'000'000 + i);
    for (int more = 0; more < 3; ++more, ++random_touches)
      walk.touch(static_cast<int64_t>(random() % 1'000'000));
  }
  EXPECT_LT(walk.faults, random_touches + 70) << "seed " << kSeed;
}

TEST(TrendDetector, AStreamGoesOnOverResidentPages) {
  constexpr uint64_t kSeed = 6;
  std::mt19937_64 random(kSeed);
  TrendDetector detector;
  Walk walk{.detector = detector};
  for (int64_t i = 0; i < 2000; ++i)
    if (random() % 3 == 0) walk.resident.insert(i);
  walk.steps(0, 1, 2000);
  EXPECT_LT(walk.faults, 200) << "seed " << kSeed;
}

TEST(TrendDetector, SaysNothingOnRandomFaults) {
  constexpr uint64_t kSeed = 3;
  std::mt19937_64 random(kSeed);
  TrendDetector detector;
  uint64_t ahead = 0;
  for (int i = 0; i < 10'000; ++i)
    if (const auto plan = detector.observe(1, PageIndex{random() % 1'000'000}, 32))
      ahead += plan->pages;
  EXPECT_LT(ahead, 100U) << "seed " << kSeed;
}

TEST(TrendDetector, ThreadsDoNotDisturbEachOther) {
  TrendDetector detector;
  std::mt19937_64 random(4);
  constexpr uint32_t kThreads = 64;
  Walk walk{.detector = detector, .thread = 1000};
  for (int i = 0; i < 1000; ++i) {
    walk.touch(1000 + i);
    for (uint32_t other = 1; other < kThreads; ++other)
      (void)detector.observe(walk.thread + other, PageIndex{random() % 1'000'000}, 32);
  }
  EXPECT_LT(walk.faults, 50);
}

TEST(TrendDetector, DepthZeroIsOff) {
  TrendDetector detector;
  Walk walk{.detector = detector, .max_depth = 0};
  walk.steps(0, 1, 100);
  EXPECT_EQ(walk.faults, 100);
}

}  // namespace
}  // namespace farpage::pager
