#include "pager/fault/wake_policy.h"

#include <gtest/gtest.h>

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

TEST_F(WakePolicyTest, AWorkerWithTheOneThreadOnItsCpuSendsTheOtherToRest) {
  std::atomic<bool> returned{false};
  std::jthread other([&] {
    EXPECT_FALSE(wake_policy_->watch(1, events_->fd()))
        << "there was no event, so it was sent to rest";
    returned = true;
  });
  while (!returned)
    for (uint32_t i = 0; i < WakePolicy::kWinsToStop; ++i) wake_policy_->won(0, {7, true});
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
  // A worker that is not recalled rests for longer than any test may run.
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

TEST_F(WakePolicyTest, StopEndsTheRestsOfWhoRestsAgainAndAgain) {
  for (int round = 0; round < 30; ++round) {
    auto wake_policy = WakePolicy::create(2, Milliseconds(1));
    ASSERT_TRUE(wake_policy);
    std::atomic<uint32_t> rests{0};
    std::atomic<bool> stopped{false};
    std::jthread other([&] {
      while (!stopped) {
        (void)(*wake_policy)->watch(1, events_->fd());
        ++rests;
      }
    });
    while (rests < 3) (*wake_policy)->won(0, {7, true});
    stopped = true;
    (*wake_policy)->stop();
    other.join();
  }
}

}  // namespace
}  // namespace farpage::pager
