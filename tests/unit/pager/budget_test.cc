#include "pager/budget.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace farpage::pager {
namespace {

TEST(Budget, NeverGoesOverItsLimit) {
  Budget budget(10, 8, 6);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(budget.try_take());
  EXPECT_FALSE(budget.try_take());
  EXPECT_EQ(budget.used(), 10U);
  budget.give_back(1);
  EXPECT_TRUE(budget.try_take());
}

TEST(Budget, SpareRoomEndsAtTheHighWaterMark) {
  Budget budget(10, 8, 6);
  EXPECT_EQ(budget.take_spare(5), 5U);
  EXPECT_EQ(budget.take_spare(5), 3U);
  EXPECT_EQ(budget.take_spare(5), 0U);
  EXPECT_TRUE(budget.above_low());
  EXPECT_FALSE(budget.above_high());
}

TEST(Budget, ManyThreadsTakeExactlyWhatThereIs) {
  Budget budget(1000, 900, 800);
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

TEST(Budget, WaiterIsWokenWhenPagesComeBack) {
  Budget budget(1, 1, 1);
  ASSERT_TRUE(budget.try_take());
  std::thread waiter([&] {
    while (!budget.try_take()) budget.wait_for_room(Seconds(60));
  });
  while (!budget.has_waiters()) std::this_thread::yield();
  budget.give_back(1);
  waiter.join();  // would take a minute if the wake-up were lost
  EXPECT_EQ(budget.used(), 1U);
}

TEST(Budget, EvictorIsWokenByPressure) {
  Budget budget(4, 2, 1);
  std::thread evictor([&] {
    while (!budget.above_high()) budget.wait_for_pressure(Seconds(60));
  });
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(budget.try_take());
  evictor.join();
  EXPECT_EQ(budget.used(), 3U);
}

TEST(BudgetDeathTest, GivingBackWhatWasNotTakenIsABug) {
  Budget budget(4, 2, 1);
  EXPECT_DEATH(budget.give_back(1), "given back");
}

}  // namespace
}  // namespace farpage::pager
