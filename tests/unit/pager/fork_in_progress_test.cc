#include "pager/fork/fork_in_progress.h"

#include <gtest/gtest.h>

#include "target_rig.h"
#include "tests/sleeping_thread.h"

namespace farpage::pager {
namespace {

using Call = FakeAddressSpace::Call;

class ForkInProgressRig : public TargetRig {
 public:
  // The kernel copies the program's memory. Returns the child's.
  FakeAddressSpace& copy_memory() {
    auto child = std::make_unique<FakeAddressSpace>(space.pages(), child_log);
    FakeAddressSpace& memory = *child;
    for (uint64_t page = 0; page < space.pages(); ++page)
      if (space.is_present(page))
        memory.put(page, space.word(page),
                   space.is_protected(page) ? uffd::Protection::kWriteProtected
                                            : uffd::Protection::kWritable);
    pending = std::move(child);
    return memory;
  }
  // A worker reads the event.
  void read_event() { fork.arrived(std::move(pending)); }
  void end_fork() {
    copy_memory();
    read_event();
    fork.close(/*forked=*/true);
  }
  // The program discards pages in another thread. Returns once that has asked for unread events.
  [[nodiscard]] bool begin_discard(uffd::PageRun run) {
    space.after(Call::kEventPending, [this](uffd::PageRun) { asked = true; });
    program = std::jthread([this, run] {
      fork.discard(run);
      discarded = true;
    });
    return becomes_true([this] { return asked.load(); });
  }
  // The word of the child that was adopted last.
  PageWord child_word(uint64_t page) const {
    return children.back().image->table().load(PageIndex{page});
  }
  PageState child_state(uint64_t page) const { return child_word(page).state(); }

  CallLog child_log;
  std::unique_ptr<uffd::AddressSpace> pending;
  std::vector<Inheritance> children;
  const Doorbell attention = std::move(*Doorbell::create());
  ForkInProgress fork{target, attention,
                      [this](Inheritance child) { children.push_back(std::move(child)); }};
  std::atomic<bool> asked{false};
  std::atomic<bool> discarded{false};
  std::jthread program;
};

TEST(ForkInProgress, AChildHasTheStatesOfThePagesAtTheFork) {
  ForkInProgressRig rig;
  rig.make_remote(pages_of(1));
  rig.make_remote(pages_of(2), PageWord::kMaybePresent);
  rig.make_clean(pages_of(3));
  rig.make_dirty(pages_of(4));
  rig.make_dirty(pages_of(5));
  rig.move(5, PageState::kUnprotecting);
  rig.make_fetching(6);
  rig.make_fetching(7);
  rig.move(7, PageState::kLost);
  ASSERT_TRUE(rig.fork.open());
  rig.end_fork();
  ASSERT_EQ(rig.children.size(), 1U);
  EXPECT_EQ(rig.child_state(0), PageState::kEmpty);
  EXPECT_EQ(rig.child_word(1), PageWord(PageState::kRemote)) << "certainly absent";
  EXPECT_EQ(rig.child_word(2), PageWord(PageState::kRemote, PageWord::kMaybePresent));
  EXPECT_EQ(rig.child_state(3), PageState::kClean);
  EXPECT_EQ(rig.child_state(4), PageState::kDirty);
  EXPECT_EQ(rig.child_state(5), PageState::kDirty);
  EXPECT_EQ(rig.child_word(6), PageWord(PageState::kRemote, PageWord::kMaybePresent));
  EXPECT_EQ(rig.child_state(7), PageState::kLost);
  EXPECT_EQ(rig.children[0].age_clock, rig.target.age_clock.load());
  EXPECT_TRUE(check_invariants(rig.children[0].image->table()));
}

TEST(ForkInProgress, WhatTheParentFetchesMeanwhileTheChildMayHave) {
  ForkInProgressRig rig;
  rig.make_remote(pages_of(1, 3));
  ASSERT_TRUE(rig.fork.open());
  rig.move(1, PageState::kFetching, PageWord::kFromRemote);  // under way when the kernel copies
  rig.move(2, PageState::kFetching, PageWord::kFromRemote);
  rig.move(2, PageState::kClean);  // before or after the copy
  rig.end_fork();
  EXPECT_EQ(rig.child_word(1), PageWord(PageState::kRemote, PageWord::kMaybePresent));
  EXPECT_EQ(rig.child_word(2), PageWord(PageState::kRemote, PageWord::kMaybePresent));
  EXPECT_EQ(rig.child_word(3), PageWord(PageState::kRemote));
}

TEST(ForkInProgress, ACleanPageThatIsWrittenMeanwhileIsDirtyInTheChildToo) {
  ForkInProgressRig rig;
  rig.make_clean(pages_of(1, 2));
  ASSERT_TRUE(rig.fork.open());
  rig.move(1, PageState::kUnprotecting);
  rig.move(1, PageState::kDirty);
  rig.end_fork();
  EXPECT_EQ(rig.child_state(1), PageState::kDirty);
  EXPECT_EQ(rig.child_state(2), PageState::kClean);
}

// The snapshot says Empty, the parent has the page now: only the child's memory knows.
TEST(ForkInProgress, APageThatIsFirstUsedMeanwhileIsSettledInTheChildsMemory) {
  ForkInProgressRig rig;
  ASSERT_TRUE(rig.fork.open());
  rig.make_dirty(pages_of(1));
  FakeAddressSpace& child = rig.copy_memory();
  rig.make_dirty(pages_of(2));  // after the copy
  rig.read_event();
  rig.fork.close(/*forked=*/true);
  EXPECT_EQ(rig.child_state(1), PageState::kDirty);
  EXPECT_EQ(child.word(1), TargetRig::word_of(1)) << "what it has is kept";
  EXPECT_EQ(rig.child_state(2), PageState::kDirty);
  EXPECT_EQ(child.word(2), 0U) << "the child never had it, and must not fetch it";
  EXPECT_EQ(rig.child_state(3), PageState::kEmpty);
  EXPECT_FALSE(child.is_present(3));
}

TEST(ForkInProgress, APageThatGotItsZerosDuringTheSnapshotIsSettledToo) {
  ForkInProgressRig rig;
  rig.table.place(PageIndex{1}, PageWord(PageState::kFetching));
  ASSERT_TRUE(rig.fork.open());
  FakeAddressSpace& child = rig.copy_memory();
  rig.read_event();
  rig.fork.close(/*forked=*/true);
  EXPECT_EQ(rig.child_state(1), PageState::kDirty);
  EXPECT_TRUE(child.is_present(1));
}

TEST(ForkInProgress, WhereTheChildHasNoMemoryAFirstUsedPageStaysEmpty) {
  ForkInProgressRig rig;
  ASSERT_TRUE(rig.fork.open());
  rig.make_dirty(pages_of(1));
  FakeAddressSpace& child = rig.copy_memory();
  child.unmap(pages_of(1));
  child.read_all();
  rig.read_event();
  rig.fork.close(/*forked=*/true);
  EXPECT_EQ(rig.child_state(1), PageState::kEmpty);
}

TEST(ForkInProgress, WhatIsDiscardedBeforeTheCopyIsGoneInTheChildToo) {
  ForkInProgressRig rig;
  rig.make_remote(pages_of(1, 3));
  ASSERT_TRUE(rig.fork.open());
  rig.fork.discard(pages_of(2));
  EXPECT_EQ(rig.state(2), PageState::kEmpty);
  rig.end_fork();
  EXPECT_EQ(rig.child_state(1), PageState::kRemote);
  EXPECT_EQ(rig.child_state(2), PageState::kEmpty);
}

TEST(ForkInProgress, WhatIsDiscardedAfterTheCopyTheChildKeeps) {
  ForkInProgressRig rig;
  rig.make_remote(pages_of(1, 3));
  ASSERT_TRUE(rig.fork.open());
  rig.copy_memory();
  rig.read_event();
  rig.fork.discard(pages_of(2));
  EXPECT_EQ(rig.state(2), PageState::kEmpty);
  rig.fork.close(/*forked=*/true);
  EXPECT_EQ(rig.child_state(2), PageState::kRemote);
}

TEST(ForkInProgress, WhileAnEventIsUnreadADiscardWaitsToKnowWhichItWas) {
  ForkInProgressRig rig;
  rig.make_remote(pages_of(1, 3));
  ASSERT_TRUE(rig.fork.open());
  rig.copy_memory();
  rig.space.fork(nullptr);  // the event, unread
  ASSERT_TRUE(rig.begin_discard(pages_of(2)));
  // try_discard() never waits, also not for the one that does.
  EXPECT_FALSE(rig.fork.try_discard(pages_of(1)));
  EXPECT_FALSE(rig.discarded);
  EXPECT_EQ(rig.state(2), PageState::kRemote);
  rig.read_event();
  rig.space.read_all();
  rig.program.join();
  rig.fork.close(/*forked=*/true);
  EXPECT_EQ(rig.child_state(2), PageState::kRemote) << "it was discarded after the copy";
}

TEST(ForkInProgress, ADiscardWaitsForAnEventThatIsInAWorkersHands) {
  ForkInProgressRig rig;
  rig.make_remote(pages_of(1, 3));
  ASSERT_TRUE(rig.fork.open());
  rig.copy_memory();
  rig.engine.event_readers.begin(0);  // it has read the event
  ASSERT_TRUE(rig.begin_discard(pages_of(2)));
  for (int i = 0; i < 1000; ++i) std::this_thread::yield();  // it would go on now
  EXPECT_FALSE(rig.discarded);
  rig.read_event();
  rig.engine.event_readers.end(0);
  rig.program.join();
  rig.fork.close(/*forked=*/true);
  EXPECT_EQ(rig.child_state(2), PageState::kRemote);
}

TEST(ForkInProgress, WhileNoForkIsUnderWayTryDiscardDiscards) {
  ForkInProgressRig rig;
  rig.make_remote(pages_of(1, 2));
  EXPECT_TRUE(rig.fork.try_discard(pages_of(1)));
  EXPECT_EQ(rig.state(1), PageState::kEmpty);
  ASSERT_TRUE(rig.fork.open());
  EXPECT_FALSE(rig.fork.try_discard(pages_of(2)));
  EXPECT_EQ(rig.state(2), PageState::kRemote);
  rig.fork.close(/*forked=*/false);
  EXPECT_TRUE(rig.fork.try_discard(pages_of(2)));
}

TEST(ForkInProgress, AForkThatFailedLeavesNothingBehind) {
  ForkInProgressRig rig;
  rig.make_remote(pages_of(1));
  EXPECT_FALSE(rig.image->fork_group()->has_forked());
  ASSERT_TRUE(rig.fork.open());
  EXPECT_TRUE(rig.image->fork_group()->has_forked()) << "the snapshot refers to the slots";
  rig.fork.close(/*forked=*/false);
  EXPECT_FALSE(rig.image->fork_group()->has_forked());
  EXPECT_TRUE(rig.children.empty());
}

TEST(ForkInProgress, CloseWaitsForTheChild) {
  ForkInProgressRig rig;
  rig.make_remote(pages_of(1));
  ASSERT_TRUE(rig.fork.open());
  rig.copy_memory();
  std::atomic<bool> closed{false};
  SleepingThread sleeper;
  std::jthread control([&] {
    sleeper.begin();
    rig.fork.close(/*forked=*/true);
    closed = true;
  });
  sleeper.await();
  EXPECT_FALSE(closed);
  rig.read_event();
  control.join();
  EXPECT_EQ(rig.children.size(), 1U);
  EXPECT_TRUE(rig.attention.wait(Milliseconds(0)));
}

TEST(ForkInProgress, CloseDoesNotWaitForTheChildOfAProgramThatIsGone) {
  for (const bool gone : {true, false}) {
    ForkInProgressRig rig;
    ASSERT_TRUE(rig.fork.open());
    (gone ? rig.target.gone : rig.target.closing) = true;
    rig.fork.close(/*forked=*/true);
    EXPECT_TRUE(rig.children.empty());
  }
}

TEST(ForkInProgress, AChildThatWasNotAnnouncedIsLostWherePagesWereAway) {
  ForkInProgressRig rig;
  rig.make_remote(pages_of(1));
  rig.make_dirty(pages_of(2));
  rig.copy_memory();
  rig.read_event();
  EXPECT_TRUE(rig.children.empty()) << "a worker never waits for the rest";
  EXPECT_TRUE(rig.attention.wait(Milliseconds(0)));
  rig.fork.adopt();
  ASSERT_EQ(rig.children.size(), 1U);
  EXPECT_EQ(rig.child_state(0), PageState::kEmpty);
  EXPECT_EQ(rig.child_state(1), PageState::kLost) << "SIGBUS, never zeros";
  EXPECT_EQ(rig.child_state(2), PageState::kLost) << "present or not: it is not known";
}

TEST(ForkInProgress, AnEarlierChildDoesNotGetTheSnapshotOfTheNextFork) {
  ForkInProgressRig rig;
  rig.make_remote(pages_of(1));
  rig.copy_memory();
  rig.read_event();  // a fork past the shim
  ASSERT_TRUE(rig.fork.open());
  ASSERT_EQ(rig.children.size(), 1U);
  EXPECT_EQ(rig.child_state(1), PageState::kLost);
  rig.end_fork();
  ASSERT_EQ(rig.children.size(), 2U);
  EXPECT_EQ(rig.child_state(1), PageState::kRemote);
}

TEST(ForkInProgress, TheSlotsOfAChildAreNotOverwritten) {
  ForkInProgressRig rig;
  rig.make_remote(pages_of(1));
  rig.make_clean(pages_of(2));
  rig.make_dirty(pages_of(3));
  ASSERT_TRUE(rig.fork.open());
  rig.end_fork();
  const ForkGroup& group = *rig.image->fork_group();
  const std::lock_guard lock(group.mutex());
  EXPECT_TRUE(group.refers_elsewhere(*rig.image, BackingId{0}, PageIndex{1}));
  EXPECT_TRUE(group.refers_elsewhere(*rig.image, BackingId{0}, PageIndex{2}));
  EXPECT_FALSE(group.refers_elsewhere(*rig.image, BackingId{0}, PageIndex{3}));
}

}  // namespace
}  // namespace farpage::pager
