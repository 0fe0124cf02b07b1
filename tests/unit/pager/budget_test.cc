#include "pager/pages/budget.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/sleeping_thread.h"

namespace farpage::pager {
namespace {

// Notes which workers were woken.
struct NotingPressure : Pressure {
  NotingPressure() {
    on_room = [this](uint64_t workers) { woken.push_back(workers); };
  }
  std::vector<uint64_t> woken;
};

TEST(Budget, NeverGoesOverItsLimit) {
  Pressure pressure;
  Budget budget(pressure, 10, 80, 60);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(budget.try_take());
  EXPECT_FALSE(budget.try_take());
  EXPECT_EQ(budget.used(), 10U);
  budget.give_back(1);
  EXPECT_TRUE(budget.try_take());
}

TEST(Budget, TheOldestFaultWithAClaimGetsTheNextPage) {
  NotingPressure pressure;
  Budget budget(pressure, 10, 80, 60);
  constexpr Instant kOldest{1}, kOlder{2}, kLater{3};
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(budget.try_take(kLater));
  budget.claim(kOlder);
  budget.give_back(1);
  EXPECT_FALSE(budget.try_take(kLater)) << "it is claimed";
  EXPECT_EQ(budget.take_spare(1), 0U);
  budget.claim(kOldest);
  budget.claim(kOlder);
  EXPECT_FALSE(budget.try_take(kOlder)) << "an older one has claimed it";
  EXPECT_TRUE(budget.begin_room_wait(0, kOlder));
  EXPECT_FALSE(budget.begin_room_wait(0, kOldest)) << "there is room for this one";
  budget.end_room_wait(0);
  EXPECT_TRUE(budget.try_take(kOldest));
  budget.end_claim(kOldest);
  budget.give_back(1);
  EXPECT_TRUE(budget.try_take(kLater)) << "no claim is left";
}

TEST(Budget, AClaimLeavesWhatIsBesideIt) {
  Pressure pressure;
  Budget budget(pressure, 10, 80, 60);
  budget.claim(Instant{1});
  for (int i = 0; i < 9; ++i) EXPECT_TRUE(budget.try_take(Instant{2}));
  EXPECT_FALSE(budget.try_take(Instant{2}));
}

TEST(Budget, AClaimThatEndsUnusedWakesTheOthers) {
  NotingPressure pressure;
  Budget budget(pressure, 1, 100, 100);
  budget.claim(Instant{1});
  EXPECT_TRUE(budget.begin_room_wait(3, Instant{2}));
  budget.end_claim(Instant{2});
  EXPECT_TRUE(pressure.woken.empty()) << "that fault has no claim";
  budget.end_claim(Instant{1});
  EXPECT_EQ(pressure.woken, std::vector<uint64_t>{8});
  EXPECT_TRUE(budget.try_take(Instant{2}));
}

TEST(Budget, SpareRoomLeavesFaultsHalfOfWhatIsAboveTheHighWaterMark) {
  Pressure pressure;
  Budget budget(pressure, 100, 80, 60);
  EXPECT_EQ(budget.take_spare(50), 50U);
  EXPECT_EQ(budget.take_spare(50), 40U);
  budget.give_back(1);
  EXPECT_EQ(budget.take_spare(1), 1U);
}

TEST(Budget, SpareRoomIsHalfOfWhatIsLeftWhereEvictionDoesNotKeepUp) {
  Pressure pressure;
  Budget budget(pressure, 100, 80, 60);
  EXPECT_EQ(budget.take_spare(90), 90U);
  EXPECT_EQ(budget.take_spare(50), 5U);
  EXPECT_EQ(budget.take_spare(50), 2U);
  EXPECT_EQ(budget.take_spare(50), 1U);
  EXPECT_EQ(budget.take_spare(50), 1U);
  EXPECT_EQ(budget.take_spare(50), 0U) << "the last page is for a fault";
  EXPECT_TRUE(budget.try_take());
  EXPECT_EQ(budget.take_spare(50), 0U);
}

constexpr uint64_t kLimit = 10'000;
constexpr Budget::Marks kAdaptive{.high = 96, .low = 92, .pressing = 96, .adaptive = true};

// How many pages are above the high-water mark.
uint64_t room_of(Budget& budget) {
  uint64_t room = budget.limit() - budget.used();
  while (!budget.above_high()) {
    budget.take_anyway();
    --room;
  }
  budget.give_back(budget.used());
  return room + 1;
}

TEST(Budget, RoomIsNarrowUntilSomebodyFindsNone) {
  Pressure pressure;
  Budget budget(pressure, kLimit, kAdaptive);
  EXPECT_EQ(room_of(budget), 50U) << "an eighth of 4 %";
  for (const uint64_t room : {100U, 200U, 400U, 400U}) {
    budget.take_anyway(kLimit);
    EXPECT_FALSE(budget.try_take());
    budget.give_back(kLimit);
    budget.adapt_room(false);
    EXPECT_EQ(room_of(budget), room);
  }
}

TEST(Budget, AWalkThatGetsLessThanItWantsWidensTheRoomToo) {
  Pressure pressure;
  Budget budget(pressure, kLimit, kAdaptive);
  budget.take_anyway(kLimit - 50);
  EXPECT_EQ(budget.take_spare(64), 25U);
  budget.adapt_room(false);
  budget.give_back(budget.used());
  EXPECT_EQ(room_of(budget), 100U);
}

TEST(Budget, RoomIsNarrowAgainAfterEvictionHasEndedOften) {
  Pressure pressure;
  Budget budget(pressure, kLimit, kAdaptive);
  budget.take_anyway(kLimit);
  EXPECT_FALSE(budget.try_take());
  budget.give_back(kLimit);
  budget.adapt_room(true);
  for (int i = 0; i < 15; ++i) budget.adapt_room(true);
  EXPECT_EQ(room_of(budget), 100U);
  for (int i = 0; i < 100; ++i) budget.adapt_room(false);
  EXPECT_EQ(room_of(budget), 100U) << "eviction has not ended again";
  budget.adapt_room(true);
  EXPECT_EQ(room_of(budget), 50U);
}

TEST(Budget, FixedMarksStayWhereTheyAre) {
  Pressure pressure;
  Budget budget(pressure, kLimit, {96, 92, 96});
  EXPECT_EQ(room_of(budget), 400U);
  budget.take_anyway(kLimit);
  EXPECT_FALSE(budget.try_take());
  budget.give_back(kLimit);
  for (int i = 0; i < 100; ++i) budget.adapt_room(true);
  EXPECT_EQ(room_of(budget), 400U);
}

TEST(Budget, TheEvictorIsWokenInTheSamePartOfANarrowRoom) {
  Pressure pressure;
  Budget budget(pressure, kLimit, {.high = 96, .low = 92, .pressing = 98, .adaptive = true});
  budget.take_anyway(kLimit - 25);
  EXPECT_TRUE(budget.above_high());
  EXPECT_FALSE(budget.is_pressing());
  budget.take_anyway();
  EXPECT_TRUE(budget.is_pressing());
}

TEST(Budget, ASmallBudgetHasAFewPagesOfRoom) {
  Pressure pressure;
  Budget budget(pressure, 256, kAdaptive);
  EXPECT_EQ(room_of(budget), 8U);
}

TEST(Budget, NoMarkIsFurtherFromTheLimitThanTheMostRoom) {
  Pressure pressure;
  Budget budget(pressure, kLimit, {.high = 100, .low = 95, .pressing = 100, .most_room = 256});
  EXPECT_EQ(budget.low(), kLimit - 256);
  EXPECT_EQ(room_of(budget), 0U);
  budget.resize(1000);
  EXPECT_EQ(budget.low(), 950U);
  budget.resize(20'000);
  EXPECT_EQ(budget.low(), 20'000U - 256);
}

TEST(Budget, OneInTheRoomOfFaultsSaysThatItIsNearlyFull) {
  Pressure pressure;
  Budget budget(pressure, 10, 80, 60);
  EXPECT_EQ(budget.take_spare(9), 9U);
  EXPECT_FALSE(budget.nearly_full());
  EXPECT_TRUE(budget.above_high());
  EXPECT_TRUE(budget.try_take());
  EXPECT_TRUE(budget.nearly_full());
  EXPECT_FALSE(budget.try_take());
}

TEST(Budget, ManyThreadsTakeExactlyWhatThereIs) {
  Pressure pressure;
  Budget budget(pressure, 1000, 90, 80);
  std::atomic<uint64_t> taken{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) taken += budget.try_take() ? 1 : 0;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taken, 1000U);
  EXPECT_EQ(budget.used(), 1000U);
}

// The timeouts in these tests are long: a lost wake-up makes them hang until their time limit.
TEST(Budget, WaiterIsWokenWhenPagesComeBack) {
  Pressure pressure;
  Budget budget(pressure, 1, 100, 100);
  ASSERT_TRUE(budget.try_take());
  SleepingThread sleeper;
  std::thread waiter([&] {
    sleeper.begin();
    while (!budget.try_take()) budget.wait_for_room(Seconds(3600));
  });
  sleeper.await();
  EXPECT_TRUE(budget.has_waiters());
  budget.give_back(1);
  waiter.join();
  EXPECT_EQ(budget.used(), 1U);
  EXPECT_FALSE(budget.has_waiters());
}

TEST(Budget, PagesThatComeBackBeforeTheWaiterSleepsEndItsWait) {
  Pressure pressure;
  Budget budget(pressure, 1, 100, 100);
  for (int round = 0; round < 100; ++round) {
    ASSERT_TRUE(budget.try_take());
    std::thread waiter([&] {
      while (!budget.try_take()) budget.wait_for_room(Seconds(3600));
    });
    while (!budget.has_waiters()) std::this_thread::yield();
    budget.give_back(1);
    waiter.join();
    budget.give_back(1);
  }
}

TEST(Budget, WorkersThatWaitForRoomAreWokenOnceWhenPagesComeBack) {
  NotingPressure pressure;
  Budget budget(pressure, 2, 100, 100);
  ASSERT_TRUE(budget.try_take());
  ASSERT_TRUE(budget.try_take());
  EXPECT_FALSE(budget.has_waiters());
  EXPECT_TRUE(budget.begin_room_wait(0));
  EXPECT_TRUE(budget.begin_room_wait(63));
  EXPECT_TRUE(budget.begin_room_wait(5));
  budget.end_room_wait(5);
  EXPECT_TRUE(budget.has_waiters());
  budget.evicted(1);
  budget.evicted(1);
  EXPECT_EQ(pressure.woken, std::vector{(uint64_t{1} << 63) | 1});
  EXPECT_FALSE(budget.has_waiters());
  EXPECT_FALSE(budget.begin_room_wait(0)) << "there is room";
  EXPECT_TRUE(budget.has_waiters());
  budget.end_room_wait(0);
  EXPECT_FALSE(budget.has_waiters());
}

TEST(Budget, AGrownOrLiftedLimitWakesWorkersToo) {
  NotingPressure pressure;
  Budget budget(pressure, 1, 100, 100);
  ASSERT_TRUE(budget.try_take());
  EXPECT_TRUE(budget.begin_room_wait(3));
  budget.lift_limit();
  EXPECT_EQ(pressure.woken, std::vector<uint64_t>{8});
  EXPECT_FALSE(budget.begin_room_wait(3));
  budget.restore_limit();
  budget.end_room_wait(3);
  EXPECT_TRUE(budget.begin_room_wait(4));
  budget.resize(2);
  EXPECT_EQ(pressure.woken, (std::vector<uint64_t>{8, 16}));
}

TEST(Budget, EvictorIsWokenByPressure) {
  Pressure pressure;
  Budget budget(pressure, 4, 50, 25);
  SleepingThread sleeper;
  std::thread evictor([&] {
    sleeper.begin();
    while (!budget.above_high()) pressure.wait(pressure.seen(), Seconds(3600));
  });
  sleeper.await();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(budget.try_take());
  budget.nudge();
  evictor.join();
  EXPECT_EQ(budget.used(), 3U);
}

TEST(Budget, WhatHappensBeforeTheEvictorSleepsEndsItsSleep) {
  Pressure pressure;
  Budget budget(pressure, 4, 50, 25);
  const uint32_t seen = pressure.seen();
  budget.interrupt();
  pressure.wait(seen, Seconds(3600));  // a lost wake-up would take an hour
}

TEST(Budget, EvictorSleepsOnWhereOthersEvictUntilThatIsNotEnough) {
  Pressure pressure;
  Budget budget(pressure, 10, {50, 40, 80});
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(budget.try_take());
  EXPECT_TRUE(budget.above_high());
  EXPECT_FALSE(budget.is_pressing());
  SleepingThread sleeper;
  std::thread evictor([&] {
    sleeper.begin();
    while (!budget.is_pressing()) pressure.wait(pressure.seen(), Seconds(3600));
  });
  sleeper.await();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(budget.try_take());
  budget.nudge();
  evictor.join();
  EXPECT_EQ(budget.used(), 9U);
}

TEST(Budget, AGrownBudgetWakesWhoWaitsForRoom) {
  Pressure pressure;
  Budget budget(pressure, 1, 100, 100);
  ASSERT_TRUE(budget.try_take());
  SleepingThread sleeper;
  std::thread waiter([&] {
    sleeper.begin();
    budget.wait_for_room(Seconds(3600));
  });
  sleeper.await();
  budget.resize(2);
  waiter.join();
  EXPECT_TRUE(budget.try_take());
  EXPECT_EQ(budget.limit(), 2U);
}

TEST(Budget, AShrunkBudgetWakesTheEvictor) {
  Pressure pressure;
  Budget budget(pressure, 100, 50, 40);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(budget.try_take());
  SleepingThread sleeper;
  std::thread evictor([&] {
    sleeper.begin();
    while (!budget.above_high()) pressure.wait(pressure.seen(), Seconds(3600));
  });
  sleeper.await();
  budget.resize(30);
  evictor.join();
  EXPECT_TRUE(budget.above_high());
}

TEST(Budget, WaterMarksFollowTheLimit) {
  Pressure pressure;
  Budget budget(pressure, 100, 80, 60);
  EXPECT_EQ(budget.take_spare(1000), 90U);
  EXPECT_TRUE(budget.above_high());
  budget.resize(200);
  EXPECT_FALSE(budget.above_low());
  EXPECT_EQ(budget.take_spare(1000), 90U);
  budget.resize(100);
  EXPECT_TRUE(budget.above_high());
  EXPECT_EQ(budget.take_spare(1000), 0U) << "more is used than the limit";
}

TEST(Budget, WhileItShrinksFaultsGetHalfOfTheRoomThatEvictionsMake) {
  Pressure pressure;
  Budget budget(pressure, 1000, 90, 80);
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(budget.try_take());
  budget.resize(400);
  EXPECT_FALSE(budget.try_take());
  uint64_t batches = 0;
  while (budget.used() > budget.limit()) {
    ASSERT_LT(++batches, 100U);
    const uint64_t before = budget.used();
    budget.evicted(20);
    uint64_t taken = 0;
    while (budget.try_take()) ++taken;
    if (budget.used() > budget.limit()) {
      EXPECT_EQ(taken, 10U) << "of " << before;
    }
  }
  EXPECT_EQ(batches, 59U);  // 10 pages less after each, 20 after the last
  EXPECT_FALSE(budget.try_take());
}

// All pages that the target frees itself are room for its faults, beside half of the evicted ones.
TEST(Budget, WhileItShrinksWhatIsGivenUpIsRoomForFaults) {
  Pressure pressure;
  Budget budget(pressure, 1000, 90, 80);
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(budget.try_take());
  budget.resize(400);
  budget.evicted(20);
  budget.give_back(1);
  uint64_t taken = 0;
  while (budget.try_take()) ++taken;
  EXPECT_EQ(taken, 11U);
}

TEST(Budget, FaultsOfAChildThatBeginsAboveItsLimitDoNotWaitForAllOfThat) {
  Pressure pressure;
  Budget budget(pressure, 400, 90, 80);
  budget.lift_limit();
  budget.inherit(1000);
  budget.resize(300);
  budget.restore_limit();
  EXPECT_FALSE(budget.try_take());
  budget.evicted(20);
  EXPECT_TRUE(budget.try_take());
  EXPECT_LE(budget.used(), 990U);
}

TEST(Budget, FaultsDoNotWaitForAllThatCameWhileTheLimitWasLifted) {
  Pressure pressure;
  Budget budget(pressure, 100, 90, 80);
  budget.lift_limit();
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(budget.try_take());
  budget.restore_limit();
  EXPECT_FALSE(budget.try_take());
  budget.evicted(20);
  EXPECT_TRUE(budget.try_take());
  budget.evicted(900);
  uint64_t taken = 0;
  while (budget.try_take()) ++taken;
  EXPECT_EQ(budget.used(), 100U) << taken;
}

TEST(Budget, AfterItHasShrunkTheNewLimitHolds) {
  Pressure pressure;
  Budget budget(pressure, 1000, 90, 80);
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(budget.try_take());
  budget.resize(400);
  budget.give_back(700);
  while (budget.try_take()) {
  }
  EXPECT_EQ(budget.used(), 400U);
}

TEST(Budget, GrownAgainWhileItShrinksItHasItsWholeRoom) {
  Pressure pressure;
  Budget budget(pressure, 1000, 90, 80);
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(budget.try_take());
  budget.resize(400);
  budget.give_back(100);
  budget.resize(2000);
  while (budget.try_take()) {
  }
  EXPECT_EQ(budget.used(), 2000U);
}

TEST(Budget, ManyThreadsStayWithinWhateverTheLimitHasBeen) {
  Pressure pressure;
  Budget budget(pressure, 1000, 90, 80);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> most{0};
  std::atomic<uint64_t> rounds{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (; !stop; ++rounds) {
        uint64_t taken = 0;
        while (taken < 300 && budget.try_take()) ++taken;
        const uint64_t used = budget.used();
        for (uint64_t seen = most; seen < used && !most.compare_exchange_weak(seen, used);) {
        }
        budget.give_back(taken);
      }
    });
  // At least so often, and for as long as the threads need to take and give back as often.
  for (uint64_t i = 0; i < 2000 || rounds < 2000; ++i) budget.resize(100 + i * 37 % 900);
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(most, 0U);
  EXPECT_LE(most, 1000U);
  EXPECT_EQ(budget.used(), 0U);
  budget.resize(100);
  while (budget.try_take()) {
  }
  EXPECT_EQ(budget.used(), 100U);
}

TEST(BudgetDeathTest, GivingBackWhatWasNotTakenIsABug) {
  Pressure pressure;
  Budget budget(pressure, 4, 50, 25);
  EXPECT_DEATH(budget.give_back(1), "given back");
}

}  // namespace
}  // namespace farpage::pager
