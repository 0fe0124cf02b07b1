#include "bench/touch_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

namespace farpage::bench {
namespace {

TEST(PageShare, SharesCoverAllPagesOnce) {
  for (const uint32_t count : {1U, 3U, 7U, 64U}) {
    uint64_t next = 0;
    for (uint32_t i = 0; i < count; ++i) {
      const PageShare share = share_of(1000, i, count);
      EXPECT_EQ(share.first, next);
      EXPECT_GE(share.pages, 1000 / count);
      EXPECT_LE(share.pages, 1000 / count + 1);
      next += share.pages;
    }
    EXPECT_EQ(next, 1000U);
  }
}

TEST(TouchOrder, SequentialGoesRoundAndRound) {
  TouchOrder order(Pattern::kSequential, {10, 3}, 1);
  for (const uint64_t page : {10U, 11U, 12U, 10U, 11U}) EXPECT_EQ(order.next(), page);
}

TEST(TouchOrder, StridedTouchesEachPageOnceARound) {
  for (const uint64_t pages : {1U, 3U, 7U, 8U, 100U}) {
    TouchOrder order(Pattern::kStrided, {10, pages}, 1);
    std::set<uint64_t> seen;
    for (uint64_t i = 0; i < pages; ++i) seen.insert(order.next());
    EXPECT_EQ(seen.size(), pages);
    EXPECT_EQ(*seen.begin(), 10U);
    EXPECT_EQ(*seen.rbegin(), 10U + pages - 1);
  }
  TouchOrder order(Pattern::kStrided, {0, 100}, 1);
  for (const uint64_t page : {0U, 7U, 14U, 21U}) EXPECT_EQ(order.next(), page);
}

TEST(TouchOrder, ZipfTouchesFewPagesOften) {
  constexpr uint64_t kPages = 1000, kTouches = 200'000;
  TouchOrder order(Pattern::kZipf, {50, kPages}, 1);
  std::vector<uint64_t> touches(kPages);
  for (uint64_t i = 0; i < kTouches; ++i) {
    const uint64_t page = order.next();
    ASSERT_GE(page, 50U);
    ASSERT_LT(page, 50U + kPages);
    ++touches[page - 50];
  }
  const auto hottest = std::max_element(touches.begin(), touches.end()) - touches.begin();
  std::sort(touches.rbegin(), touches.rend());
  double zeta = 0;
  for (uint64_t i = 1; i <= kPages; ++i) zeta += std::pow(static_cast<double>(i), -kZipfExponent);
  const auto expected = [&](int rank) { return kTouches / zeta * std::pow(rank, -kZipfExponent); };
  EXPECT_NEAR(static_cast<double>(touches[0]), expected(1), expected(1) / 20);
  EXPECT_NEAR(static_cast<double>(touches[1]), expected(2), expected(2) / 10);
  EXPECT_NEAR(static_cast<double>(std::accumulate(touches.begin(), touches.begin() + 100, 0ULL)),
              0.68 * kTouches, 0.04 * kTouches);
  EXPECT_NE(hottest, 0);  // the ranking does not depend on the addresses
}

TEST(TouchOrder, RandomStaysInItsShareAndReachesAllOfIt) {
  TouchOrder order(Pattern::kRandom, {100, 16}, 1);
  std::set<uint64_t> seen;
  for (int i = 0; i < 2000; ++i) {
    const uint64_t page = order.next();
    ASSERT_GE(page, 100U);
    ASSERT_LT(page, 116U);
    seen.insert(page);
  }
  EXPECT_EQ(seen.size(), 16U);
}

TEST(TouchOrder, TheSameSeedIsTheSameOrder) {
  TouchOrder one(Pattern::kRandom, {0, 1 << 20}, 5);
  TouchOrder same(Pattern::kRandom, {0, 1 << 20}, 5);
  TouchOrder other(Pattern::kRandom, {0, 1 << 20}, 6);
  bool differs = false;
  for (int i = 0; i < 100; ++i) {
    const uint64_t page = one.next();
    EXPECT_EQ(page, same.next());
    differs = differs || page != other.next();
  }
  EXPECT_TRUE(differs);
}

TEST(DistinctPages, NoneComesTwice) {
  const auto pages = distinct_pages(Pattern::kRandom, {50, 500}, 400, 3);
  const std::set<uint64_t> different(pages.begin(), pages.end());
  EXPECT_EQ(pages.size(), 400U);
  EXPECT_EQ(different.size(), 400U);
  EXPECT_GE(*different.begin(), 50U);
  EXPECT_LT(*different.rbegin(), 550U);
  EXPECT_FALSE(std::is_sorted(pages.begin(), pages.end()));
}

TEST(DistinctPages, SequentialAreTheFirstOnes) {
  std::vector<uint64_t> right(10);
  std::iota(right.begin(), right.end(), 50U);
  EXPECT_EQ(distinct_pages(Pattern::kSequential, {50, 500}, 10, 3), right);
}

TEST(Pattern, NamesAreReadBack) {
  for (const Pattern pattern : kPatterns) EXPECT_EQ(pattern_from(to_string(pattern)), pattern);
  EXPECT_FALSE(pattern_from("spiral"));
}

}  // namespace
}  // namespace farpage::bench
