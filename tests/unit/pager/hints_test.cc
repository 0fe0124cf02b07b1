// What the target says about its pages: pins, access patterns, hints.
#include <gtest/gtest.h>

#include "pager/evict/cold_hints.h"
#include "pager/pages/access_map.h"
#include "pager/pages/pin_map.h"
#include "pager/pages/run_list.h"

namespace farpage::pager {
namespace {

uffd::PageRun run(uint64_t first, uint32_t pages) {
  return {PageIndex{first}, pages};
}

TEST(PinMap, PinsExactlyTheRunAcrossWords) {
  PinMap pins = PinMap::create(1000, 500).value();
  EXPECT_TRUE(pins.pin(run(60, 200)));
  for (uint64_t page = 0; page < 1000; ++page)
    EXPECT_EQ(pins.is_pinned(PageIndex{page}), page >= 60 && page < 260) << page;
  pins.unpin(run(64, 64));
  EXPECT_EQ(pins.pinned_pages(), 136U);
  EXPECT_TRUE(pins.is_pinned(PageIndex{63}));
  EXPECT_FALSE(pins.is_pinned(PageIndex{64}));
  EXPECT_TRUE(pins.is_pinned(PageIndex{128}));
}

TEST(PinMap, BeyondTheLimitNothingIsPinned) {
  PinMap pins = PinMap::create(1000, 100).value();
  EXPECT_TRUE(pins.pin(run(0, 60)));
  EXPECT_FALSE(pins.pin(run(50, 60)));  // 50 more
  EXPECT_EQ(pins.pinned_pages(), 60U);
  EXPECT_FALSE(pins.is_pinned(PageIndex{60}));
  EXPECT_TRUE(pins.pin(run(20, 80)));  // 40 more: just at the limit
  EXPECT_FALSE(pins.pin(run(100, 1)));
  EXPECT_FALSE(pins.pin(run(0, 1000)));
}

TEST(PinMap, ItsLimitDoesNotFallBelowWhatIsPinned) {
  PinMap pins = PinMap::create(1000, 100).value();
  ASSERT_TRUE(pins.pin(run(0, 60)));
  EXPECT_FALSE(pins.set_limit(59));
  EXPECT_TRUE(pins.pin(run(60, 40)));  // the old limit holds
  pins.unpin(run(60, 40));
  EXPECT_TRUE(pins.set_limit(60));
  EXPECT_FALSE(pins.pin(run(60, 1)));
  EXPECT_TRUE(pins.set_limit(61));
  EXPECT_TRUE(pins.pin(run(60, 1)));
}

TEST(PinMap, APageIsPinnedOnceHoweverOftenItIsAskedFor) {
  PinMap pins = PinMap::create(1000, 100).value();
  EXPECT_TRUE(pins.pin(run(0, 100)));
  EXPECT_TRUE(pins.pin(run(0, 100)));
  pins.unpin(run(0, 1000));
  EXPECT_EQ(pins.pinned_pages(), 0U);
  EXPECT_FALSE(pins.is_pinned(PageIndex{99}));
  pins.unpin(run(0, 1000));
  EXPECT_EQ(pins.pinned_pages(), 0U);
}

TEST(AccessMap, IsNormalUntilSaidOtherwiseAndTouchesNoOtherSixteenPages) {
  AccessMap access = AccessMap::create(1000).value();
  EXPECT_EQ(access.of(PageIndex{999}), AccessPattern::kNormal);
  access.set(run(32, 32), AccessPattern::kRandom);
  EXPECT_EQ(access.of(PageIndex{31}), AccessPattern::kNormal);
  EXPECT_EQ(access.of(PageIndex{32}), AccessPattern::kRandom);
  EXPECT_EQ(access.of(PageIndex{63}), AccessPattern::kRandom);
  EXPECT_EQ(access.of(PageIndex{64}), AccessPattern::kNormal);
  access.set(run(990, 10), AccessPattern::kSequential);
  EXPECT_EQ(access.of(PageIndex{999}), AccessPattern::kSequential);
  access.set(run(0, 1000), AccessPattern::kNormal);
  EXPECT_EQ(access.of(PageIndex{40}), AccessPattern::kNormal);
}

TEST(RunList, HandsOutInSlicesAndForgetsWhatIsTooMuch) {
  RunList hints;
  EXPECT_FALSE(hints.take(10));
  hints.push(run(100, 25));
  hints.push(run(7, 0));  // no pages: ignored
  EXPECT_EQ(hints.take(10)->first.value, 100U);
  EXPECT_EQ(hints.take(10)->first.value, 110U);
  const auto last = hints.take(10);
  EXPECT_EQ(last->first.value, 120U);
  EXPECT_EQ(last->pages, 5U);
  EXPECT_TRUE(hints.empty());
  for (size_t i = 0; i < RunList::kMaxRuns + 10; ++i) hints.push(run(2 * i, 1));
  size_t kept = 0;
  while (hints.take(1)) ++kept;
  EXPECT_EQ(kept, RunList::kMaxRuns);
}

TEST(RunList, ForgetsWhatIsCoveredAndKeepsTheRest) {
  RunList hints;
  hints.push(run(100, 20));
  hints.push(run(110, 5));
  hints.push(run(118, 10));
  hints.push(run(500, 1));
  hints.forget(run(105, 15));  // 105 to 119
  std::vector<std::pair<uint64_t, uint32_t>> left;
  while (const auto wish = hints.take(1000)) left.emplace_back(wish->first.value, wish->pages);
  EXPECT_EQ(left, (std::vector<std::pair<uint64_t, uint32_t>>{{100, 5}, {120, 8}, {500, 1}}));
}

TEST(RunList, NeighboursAreOneWish) {
  RunList queue;
  for (uint64_t page = 0; page < 2 * RunList::kMaxRuns; ++page) queue.push(run(page, 1));
  const auto all = queue.take(UINT32_MAX);
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(all->first, PageIndex{0});
  EXPECT_EQ(all->pages, 2 * RunList::kMaxRuns);
  EXPECT_TRUE(queue.empty());
}

// Takes all hints that may be granted and puts off these pages.
void take_and_put_off(ColdHints& hints, uint64_t first, uint32_t pages) {
  ASSERT_TRUE(hints.take(1000).has_value());
  for (uint64_t page = first; page < first + pages; ++page) hints.put_off(PageIndex{page});
}

TEST(ColdHints, WhatHasNoSlabWaitsForTheNextLease) {
  ColdHints hints;
  hints.push(run(10, 4));
  take_and_put_off(hints, 11, 2);
  EXPECT_TRUE(hints.empty());
  hints.leased();
  const auto again = hints.take(4);
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->first, PageIndex{11});
  EXPECT_EQ(again->pages, 2U);
}

TEST(ColdHints, ALeaseBetweenTheLookAndTheWaitIsNotMissed) {
  ColdHints hints;
  hints.push(run(10, 1));
  ASSERT_TRUE(hints.take(1).has_value());
  hints.leased();
  hints.put_off(PageIndex{10});
  EXPECT_TRUE(hints.take(1).has_value());
}

TEST(ColdHints, WhatWaitsIsForgottenToo) {
  ColdHints hints;
  hints.push(run(10, 4));
  take_and_put_off(hints, 10, 4);
  hints.forget(run(11, 3));
  hints.leased();
  const auto left = hints.take(4);
  ASSERT_TRUE(left.has_value());
  EXPECT_EQ(left->pages, 1U);
  EXPECT_TRUE(hints.empty());
}

TEST(ColdHints, WhatIsForgottenBetweenTheLookAndTheWaitIsNotPutOff) {
  ColdHints hints;
  hints.push(run(10, 2));
  ASSERT_TRUE(hints.take(2).has_value());
  hints.forget(run(10, 1));
  hints.put_off(PageIndex{10});
  hints.put_off(PageIndex{11});
  hints.leased();
  const auto left = hints.take(2);
  ASSERT_TRUE(left.has_value());
  EXPECT_EQ(left->first, PageIndex{11});
  EXPECT_TRUE(hints.empty());
}

}  // namespace
}  // namespace farpage::pager
