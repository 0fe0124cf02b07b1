// Traces short enough to check by hand. Letters are pages.
#include "bench/replay/replay.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "bench/replay/pager_model.h"
#include "bench/touch_order.h"
#include "pager/evict/eviction_batch.h"
#include "pager/pages/budget.h"

namespace farpage::bench {
namespace {

constexpr uint64_t kLetters = 26;

// The outcome of each touch: "a.b" for a miss, a hit, a miss. Capital letters are writes.
std::string outcome_of(PolicyKind kind, uint64_t capacity, const std::string& touches) {
  const auto policy = make_policy(kind, kLetters, capacity);
  std::string outcome;
  for (const char c : touches) {
    const bool write = c >= 'A' && c <= 'Z';
    const auto page = static_cast<uint32_t>(c - (write ? 'A' : 'a'));
    outcome += policy->touch({page, write ? AccessKind::kWrite : AccessKind::kRead}) ? '.' : c;
  }
  return outcome;
}

TEST(Replacement, FifoForgetsWhatCameFirstHoweverOftenItWasTouched) {
  EXPECT_EQ(outcome_of(PolicyKind::kFifo, 3, "abcaadabcd"), "abc..dabcd");
}

TEST(Replacement, LruForgetsWhatWasTouchedLongestAgo) {
  // d takes b's place, b takes c's, c takes d's, d takes a's.
  EXPECT_EQ(outcome_of(PolicyKind::kLru, 3, "abcaadabcd"), "abc..d.bcd");
  EXPECT_EQ(outcome_of(PolicyKind::kLru, 3, "abcabdab"), "abc..d..");
}

TEST(Replacement, ClockGivesATouchedPageASecondChance) {
  // d: the hand passes a, which was touched, and evicts b. b: it evicts c. e: it passes a, which
  // was touched again, and evicts d.
  EXPECT_EQ(outcome_of(PolicyKind::kClock, 3, "abcadabaeabd"), "abc.d.b.e..d");
  // All touched: the first round only clears the bits, then the first page is evicted.
  EXPECT_EQ(outcome_of(PolicyKind::kClock, 2, "ababcb"), "ab..c.");
}

TEST(Replacement, S3FifoLetsAScanPassThroughTheSmallQueue) {
  // Capacity 10: the small queue's tenth is one page. a and b are touched twice in the small queue.
  // Then twelve pages are touched once each and leave through the small queue.
  EXPECT_EQ(outcome_of(PolicyKind::kS3Fifo, 10, "abaabbcdefghijklmnab"), "ab....cdefghijklmn..");
  // FIFO evicts both.
  EXPECT_EQ(outcome_of(PolicyKind::kFifo, 10, "abaabbcdefghijklmnab"), "ab....cdefghijklmnab");
}

TEST(Replacement, S3FifoPutsAGhostIntoTheMainQueue) {
  // Capacity 4: one page small, three main, three ghosts. e pushes a out; a comes back from the
  // ghosts into the main queue, and f to i push out what is in the small one.
  EXPECT_EQ(outcome_of(PolicyKind::kS3Fifo, 4, "abcdeafghia"), "abcdeafghi.");
  EXPECT_EQ(outcome_of(PolicyKind::kFifo, 4, "abcdeafghia"), "abcdeafghia");
}

TEST(Replacement, OnePlaceIsEnoughForEachPolicy) {
  for (const PolicyKind kind : kPolicyKinds)
    EXPECT_EQ(outcome_of(kind, 1, "aabba"), "a.b.a") << to_string(kind);
}

TEST(Replacement, WhatFitsIsMissedOnce) {
  for (const PolicyKind kind : kPolicyKinds) {
    const auto policy = make_policy(kind, 50, 100);
    size_t misses = 0;
    for (uint32_t i = 0; i < 500; ++i)
      misses += policy->touch({i * 7 % 50, AccessKind::kRead}) ? 0 : 1;
    EXPECT_EQ(misses, 50U) << to_string(kind);
  }
}

TEST(Replay, CountsWhatComesAfterTheWarmUp) {
  AccessTrace trace(4);
  for (const uint32_t page : {0U, 1U, 2U}) trace.add({page, AccessKind::kWrite});
  trace.end_warm_up();
  for (const uint32_t page : {2U, 0U, 3U, 0U}) trace.add({page, AccessKind::kRead});
  const PolicyResult fifo = replay(PolicyKind::kFifo, trace, 2);
  EXPECT_EQ(fifo.misses, 2U);  // 0 and 3
  EXPECT_EQ(fifo.reads, 1U);   // 3 was never touched before: a zero page
  const Result<ReplayResult> all = replay_all(trace, 50);
  ASSERT_TRUE(all);
  EXPECT_EQ(all->capacity, 2U);
  EXPECT_EQ(all->accesses, 4U);
  EXPECT_EQ(all->policies.size(), std::size(kPolicyKinds));
  EXPECT_DOUBLE_EQ(all->miss_ratio(fifo), 0.5);
  EXPECT_DOUBLE_EQ(all->misses_to(PolicyKind::kLru, fifo), 1);
}

TEST(Replay, TraceThatIsAllWarmUpIsRefused) {
  AccessTrace trace(1);
  trace.add({0, AccessKind::kWrite});
  trace.end_warm_up();
  EXPECT_FALSE(replay_all(trace, 25));
}

TEST(PagerModel, StaysWithinTheBudgetAndEvictsInBatches) {
  constexpr uint64_t kPages = 4096;
  PagerModel model(kPages, 1024);
  uint64_t highest = 0;
  for (uint32_t page = 0; page < kPages; ++page) {
    (void)model.touch({page, AccessKind::kWrite});
    highest = std::max(highest, model.resident_pages());
  }
  EXPECT_EQ(highest, pager::Budget::mark(1024, 97, pager::Budget::kNarrowest) + 1);
  EXPECT_GE(model.resident_pages(), pager::Budget::mark(1024, 94, pager::Budget::kNarrowest) -
                                        pager::EvictionBatch::kFewestPages);
}

TEST(PagerModel, CountsWritesToProtectedPagesAndWhatLeavesWrittenOrNot) {
  constexpr uint32_t kPages = 1024;
  PagerModel model(kPages, 256);
  const auto touch = [&](uint32_t page, AccessKind kind) { (void)model.touch({page, kind}); };
  for (uint32_t page = 0; page < kPages; ++page) touch(page, AccessKind::kWrite);
  EXPECT_EQ(model.counts().written_back, kPages - model.resident_pages());
  EXPECT_EQ(model.counts().write_faults, 0U);
  touch(0, AccessKind::kRead);
  touch(0, AccessKind::kWrite);
  touch(0, AccessKind::kWrite);
  EXPECT_EQ(model.counts().write_faults, 1U) << "the first write";
  EXPECT_EQ(model.counts().unchanged, 0U);
  // Most come in writable from now on, and are not written when they come the next time.
  for (uint32_t page = 1; page < kPages; ++page) {
    touch(page, AccessKind::kRead);
    touch(page, AccessKind::kWrite);
  }
  const PolicyCounts before = model.counts();
  EXPECT_LT(before.write_faults, kPages / 2);
  for (uint32_t page = 0; page < kPages; ++page) touch(page, AccessKind::kRead);
  EXPECT_GT((model.counts() - before).unchanged, kPages / 2);
}

// The pager's target: within a tenth of LRU, which sees every touch.
TEST(PagerModel, MissesAtMostATenthMoreThanLruOnZipf) {
  constexpr uint32_t kPages = 16'384;
  constexpr uint32_t kLocalPercent = 25;
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    AccessTrace trace(kPages);
    for (uint32_t page = 0; page < kPages; ++page) trace.add({page, AccessKind::kWrite});
    TouchOrder order(Pattern::kZipf, {0, kPages}, seed);
    const auto touch = [&](int touches) {
      for (int i = 0; i < touches; ++i)
        trace.add({static_cast<uint32_t>(order.next()), AccessKind::kRead});
    };
    touch(2 * kPages);
    trace.end_warm_up();
    touch(100'000);
    const Result<ReplayResult> result = replay_all(trace, kLocalPercent);
    ASSERT_TRUE(result);
    EXPECT_LE(result->misses_to(PolicyKind::kLru, result->of(PolicyKind::kPager)), 1.10);
  }
}

}  // namespace
}  // namespace farpage::bench
