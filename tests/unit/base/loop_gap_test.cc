#include "base/loop_gap.h"

#include <gtest/gtest.h>

namespace farpage {
namespace {

TEST(LoopGap, OnlyALongTimeBetweenTwoTurnsIsAGap) {
  LoopGap gap;
  EXPECT_EQ(gap.turn(Seconds(1000)), Nanoseconds(0)) << "the first turn";
  EXPECT_EQ(gap.turn(Seconds(1000) + LoopGap::kLongestTurn), Nanoseconds(0));
  EXPECT_EQ(gap.turn(Seconds(1061) + LoopGap::kLongestTurn), Seconds(61));
  EXPECT_EQ(gap.turn(Seconds(1062)), Nanoseconds(0));
}

TEST(LoopGap, RestIsNoGap) {
  LoopGap gap;
  EXPECT_EQ(gap.turn(Seconds(1)), Nanoseconds(0));
  gap.rest();
  EXPECT_EQ(gap.turn(Seconds(100)), Nanoseconds(0));
  EXPECT_EQ(gap.turn(Seconds(200)), Seconds(100));
}

TEST(LoopGap, WhatBeganAfterTheGapDoesNotMoveIntoTheFuture) {
  LoopGap gap;
  (void)gap.turn(Seconds(1));
  const Nanoseconds stopped = gap.turn(Seconds(101));
  ASSERT_EQ(stopped, Seconds(100));
  EXPECT_EQ(gap.without(stopped, Milliseconds(900)), Milliseconds(100'900));
  EXPECT_EQ(gap.without(stopped, Milliseconds(100'999)), Seconds(101));
}

}  // namespace
}  // namespace farpage
