#include "base/running_threads.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "base/cpus.h"

namespace farpage {
namespace {

// On one CPU after the other, under a name that looks like the end of the name and more fields.
TEST(RunningThreads, TellsTheCpuOfAThread) {
  const std::vector<int> allowed = allowed_cpus();
  ASSERT_FALSE(allowed.empty());
  std::jthread([&allowed] {
    ASSERT_EQ(::prctl(PR_SET_NAME, ") R 1 (x) y"), 0);
    const auto self = static_cast<uint32_t>(::gettid());
    RunningThreads threads;
    for (const int cpu : allowed) {
      ASSERT_TRUE(run_on(cpu));
      EXPECT_EQ(threads.cpu_of(self), cpu);
    }
  }).join();
}

TEST(RunningThreads, AThreadThatHasEndedHasNone) {
  std::atomic<uint32_t> thread{0};
  std::atomic<bool> ends{false};
  RunningThreads threads;
  std::jthread other([&] {
    thread = static_cast<uint32_t>(::gettid());
    thread.notify_one();
    ends.wait(false);
  });
  thread.wait(0);
  EXPECT_TRUE(threads.cpu_of(thread));
  ends = true;
  ends.notify_one();
  other.join();
  // The file is still open. join() returns before the kernel has taken the thread out.
  while (threads.cpu_of(thread)) std::this_thread::yield();
  EXPECT_FALSE(RunningThreads().cpu_of(thread));
  EXPECT_TRUE(threads.cpu_of(static_cast<uint32_t>(::gettid()))) << "another one, afterwards";
}

TEST(RunningThreads, CountsThoseThatRun) {
  RunningThreads threads;
  EXPECT_GE(threads.count(), 1U) << "this one runs";
  std::atomic<bool> ends{false};
  std::vector<std::jthread> busy;
  for (int i = 0; i < 8; ++i)
    busy.emplace_back([&ends] {
      while (!ends) {
      }
    });
  while (threads.count() < 9) std::this_thread::yield();
  ends = true;
}

}  // namespace
}  // namespace farpage
