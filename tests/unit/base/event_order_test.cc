#include "base/event_order.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace farpage {
namespace {

TEST(EventOrder, SectionsOfOneKindExcludeThoseOfTheOther) {
  EventOrder order;
  order.begin_changing();
  order.begin_changing();
  EXPECT_FALSE(order.try_begin_reading());
  order.end_changing();
  EXPECT_FALSE(order.try_begin_reading());
  order.end_changing();
  EXPECT_TRUE(order.try_begin_reading());
  EXPECT_FALSE(order.try_begin_reading());
  std::atomic<bool> begun{false};
  std::thread other([&] {
    const ChangingPages section(&order);
    begun = true;
  });
  std::this_thread::yield();
  EXPECT_FALSE(begun);
  order.end_reading();
  other.join();
  EXPECT_TRUE(begun);
}

TEST(EventOrder, TellsThatAThreadHasTriedToReadInVain) {
  EventOrder order;
  EXPECT_FALSE(order.is_reading_wanted());
  order.begin_changing();
  EXPECT_FALSE(order.is_reading_wanted());
  EXPECT_FALSE(order.try_begin_reading());
  EXPECT_TRUE(order.is_reading_wanted());
  order.end_changing();
  EXPECT_TRUE(order.is_reading_wanted());
  EXPECT_TRUE(order.try_begin_reading());
  EXPECT_FALSE(order.is_reading_wanted());
  order.end_reading();
}

TEST(EventOrder, TheOnlySectionThatChangesBecomesOneThatReads) {
  EventOrder order;
  order.begin_changing();
  order.become_reading();
  EXPECT_FALSE(order.try_begin_reading());
  order.end_reading();
  EXPECT_TRUE(order.try_begin_reading());
  order.end_reading();
}

TEST(EventOrder, WhatWasChangedIsSeenByWhoReads) {
  EventOrder order;
  uint64_t changes = 0;  // of the sections below
  std::atomic<uint64_t> changed{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread)
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        const ChangingPages section(&order);
        ++changed;
      }
    });
  while (changes < 3000) {
    if (!order.try_begin_reading()) {
      std::this_thread::yield();
      continue;
    }
    const uint64_t before = changed;
    std::this_thread::yield();
    EXPECT_EQ(changed, before) << "nobody changes anything meanwhile";
    changes = changed;
    order.end_reading();
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace farpage
