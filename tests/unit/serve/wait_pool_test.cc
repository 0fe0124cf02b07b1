#include "serve/wait_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <thread>

namespace farpage::serve {
namespace {

TEST(WaitPool, ACallThatWaitsDelaysNoOther) {
  constexpr int kCalls = 40;
  std::latch all_wait(kCalls);
  std::atomic<int> done{0};
  {
    WaitPool pool;
    for (int i = 0; i < kCalls; ++i)
      pool.run([&] {
        all_wait.arrive_and_wait();  // would never return with fewer threads than calls
        ++done;
      });
    all_wait.wait();
  }
  EXPECT_EQ(done, kCalls);
}

TEST(WaitPool, CallsThatHaveBegunEndBeforeThePool) {
  std::atomic<bool> begun{false};
  std::atomic<bool> ended{false};
  {
    WaitPool pool;
    pool.run([&] {
      begun = true;
      begun.notify_all();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ended = true;
    });
    begun.wait(false);
  }
  EXPECT_TRUE(ended);
}

}  // namespace
}  // namespace farpage::serve
