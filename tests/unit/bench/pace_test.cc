#include "bench/pace.h"

#include <gtest/gtest.h>

namespace farpage::bench {
namespace {

constexpr Instant kStart = Seconds(100);

TEST(Pace, ClosedLoopStartsAtOnceAndCountsTouches) {
  Pace pace({.touches = 3}, kStart);
  for (int i = 0; i < 3; ++i) {
    const Instant now = kStart + Seconds(i);
    EXPECT_EQ(pace.next(now), now);
  }
  EXPECT_EQ(pace.next(kStart), std::nullopt);
  EXPECT_EQ(pace.late(), 0U);
  EXPECT_EQ(pace.missed(), 0U);
}

TEST(Pace, DurationEndsAClosedLoopWhateverItsTouches) {
  Pace pace({.touches = 1, .duration = Seconds(2)}, kStart);
  EXPECT_TRUE(pace.next(kStart));
  EXPECT_TRUE(pace.next(kStart + Seconds(2) - Nanoseconds(1)));
  EXPECT_FALSE(pace.next(kStart + Seconds(2)));
  EXPECT_EQ(pace.missed(), 0U);
}

TEST(Pace, OpenLoopGivesEachTouchItsOwnTime) {
  Pace pace({.touches = 4, .rate_per_s = 1000}, kStart);
  for (int i = 1; i <= 4; ++i) EXPECT_EQ(pace.next(kStart), kStart + Milliseconds(i));
  EXPECT_FALSE(pace.next(kStart));
  EXPECT_EQ(pace.late(), 0U);
}

// Coordinated omission: a stall neither drops nor moves the operations that it delays.
TEST(Pace, StallMovesNoIntendedTimeAndIsCounted) {
  Pace pace({.touches = 4, .rate_per_s = 1000}, kStart);
  EXPECT_EQ(pace.next(kStart), kStart + Milliseconds(1));
  const Instant behind = kStart + Milliseconds(10);
  for (int i = 2; i <= 4; ++i) EXPECT_EQ(pace.next(behind), kStart + Milliseconds(i));
  EXPECT_EQ(pace.late(), 3U);
}

TEST(Pace, OpenLoopThatEndsEarlyTellsWhatItMissed) {
  Pace pace({.duration = Seconds(1), .rate_per_s = 10}, kStart);
  EXPECT_EQ(pace.next(kStart), kStart + Milliseconds(100));
  EXPECT_FALSE(pace.next(kStart + Seconds(1)));
  EXPECT_EQ(pace.missed(), 8U);  // at 200 ms ... 900 ms
  Pace whole({.duration = Seconds(1), .rate_per_s = 10}, kStart);
  while (whole.next(kStart)) {
  }
  EXPECT_EQ(whole.missed(), 0U);
}

TEST(Pace, RatesThatDivideNoSecondDoNotDrift) {
  constexpr uint64_t kTouches = 3'000'000;
  Pace pace({.touches = kTouches, .rate_per_s = 3}, kStart);
  std::optional<Instant> last;
  for (uint64_t i = 0; i < kTouches; ++i) last = pace.next(kStart);
  EXPECT_EQ(last, kStart + Seconds(1'000'000));
}

TEST(Pace, WaitsNoShorterThanAsked) {
  const Instant time = SteadyClock::read() + Milliseconds(2);
  wait_until(time);
  EXPECT_GE(SteadyClock::read(), time);
  wait_until(kStart - kStart);
}

}  // namespace
}  // namespace farpage::bench
