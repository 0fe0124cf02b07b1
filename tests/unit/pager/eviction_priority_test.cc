#include "pager/evict/eviction_priority.h"

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <functional>
#include <thread>
#include <vector>

namespace farpage::pager {
namespace {

int niceness(pid_t thread) {
  return ::getpriority(PRIO_PROCESS, static_cast<id_t>(thread));
}

bool set_niceness(int value) {
  return ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), value) == 0;
}

// A thread that runs `begin` and then sleeps until the destructor.
class IdleThread {
 public:
  explicit IdleThread(const std::function<void()>& begin = [] {})
      : thread_([this, begin] {
          begin();
          id_ = ::gettid();
          id_.notify_all();
          ends_.wait(false);
        }) {
    id_.wait(0);
  }
  ~IdleThread() {
    ends_ = true;
    ends_.notify_all();
    thread_.join();
  }
  pid_t id() const { return id_; }

 private:
  std::atomic<pid_t> id_{0};
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

// Skipped without the right to lower a niceness.
class EvictionPriorityTest : public testing::Test {
 protected:
  void SetUp() override {
    bool may = false;
    std::thread([&may] { may = set_niceness(1) && set_niceness(0); }).join();
    if (!may) GTEST_SKIP() << "needs CAP_SYS_NICE";
  }
};

TEST_F(EvictionPriorityTest, StepsBackBehindAllAndComesForwardToWhereItWas) {
  const IdleThread usual;
  const IdleThread nice([] { ASSERT_TRUE(set_niceness(3)); });
  EvictionPriority priority;
  priority.add(usual.id());
  priority.add(nice.id());
  EXPECT_EQ(niceness(usual.id()), 0);
  EXPECT_EQ(niceness(nice.id()), 3);
  for (int i = 0; i < 3; ++i) {
    priority.step_back();
    EXPECT_EQ(niceness(usual.id()), 19);
    EXPECT_EQ(niceness(nice.id()), 19);
    priority.come_forward();
    EXPECT_EQ(niceness(usual.id()), 0);
    EXPECT_EQ(niceness(nice.id()), 3);
  }
}

TEST_F(EvictionPriorityTest, GoesAheadOfTheOthersAndBackToWhereItWas) {
  const IdleThread nice([] { ASSERT_TRUE(set_niceness(3)); });
  EvictionPriority priority;
  priority.add(nice.id());
  priority.go_ahead(true);
  EXPECT_EQ(niceness(nice.id()), -7);
  priority.come_forward();
  EXPECT_EQ(niceness(nice.id()), -7) << "it is not back";
  priority.go_ahead(false);
  EXPECT_EQ(niceness(nice.id()), 3);
  priority.go_ahead(true);
  priority.step_back();
  EXPECT_EQ(niceness(nice.id()), 19);
  priority.go_ahead(false);
  EXPECT_EQ(niceness(nice.id()), 19) << "it was not ahead";
  priority.come_forward();
  EXPECT_EQ(niceness(nice.id()), 3);
}

TEST_F(EvictionPriorityTest, WhoIsAddedLateIsWhereTheOtherIs) {
  const IdleThread evictor;
  const IdleThread agent;
  EvictionPriority priority;
  priority.add(evictor.id());
  priority.step_back();
  priority.add(agent.id());
  EXPECT_EQ(niceness(agent.id()), 19);
  priority.come_forward();
  EXPECT_EQ(niceness(evictor.id()), 0);
  EXPECT_EQ(niceness(agent.id()), 0);
}

TEST_F(EvictionPriorityTest, OfManyAtOnceTheLastOneIsObeyed) {
  const IdleThread evictor;
  EvictionPriority priority;
  priority.add(evictor.id());
  for (int round = 0; round < 200; ++round) {
    std::vector<std::thread> threads;
    std::barrier all_at_once(4);
    for (int t = 0; t < 3; ++t)
      threads.emplace_back([&] {
        all_at_once.arrive_and_wait();
        priority.come_forward();
      });
    all_at_once.arrive_and_wait();
    priority.step_back();
    for (std::thread& thread : threads) thread.join();
    priority.come_forward();
    ASSERT_EQ(niceness(evictor.id()), 0) << round;
    priority.step_back();
    ASSERT_EQ(niceness(evictor.id()), 19) << round;
    priority.come_forward();
  }
}

TEST_F(EvictionPriorityTest, WhoCouldNotComeBackStaysWhereItIs) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NICE, &limit), 0);
  if (limit.rlim_cur >= 20) GTEST_SKIP() << "RLIMIT_NICE lets every thread come back";
  int least = -1, after = -2;
  std::thread([&] {
    // pid 0: this thread only.
    __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {};
    ASSERT_EQ(::syscall(SYS_capset, &header, none), 0);
    EvictionPriority priority;
    priority.add(::gettid());
    least = niceness(::gettid());
    priority.step_back();
    after = niceness(::gettid());
  }).join();
  EXPECT_EQ(after, least);
  EXPECT_LE(after, 1);
}

TEST_F(EvictionPriorityTest, AThreadThatIsGoneIsNobody) {
  pid_t gone = 0;
  std::thread([&gone] { gone = ::gettid(); }).join();
  const IdleThread evictor;
  const IdleThread agent;
  EvictionPriority priority;
  priority.add(gone);  // takes no place of the others
  priority.add(evictor.id());
  priority.add(agent.id());
  priority.step_back();
  EXPECT_EQ(niceness(evictor.id()), 19);
  EXPECT_EQ(niceness(agent.id()), 19);
}

}  // namespace
}  // namespace farpage::pager
