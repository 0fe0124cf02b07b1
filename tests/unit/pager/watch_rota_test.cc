#include "pager/watch_rota.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>

namespace farpage::pager {
namespace {

class WatchRotaTest : public testing::Test {
 protected:
  void SetUp() override {
    auto rota = WatchRota::create(2);
    ASSERT_TRUE(rota) << rota.error().message();
    rota_ = std::move(*rota);
    auto events = Doorbell::create();
    ASSERT_TRUE(events);
    events_.emplace(std::move(*events));
  }

  std::unique_ptr<WatchRota> rota_;
  std::optional<Doorbell> events_;
};

TEST_F(WatchRotaTest, WatchingEndsWithAnEvent) {
  events_->ring();
  EXPECT_TRUE(rota_->watch(0, events_->fd()));
}

TEST_F(WatchRotaTest, AWorkerWithTheOneThreadOnItsCpuSendsTheOtherToRest) {
  std::atomic<bool> returned{false};
  std::jthread other([&] {
    EXPECT_FALSE(rota_->watch(1, events_->fd())) << "there was no event, so it was dismissed";
    returned = true;
  });
  while (!returned)
    for (uint32_t i = 0; i < WatchRota::kWinsToDismiss; ++i) rota_->won(0, {7, true});
}

TEST_F(WatchRotaTest, OneWorkerHasWonLastWhateverTheThread) {
  rota_->won(1, {7, true});
  EXPECT_TRUE(rota_->won_last(1));
  EXPECT_FALSE(rota_->won_last(0));
  rota_->won(0, {7, false});
  rota_->won(0, {8, true});
  EXPECT_TRUE(rota_->won_last(0));
  EXPECT_FALSE(rota_->won_last(1));
}

TEST_F(WatchRotaTest, WithoutThatEvidenceEverybodyWatchesOn) {
  std::atomic<bool> had_event{false};
  std::jthread other([&] { had_event = rota_->watch(1, events_->fd()); });
  for (uint32_t i = 0; i < 100 * WatchRota::kWinsToDismiss; ++i) {
    rota_->won(0, {i % 2, true});              // two threads fault
    rota_->won(0, {7, i % 4 != 0});            // it had to watch for the fault
    if (i % 4 == 0) rota_->won(1, {7, true});  // the other was faster
  }
  EXPECT_FALSE(had_event);
  events_->ring();
  other.join();
  EXPECT_TRUE(had_event) << "it watched until the event came";
}

TEST_F(WatchRotaTest, WhoRestsWatchesAgainWhenTheOtherHasStopped) {
  constexpr uint32_t kRests = 4;
  std::atomic<uint32_t> rests{0};
  std::atomic<uint32_t> wins{0};
  std::atomic<bool> had_event{false};
  std::jthread other([&] {
    // Between a rest and the next watch the first worker has won again, kRests times.
    for (uint32_t rest = 1; !rota_->watch(1, events_->fd()); ++rest) {
      rests = rest;
      while (rest <= kRests && wins < rest) std::this_thread::yield();
    }
    had_event = true;
  });
  while (rests == 0) rota_->won(0, {7, true});
  events_->ring();  // and nobody takes the event: who watches has it at once
  for (uint32_t rest = 1; rest <= kRests; ++rest) {
    while (rests < rest && !had_event) std::this_thread::yield();
    EXPECT_FALSE(had_event) << "it watched on after rest " << rest;
    rota_->won(0, {7, true});
    wins = rest;
  }
  other.join();  // nobody wins any more
  EXPECT_TRUE(had_event);
}

TEST_F(WatchRotaTest, DoubtCallsBackWhoRests) {
  // Whoever is not called back rests for longer than any test may run.
  auto patient = WatchRota::create(2, std::chrono::hours(1));
  ASSERT_TRUE(patient);
  WatchRota& rota = **patient;
  for (int round = 0; round < 30; ++round) {
    std::atomic<bool> returned{false};
    std::jthread other([&] {
      (void)rota.watch(1, events_->fd());
      returned = true;
    });
    while (!returned) {
      for (uint32_t i = 0; i <= WatchRota::kWinsToDismiss; ++i) rota.won(0, {7, true});
      for (uint32_t i = 0; i < WatchRota::kDoubtsToRecall; ++i) rota.won(0, {7, false});
    }
  }
}

TEST_F(WatchRotaTest, StopEndsEveryWatchNowAndLater) {
  std::jthread other([&] { EXPECT_FALSE(rota_->watch(1, events_->fd())); });
  rota_->stop();
  other.join();
  EXPECT_FALSE(rota_->watch(0, events_->fd()));
  EXPECT_FALSE(rota_->watch(1, events_->fd()));
}

TEST_F(WatchRotaTest, StopEndsTheRestsOfWhoRestsAgainAndAgain) {
  for (int round = 0; round < 30; ++round) {
    auto rota = WatchRota::create(2, Milliseconds(1));
    ASSERT_TRUE(rota);
    std::atomic<uint32_t> rests{0};
    std::atomic<bool> stopped{false};
    std::jthread other([&] {
      while (!stopped) {
        (void)(*rota)->watch(1, events_->fd());
        ++rests;
      }
    });
    while (rests < 3) (*rota)->won(0, {7, true});
    stopped = true;
    (*rota)->stop();
    other.join();
  }
}

}  // namespace
}  // namespace farpage::pager
