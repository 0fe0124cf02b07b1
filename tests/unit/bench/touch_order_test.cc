#include "bench/touch_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

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
  for (const Pattern pattern : {Pattern::kRandom, Pattern::kSequential})
    EXPECT_EQ(pattern_from(to_string(pattern)), pattern);
  EXPECT_FALSE(pattern_from("zipf"));
}

}  // namespace
}  // namespace farpage::bench
