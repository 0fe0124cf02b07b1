// A victim that is written before it is dropped.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "interrupted_space.h"
#include "rig.h"

namespace farpage::pager {
namespace {

constexpr PageIndex kVictim{7};

TEST(Rescue, WriteToAVictimKeepsItWithoutARead) {
  InterruptedSpace* space = nullptr;
  Rig rig(interruptible(space));
  volatile uint64_t* words = rig.page(kVictim.value);
  words[0] = 1;
  // A page that is not in the table yet is not evicted, and the hint is dropped.
  ASSERT_TRUE(comes_true([&] { return rig.stats().faults_zero == 1; }));

  std::atomic<bool> written{false};
  space->interrupt(InterruptedSpace::Call::kProtect, kVictim, [&] {
    words[1] = 2;
    written.store(true, std::memory_order_release);
  });
  rig.pager().hint_cold({kVictim, 1});
  ASSERT_TRUE(comes_true([&] {
    return written.load(std::memory_order_acquire) && rig.stats().evictions_cancelled == 1;
  }));
  EXPECT_FALSE(rig.pager().is_away(kVictim));
  EXPECT_EQ(words[0], 1U);
  EXPECT_EQ(words[1], 2U);
  const PagerStats stats = rig.stats();
  EXPECT_EQ(stats.faults_rescued, 1U);
  EXPECT_EQ(stats.evictions(), 0U);
  EXPECT_EQ(stats.reads, 0U);
}

}  // namespace
}  // namespace farpage::pager
