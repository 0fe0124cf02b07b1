// The end of a pager, whatever its threads are doing.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>

#include "interrupted_space.h"
#include "rig.h"
#include "tests/sleeping_thread.h"

namespace farpage::pager {
namespace {

// The evictor faults like any other thread when it copies out a page that was dropped meanwhile.
TEST(Stop, WaitsForTheEvictorThatWaitsForAFaultWorker) {
  constexpr PageIndex kEvicted{7};
  InterruptedSpace* space = nullptr;
  Rig rig(interruptible(space));
  fill(rig, kEvicted.value, 1);
  ASSERT_TRUE(comes_true([&] { return rig.stats().faults_zero == 1; }));

  std::atomic<bool> is_protected{false};
  SleepingThread stopper;
  std::atomic<bool> dropped{false};
  space->interrupt(InterruptedSpace::Call::kProtect, kEvicted, [&] {
    is_protected.store(true);
    stopper.await();  // it waits for this batch
    dropped.store(::madvise(rig.bytes(kEvicted.value), kPageBytes, MADV_DONTNEED) == 0);
  });
  rig.pager().hint_cold({kEvicted, 1});
  ASSERT_TRUE(comes_true([&] { return is_protected.load(); }));
  stopper.begin();
  rig.stop();  // would not return
  EXPECT_TRUE(dropped);
}

}  // namespace
}  // namespace farpage::pager
