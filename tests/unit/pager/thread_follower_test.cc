#include "pager/fault/thread_follower.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace farpage::pager {
namespace {

using Place = ThreadFollower::Place;

constexpr uint32_t kThread = 7;

// Faults of one thread until it is time to look; then it is there.
void see(ThreadFollower& follower, Place place, uint32_t thread = kThread) {
  uint32_t faults = 1;
  while (!follower.note_fault(thread)) ++faults;
  ASSERT_EQ(faults, ThreadFollower::kFaultsPerLook);
  follower.looked(place);
}

void see(ThreadFollower& follower, Place place, uint32_t looks, uint32_t thread) {
  for (uint32_t i = 0; i < looks; ++i) see(follower, place, thread);
}

// It was followed.
void lose(ThreadFollower& follower) {
  while (follower.following()) see(follower, Place::kElsewhere);
}

uint32_t looks_until_following(ThreadFollower& follower) {
  uint32_t looks = 0;
  for (; !follower.following(); ++looks) see(follower, Place::kHere);
  return looks;
}

TEST(ThreadFollower, FollowsAThreadThatTwoLooksInARowFoundHere) {
  ThreadFollower follower;
  see(follower, Place::kHere);
  EXPECT_FALSE(follower.following());
  see(follower, Place::kElsewhere);
  see(follower, Place::kHere);
  EXPECT_FALSE(follower.following()) << "not in a row";
  see(follower, Place::kHere);
  EXPECT_TRUE(follower.following());
}

TEST(ThreadFollower, AMoveNowAndThenIsFollowed) {
  ThreadFollower follower;
  see(follower, Place::kHere, ThreadFollower::kFirstLooks, kThread);
  for (int move = 0; move < 100; ++move) {
    see(follower, Place::kElsewhere);
    EXPECT_TRUE(follower.following()) << "after move " << move;
    see(follower, Place::kHere, ThreadFollower::kStrike, kThread);
  }
}

TEST(ThreadFollower, AThreadThatIsElsewhereAtEverySecondLookIsNotFollowed) {
  ThreadFollower follower;
  see(follower, Place::kHere, ThreadFollower::kFirstLooks, kThread);
  int moves = 0;
  for (; follower.following() && moves < 100; ++moves) {
    see(follower, Place::kElsewhere);
    if (follower.following()) see(follower, Place::kHere);
  }
  EXPECT_LE(moves, 4);
}

TEST(ThreadFollower, AfterEachLossTwiceAsManyLooksAreNeeded) {
  ThreadFollower follower;
  uint32_t needed = ThreadFollower::kFirstLooks;
  for (int loss = 0; loss < 12; ++loss) {
    EXPECT_EQ(looks_until_following(follower), needed);
    lose(follower);
    needed = std::min(needed * 2, ThreadFollower::kMostLooks);
  }
  EXPECT_EQ(needed, ThreadFollower::kMostLooks);
}

TEST(ThreadFollower, ALongStayMakesUpForLosses) {
  ThreadFollower follower;
  for (int loss = 0; loss < 2; ++loss) {
    (void)looks_until_following(follower);
    lose(follower);
  }
  (void)looks_until_following(follower);
  see(follower, Place::kHere, ThreadFollower::kLooksToForget, kThread);
  lose(follower);
  EXPECT_EQ(looks_until_following(follower), 2 * ThreadFollower::kFirstLooks);
}

TEST(ThreadFollower, WhereCpusAreIdleNoThreadIsFollowed) {
  ThreadFollower follower;
  see(follower, Place::kHere, ThreadFollower::kFirstLooks, kThread);
  see(follower, Place::kIdle);
  EXPECT_FALSE(follower.following());
  EXPECT_EQ(looks_until_following(follower), ThreadFollower::kFirstLooks) << "it was no loss";
}

TEST(ThreadFollower, AnotherThreadEndsIt) {
  ThreadFollower follower;
  see(follower, Place::kHere, ThreadFollower::kFirstLooks, kThread);
  EXPECT_FALSE(follower.note_fault(kThread + 1));
  EXPECT_FALSE(follower.following());
}

TEST(ThreadFollower, TheLossesOfOneThreadAreNotThoseOfAnother) {
  ThreadFollower follower;
  for (int loss = 0; loss < 5; ++loss) {
    (void)looks_until_following(follower);
    lose(follower);
  }
  see(follower, Place::kHere, ThreadFollower::kFirstLooks, kThread + 1);
  EXPECT_TRUE(follower.following());
}

TEST(ThreadFollower, ThreadsThatTakeTurnsAreNeverLookedAt) {
  ThreadFollower follower;
  for (uint32_t i = 0; i < 1000; ++i) EXPECT_FALSE(follower.note_fault(i % 2));
}

}  // namespace
}  // namespace farpage::pager
