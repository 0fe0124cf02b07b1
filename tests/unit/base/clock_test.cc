#include "base/clock.h"

#include <gtest/gtest.h>

namespace farpage {
namespace {

TEST(ManualClock, StandsStillUntilAdvanced) {
  ManualClock clock;
  const Instant start = clock.now();
  EXPECT_EQ(clock.now(), start);
  clock.advance(Milliseconds(5));
  EXPECT_EQ(clock.now() - start, Milliseconds(5));
}

TEST(SteadyClock, NeverGoesBack) {
  const SteadyClock clock;
  const Instant first = clock.now();
  EXPECT_GE(clock.now(), first);
  EXPECT_GE(SteadyClock::read(), first);
}

}  // namespace
}  // namespace farpage
