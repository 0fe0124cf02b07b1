#include "snapshot/session.h"

#include <gtest/gtest.h>

#include <thread>

namespace farpage::snapshot {
namespace {

// While somebody closes it, nobody is inside.
TEST(InstallGate, NobodyIsInsideWhileItIsClosed) {
  InstallGate gate;
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> entered{0};
  // Written inside without a lock by the one, and while closed by the other.
  std::atomic<int> inside{0};
  std::atomic<uint64_t> broken{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i)
    threads.emplace_back([&] {
      while (!stop) {
        if (!gate.enter()) continue;
        ++inside;
        ++entered;
        --inside;
        gate.leave();
      }
    });
  while (entered < 1000) std::this_thread::yield();
  for (int i = 0; i < 2000; ++i) {
    gate.close();
    if (inside != 0) ++broken;
    const uint64_t before = entered;
    for (int j = 0; j < 100; ++j)
      if (entered != before) ++broken;
    gate.open();
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(broken, 0U);
  EXPECT_TRUE(gate.enter());
}

}  // namespace
}  // namespace farpage::snapshot
