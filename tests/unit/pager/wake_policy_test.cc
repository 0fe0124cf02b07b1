#include "pager/fault/wake_policy.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <optional>
#include <thread>

#include "tests/sleeping_thread.h"

namespace farpage::pager {
namespace {

class WakePolicyTest : public testing::Test {
 protected:
  void SetUp() override {
    auto wake_policy = WakePolicy::create(2);
    ASSERT_TRUE(wake_policy) << wake_policy.error().message();
    wake_policy_ = std::move(*wake_policy);
    auto events = Doorbell::create();
    ASSERT_TRUE(events);
    events_.emplace(std::move(*events));
  }

  std::unique_ptr<WakePolicy> wake_policy_;
  std::optional<Doorbell> events_;
};

TEST_F(WakePolicyTest, WatchingEndsWithAnEvent) {
  events_->ring();
  EXPECT_TRUE(wake_policy_->watch(0, events_->fd()));
}

// A worker that rests is not woken by events, and one that is not called back rests for longer than
// any test may run.
struct RestingWorker {
  explicit RestingWorker(const Doorbell& watched)
      : policy(std::move(*WakePolicy::create(2, std::chrono::hours(1)))), events(watched) {}
  // Worker 1 watches; then worker 0 has evidence that no other is needed.
  void begin() {
    thread = std::jthread([this] {
      sleeper.begin();
      had_event = policy->watch(1, events.fd());
    });
    const uint64_t watches = sleeper.await();
    for (uint32_t i = 0; i <= WakePolicy::kWinsToStop; ++i) policy->won(0, {7, true});
    rests = sleeper.await_after(watches);
  }

  std::unique_ptr<WakePolicy> policy;
  const Doorbell& events;
  SleepingThread sleeper;
  uint64_t rests = 0;  // which of its sleeps the rest is
  std::atomic<bool> had_event{false};
  std::jthread thread;
};

TEST_F(WakePolicyTest, AWorkerWithTheOneThreadOnItsCpuSendsTheOtherToRest) {
  RestingWorker other(*events_);
  other.begin();
  events_->ring();
  EXPECT_TRUE(other.sleeper.sleeps_since(other.rests)) << "events do not wake it any more";
  other.policy->stop();
  other.thread.join();
  EXPECT_FALSE(other.had_event);
}

TEST_F(WakePolicyTest, OneWorkerHasWonLastWhateverTheThread) {
  wake_policy_->won(1, {7, true});
  EXPECT_TRUE(wake_policy_->won_last(1));
  EXPECT_FALSE(wake_policy_->won_last(0));
  wake_policy_->won(0, {7, false});
  wake_policy_->won(0, {8, true});
  EXPECT_TRUE(wake_policy_->won_last(0));
  EXPECT_FALSE(wake_policy_->won_last(1));
}

TEST_F(WakePolicyTest, WithoutThatEvidenceEverybodyWatchesOn) {
  std::atomic<bool> had_event{false};
  SleepingThread sleeper;
  std::jthread other([&] {
    sleeper.begin();
    had_event = wake_policy_->watch(1, events_->fd());
  });
  sleeper.await();
  for (uint32_t i = 0; i < 100 * WakePolicy::kWinsToStop; ++i) {
    wake_policy_->won(0, {i % 2, true});              // two threads fault
    wake_policy_->won(0, {7, i % 4 != 0});            // worker 0 had to watch for the fault
    if (i % 4 == 0) wake_policy_->won(1, {7, true});  // worker 1 was faster
  }
  EXPECT_FALSE(had_event);
  events_->ring();
  other.join();
  EXPECT_TRUE(had_event) << "it watched until the event came";
}

TEST_F(WakePolicyTest, WhoRestsWatchesAgainWhenTheOtherHasStopped) {
  constexpr uint32_t kRests = 4;
  std::atomic<uint32_t> rests{0};
  std::atomic<uint32_t> wins{0};
  std::atomic<bool> had_event{false};
  std::jthread other([&] {
    // Worker 0 wins again between each of the first kRests rests and the next watch.
    for (uint32_t rest = 1; !wake_policy_->watch(1, events_->fd()); ++rest) {
      rests = rest;
      while (rest <= kRests && wins < rest) std::this_thread::yield();
    }
    had_event = true;
  });
  while (rests == 0) wake_policy_->won(0, {7, true});
  events_->ring();  // nobody takes the event, so a watch returns at once
  for (uint32_t rest = 1; rest <= kRests; ++rest) {
    while (rests < rest && !had_event) std::this_thread::yield();
    EXPECT_FALSE(had_event) << "it watched on after rest " << rest;
    wake_policy_->won(0, {7, true});
    wins = rest;
  }
  other.join();  // no more wins
  EXPECT_TRUE(had_event);
}

TEST_F(WakePolicyTest, DoubtCallsBackWhoRests) {
  for (int round = 0; round < 10; ++round) {
    RestingWorker other(*events_);
    other.begin();
    for (uint32_t i = 0; i < WakePolicy::kDoubtsToRecall; ++i) other.policy->won(0, {7, false});
    other.thread.join();  // would take an hour
    EXPECT_FALSE(other.had_event);
  }
}

// The dismissal and the recall come at any time, also before the other has begun to rest.
TEST_F(WakePolicyTest, DoubtCallsBackWhoIsAboutToRest) {
  auto patient = WakePolicy::create(2, std::chrono::hours(1));
  ASSERT_TRUE(patient);
  WakePolicy& wake_policy = **patient;
  for (int round = 0; round < 30; ++round) {
    std::atomic<bool> returned{false};
    std::jthread other([&] {
      (void)wake_policy.watch(1, events_->fd());
      returned = true;
    });
    while (!returned) {
      for (uint32_t i = 0; i <= WakePolicy::kWinsToStop; ++i) wake_policy.won(0, {7, true});
      for (uint32_t i = 0; i < WakePolicy::kDoubtsToRecall; ++i) wake_policy.won(0, {7, false});
    }
  }
}

TEST_F(WakePolicyTest, StopEndsEveryWatchNowAndLater) {
  SleepingThread sleeper;
  std::jthread other([&] {
    sleeper.begin();
    EXPECT_FALSE(wake_policy_->watch(1, events_->fd()));
  });
  sleeper.await();
  wake_policy_->stop();
  other.join();
  EXPECT_FALSE(wake_policy_->watch(0, events_->fd()));
  EXPECT_FALSE(wake_policy_->watch(1, events_->fd()));
}

// Both wait for room; the first of them watches the events.
TEST_F(WakePolicyTest, OneOfThoseThatWaitForRoomWatchesForAll) {
  std::array<SleepingThread, 2> sleepers;
  std::array<std::jthread, 2> threads;
  std::array<uint64_t, 2> sleeps{};
  for (uint32_t worker : {0, 1}) {
    threads[worker] = std::jthread([&, worker] {
      sleepers[worker].begin();
      wake_policy_->await_room(worker, events_->fd(), std::chrono::hours(1));
    });
    sleeps[worker] = sleepers[worker].await();
  }
  events_->ring();
  threads[0].join();
  EXPECT_TRUE(sleepers[1].sleeps_since(sleeps[1]));
  wake_policy_->wake(0b10);
  threads[1].join();
  wake_policy_->await_room(1, events_->fd(), std::chrono::hours(1));  // it watches now
  (void)events_->wait(Milliseconds(0));
  wake_policy_->await_room(1, events_->fd(), Milliseconds(1));
}

TEST_F(WakePolicyTest, WhoHasNoPlaceForEventsIsWokenForRoomAlone) {
  events_->ring();
  SleepingThread sleeper;
  std::jthread other([&] {
    sleeper.begin();
    wake_policy_->await_room(1, -1, std::chrono::hours(1));
  });
  const uint64_t sleep = sleeper.await();
  wake_policy_->await_room(0, events_->fd(), std::chrono::hours(1));  // it may watch
  EXPECT_TRUE(sleeper.sleeps_since(sleep));
  wake_policy_->stop();
}

TEST_F(WakePolicyTest, StopEndsARest) {
  for (int round = 0; round < 10; ++round) {
    RestingWorker other(*events_);
    other.begin();
    other.policy->stop();
    other.thread.join();  // would take an hour
    EXPECT_FALSE(other.had_event);
  }
}

TEST_F(WakePolicyTest, StopEndsTheRestsOfWhoRestsAgainAndAgain) {
  for (int round = 0; round < 30; ++round) {
    auto wake_policy = WakePolicy::create(2, Milliseconds(1));
    ASSERT_TRUE(wake_policy);
    std::atomic<uint32_t> rests{0};
    std::atomic<bool> ends{false};
    std::jthread other([&] {
      while (!ends) {
        (void)(*wake_policy)->watch(1, events_->fd());
        ++rests;
      }
    });
    while (rests < 3) (*wake_policy)->won(0, {7, true});
    (*wake_policy)->stop();
    // Whatever it was doing then: from now on it does not wait, though nothing wakes it.
    const uint32_t before = rests;
    while (rests < before + 100) std::this_thread::yield();
    ends = true;
  }
}

}  // namespace
}  // namespace farpage::pager
