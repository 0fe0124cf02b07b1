#include "rdma/session_fences.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>

namespace farpage::rdma {
namespace {

TEST(SessionFences, OnlyTheNewestPassOfASessionIsOpen) {
  SessionFences fences;
  const SessionFences::Pass first = fences.enter(7);
  EXPECT_TRUE(first.is_open());
  const SessionFences::Pass second = fences.enter(7);
  EXPECT_FALSE(first.is_open());
  EXPECT_TRUE(second.is_open());
  bool used = false;
  EXPECT_FALSE(first.use_if_open([&] { used = true; }));
  EXPECT_FALSE(used);
  EXPECT_TRUE(second.use_if_open([&] { used = true; }));
  EXPECT_TRUE(used);
}

TEST(SessionFences, OtherSessionsAndOtherHostsAreLeftAlone) {
  SessionFences fences;
  const SessionFences::Pass pass = fences.enter(7, 1);
  const SessionFences::Pass other_session = fences.enter(8, 1);
  const SessionFences::Pass other_host = fences.enter(7, 2);
  EXPECT_TRUE(pass.is_open());
  EXPECT_TRUE(other_session.is_open());
  EXPECT_TRUE(other_host.is_open());
  EXPECT_EQ(fences.size(), 3U);
}

TEST(SessionFences, ChannelsWithoutASessionAreNeverFenced) {
  SessionFences fences;
  const SessionFences::Pass first = fences.enter(0);
  const SessionFences::Pass second = fences.enter(0);
  EXPECT_TRUE(first.is_open());
  EXPECT_TRUE(second.is_open());
  EXPECT_TRUE(SessionFences::Pass().is_open());
  EXPECT_EQ(fences.size(), 0U);
}

TEST(SessionFences, TableHoldsNoMoreThanTheOpenPasses) {
  SessionFences fences;
  {
    std::optional<SessionFences::Pass> former = fences.enter(7);
    SessionFences::Pass latter = fences.enter(7);
    EXPECT_EQ(fences.size(), 1U);
    former.reset();  // does not remove the newer one's entry
    EXPECT_EQ(fences.size(), 1U);
    const SessionFences::Pass moved = std::move(latter);
    EXPECT_TRUE(moved.is_open());
    EXPECT_EQ(fences.size(), 1U);
    latter = fences.enter(9);
    EXPECT_EQ(fences.size(), 2U);
  }
  EXPECT_EQ(fences.size(), 0U);
}

TEST(SessionFences, FormerOneIsToldOnceAndNotAfterItsEnd) {
  SessionFences fences;
  int told = 0;
  const auto tell = [&] { ++told; };
  std::optional<SessionFences::Pass> first = fences.enter(7, 0, tell);
  std::optional<SessionFences::Pass> second = fences.enter(7, 0, tell);
  EXPECT_EQ(told, 1);
  second.reset();
  const SessionFences::Pass third = fences.enter(7);
  EXPECT_EQ(told, 1);
  EXPECT_FALSE(first->is_open());
}

TEST(SessionFences, EnterWaitsForTheUseThatIsUnderWay) {
  SessionFences fences;
  for (int round = 0; round < 200; ++round) {
    const SessionFences::Pass former = fences.enter(7);
    std::atomic<bool> in_use{false};
    std::atomic<int> uses{0};
    std::thread user([&] {
      while (former.use_if_open([&] {
        in_use.store(true, std::memory_order_release);
        uses.fetch_add(1, std::memory_order_release);
        std::this_thread::yield();
        in_use.store(false, std::memory_order_release);
      })) {
      }
    });
    while (uses.load(std::memory_order_acquire) == 0) std::this_thread::yield();
    const SessionFences::Pass latter = fences.enter(7);
    EXPECT_FALSE(in_use.load(std::memory_order_acquire));
    const int uses_at_takeover = uses.load(std::memory_order_acquire);
    user.join();
    EXPECT_EQ(uses.load(std::memory_order_acquire), uses_at_takeover);
  }
}

// Of a slab on a disk that stands still.
TEST(SessionFences, UseThatTakesLongHoldsBackItsOwnSessionAlone) {
  SessionFences fences;
  const SessionFences::Pass former = fences.enter(7);
  std::atomic<bool> in_use{false};
  std::atomic<bool> may_end{false};
  std::thread user([&] {
    EXPECT_TRUE(former.use_if_open([&] {
      in_use = true;
      while (!may_end) std::this_thread::yield();
      in_use = false;
    }));
  });
  while (!in_use) std::this_thread::yield();
  std::atomic<int> took_over{0};
  const auto take_over = [&] {
    const SessionFences::Pass latter = fences.enter(7);
    EXPECT_FALSE(in_use);
    ++took_over;
  };
  std::thread second(take_over);
  std::thread third(take_over);
  {
    const SessionFences::Pass other = fences.enter(8);
    EXPECT_TRUE(other.is_open());
    EXPECT_EQ(fences.size(), 2U);
    EXPECT_TRUE(fences.groups().empty());
  }
  EXPECT_EQ(took_over, 0);
  may_end = true;
  for (std::thread* thread : {&user, &second, &third}) thread->join();
  EXPECT_EQ(took_over, 2);
  EXPECT_FALSE(former.is_open());
  EXPECT_EQ(fences.size(), 0U);
}

constexpr uint64_t session_of(SessionGroup group, uint32_t number) {
  return (uint64_t{group} << 32) | number;
}

TEST(SessionFences, GroupsAreThoseOfTheOpenPasses) {
  SessionFences fences;
  const SessionFences::Pass one = fences.enter(session_of(5, 1));
  const SessionFences::Pass same_group = fences.enter(session_of(5, 2), 1);
  std::optional<SessionFences::Pass> other = fences.enter(session_of(3, 1));
  const SessionFences::Pass no_group = fences.enter(7);
  const SessionFences::Pass no_session = fences.enter(0);
  EXPECT_EQ(fences.groups(), (std::vector<SessionGroup>{3, 5}));
  other.reset();
  EXPECT_EQ(fences.groups(), std::vector<SessionGroup>{5});
}

TEST(SessionFences, GroupWhosePeerDoesNotAnswerIsListedForTheGrace) {
  SessionFences fences(Seconds(600));
  SessionFences::Pass silent = fences.enter(session_of(5, 1));
  SessionFences::Pass closed = fences.enter(session_of(6, 1));
  silent.leave(SessionEnd::kUncertain);
  closed.leave(SessionEnd::kClosed);
  const Instant now = SteadyClock::read();
  EXPECT_EQ(fences.groups(now + Seconds(590)), std::vector<SessionGroup>{5});
  EXPECT_TRUE(fences.groups(now + Seconds(601)).empty());
  EXPECT_EQ(fences.size(), 0U);
}

TEST(SessionFences, PassThatANewerChannelTookSaysNothingWhenItEnds) {
  SessionFences fences(Seconds(600));
  SessionFences::Pass former = fences.enter(session_of(5, 1));
  { const SessionFences::Pass newer = fences.enter(session_of(5, 1)); }
  former.leave(SessionEnd::kUncertain);
  EXPECT_TRUE(fences.groups().empty());
}

}  // namespace
}  // namespace farpage::rdma
