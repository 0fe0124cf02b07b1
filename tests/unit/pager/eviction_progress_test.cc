#include "pager/evict/eviction_progress.h"

#include <gtest/gtest.h>

namespace farpage::pager {
namespace {

constexpr Nanoseconds kDeadline = Seconds(5);
constexpr Instant kSince = Seconds(1000);  // when the fault was read
constexpr Instant kLate = kSince + kDeadline + Milliseconds(1);

void fail_often(EvictionProgress& progress, Instant since) {
  for (uint32_t i = 0; i < EvictionProgress::kAttempts; ++i) progress.failed(since);
}

bool hopeless(const EvictionProgress& progress, Instant now = kLate) {
  return progress.hopeless(kSince, now, kDeadline);
}

TEST(EvictionProgress, AFaultGivesUpAfterTheDeadlineIfNothingCouldLeave) {
  EvictionProgress progress;
  fail_often(progress, kSince + Milliseconds(1));
  EXPECT_FALSE(hopeless(progress, kSince + kDeadline));
  EXPECT_TRUE(hopeless(progress));
}

TEST(EvictionProgress, OneThatIsNewWaitsForItsDeadlineHoweverLongNothingHasLeft) {
  EvictionProgress progress;
  fail_often(progress, kSince - Seconds(100));
  EXPECT_FALSE(hopeless(progress, kSince + kDeadline));
  EXPECT_TRUE(hopeless(progress));
}

TEST(EvictionProgress, WhilePagesLeaveAFaultWaitsOn) {
  EvictionProgress progress;
  fail_often(progress, kSince);
  progress.freed(kSince + Seconds(4));
  EXPECT_FALSE(hopeless(progress));
  fail_often(progress, kSince + Seconds(5));
  EXPECT_FALSE(hopeless(progress, kSince + Seconds(4) + kDeadline));
  EXPECT_TRUE(hopeless(progress, kSince + Seconds(4) + kDeadline + Milliseconds(1)));
}

TEST(EvictionProgress, WhileTheTargetDoesNotDropAFaultWaitsOn) {
  EvictionProgress progress;
  fail_often(progress, kSince);
  progress.set_dropping(true);
  EXPECT_FALSE(hopeless(progress, kSince + std::chrono::hours(1)));
  progress.set_dropping(false);
  EXPECT_TRUE(hopeless(progress));
}

TEST(EvictionProgress, WithoutAnAttemptAFaultWaitsOnButNotForEver) {
  const EvictionProgress progress;
  EXPECT_FALSE(hopeless(progress));
  EXPECT_FALSE(hopeless(progress, kSince + kDeadline * EvictionProgress::kUntried));
  EXPECT_TRUE(
      hopeless(progress, kSince + kDeadline * EvictionProgress::kUntried + Milliseconds(1)));
}

TEST(EvictionProgress, AFewFailuresAreNotYetAReason) {
  EvictionProgress progress;
  for (uint32_t i = 1; i < EvictionProgress::kAttempts; ++i) progress.failed(kSince);
  EXPECT_FALSE(hopeless(progress));
  EXPECT_FALSE(hopeless(progress, kSince + kDeadline * EvictionProgress::kTriedOnce));
  EXPECT_TRUE(
      hopeless(progress, kSince + kDeadline * EvictionProgress::kTriedOnce + Milliseconds(1)));
  progress.failed(kLate);
  EXPECT_TRUE(hopeless(progress));
}

TEST(EvictionProgress, TheFirstFailureCountsAndALateOneIsNotYetAReason) {
  EvictionProgress progress;
  progress.failed(kSince + Seconds(4));
  fail_often(progress, kLate);
  EXPECT_FALSE(hopeless(progress)) << "it was tried for a second only";
  EXPECT_TRUE(hopeless(progress, kSince + Seconds(7)));
}

}  // namespace
}  // namespace farpage::pager
