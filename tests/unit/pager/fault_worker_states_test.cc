// The table of docs/one-fault.md: what a worker does in each state of a page with a fault on a
// missing and on a write-protected page.
#include <gtest/gtest.h>

#include "worker_rig.h"

namespace farpage::pager {
namespace {

using Call = FakeAddressSpace::Call;
using uffd::FaultKind;
using Lines = std::vector<std::string>;

constexpr uint64_t kNewWord = 4711;
constexpr uint32_t kLateThread = 999;

// A present page whose eviction has begun. Its memory is protected.
void begin_eviction_of(TargetRig& rig, uint64_t page) {
  rig.make_dirty(pages_of(page));
  rig.move(page, PageState::kEvicting, PageWord::kWasDirty);
  rig.space.put(page, TargetRig::word_of(page), uffd::Protection::kWriteProtected);
}
void make_lost(TargetRig& rig, uint64_t page) {
  rig.make_fetching(page);
  rig.move(page, PageState::kLost);
  rig.budget.give_back(1);
}

// ---- Empty ----

TEST(FaultWorkerStates, EmptyMissingReadGetsTheZeroPage) {
  WorkerRig rig;
  rig.start();
  EXPECT_FALSE(rig.space.touch_read(5));
  ASSERT_TRUE(rig.goes_on());
  ASSERT_TRUE(rig.has_handled_all());
  EXPECT_EQ(rig.log.of("zero"), Lines{"zero 5 shared"});
  EXPECT_EQ(rig.state(5), PageState::kDirty);
  EXPECT_EQ(rig.space.word(5), 0U);
  EXPECT_EQ(rig.budget.used(), 1U);
  EXPECT_EQ(rig.counts().faults_zero.get(), 1U);
}

TEST(FaultWorkerStates, EmptyMissingWriteGetsAFrame) {
  WorkerRig rig;
  rig.start();
  EXPECT_FALSE(rig.space.touch_write(5, kNewWord));
  ASSERT_TRUE(rig.goes_on());
  ASSERT_TRUE(rig.has_handled_all());
  EXPECT_EQ(rig.log.of("zero"), Lines{"zero 5 own"});
  EXPECT_EQ(rig.state(5), PageState::kDirty);
  EXPECT_EQ(rig.space.word(5), kNewWord);
}

TEST(FaultWorkerStates, EmptyMissingAsksForTheSlabBeforeEvictionNeedsIt) {
  WorkerRig rig;
  const LeaseMap& leases = rig.target.leases_of(PageWord());
  EXPECT_EQ(leases.find(PageIndex{TargetRig::kSlabPages}), nullptr);
  rig.start();
  EXPECT_FALSE(rig.space.touch_read(TargetRig::kSlabPages));
  ASSERT_TRUE(rig.goes_on());
  EXPECT_TRUE(
      becomes_true([&] { return leases.find(PageIndex{TargetRig::kSlabPages}) != nullptr; }));
}

// The program has freed the page, and is about to drop it.
TEST(FaultWorkerStates, EmptyProtectedLetsTheWriteThrough) {
  WorkerRig rig;
  rig.space.put(5, 1, uffd::Protection::kWriteProtected);
  EXPECT_FALSE(rig.space.touch_write(5, kNewWord));
  rig.start();
  ASSERT_TRUE(rig.goes_on());
  ASSERT_TRUE(rig.has_handled_all());
  EXPECT_EQ(rig.log.take(), Lines{"unprotect 5"});
  EXPECT_EQ(rig.space.word(5), kNewWord);
  EXPECT_EQ(rig.state(5), PageState::kEmpty);
  EXPECT_EQ(rig.budget.used(), 0U);
}

// ---- Remote ----

TEST(FaultWorkerStates, RemoteMissingReadIsFetchedProtected) {
  WorkerRig rig;
  rig.make_remote(pages_of(5));
  rig.start();
  EXPECT_FALSE(rig.space.touch_read(5));
  ASSERT_TRUE(rig.goes_on());
  ASSERT_TRUE(rig.has_handled_all());
  EXPECT_EQ(rig.log.take(), (Lines{"READ n0 5", "install 5 protected"}));
  EXPECT_EQ(rig.state(5), PageState::kClean);
  EXPECT_EQ(rig.space.word(5), TargetRig::word_of(5));
  EXPECT_EQ(rig.budget.used(), 1U);
}

TEST(FaultWorkerStates, RemoteMissingWriteIsFetchedWritable) {
  WorkerRig rig;
  rig.make_remote(pages_of(5));
  rig.start();
  EXPECT_FALSE(rig.space.touch_write(5, kNewWord));
  ASSERT_TRUE(rig.goes_on());
  ASSERT_TRUE(rig.has_handled_all());
  EXPECT_EQ(rig.log.take(), (Lines{"READ n0 5", "install 5 writable"}));
  EXPECT_EQ(rig.state(5), PageState::kDirty);
  EXPECT_EQ(rig.space.word(5), kNewWord);
}

// The page was evicted after its thread had hit the protection.
TEST(FaultWorkerStates, RemoteProtectedWakesTheThreadWhichFaultsAgainAsMissing) {
  WorkerRig rig;
  rig.make_remote(pages_of(5));
  rig.space.put(5, 1, uffd::Protection::kWriteProtected);
  EXPECT_FALSE(rig.space.touch_write(5, kNewWord));
  rig.space.drop_silently(pages_of(5));
  rig.start();
  ASSERT_TRUE(rig.goes_on());
  ASSERT_TRUE(rig.has_handled_all());
  EXPECT_EQ(rig.log.take(), (Lines{"wake 5", "READ n0 5", "install 5 writable"}));
  EXPECT_EQ(rig.space.word(5), kNewWord);
}

// A forked child has the page after all.
TEST(FaultWorkerStates, RemoteAndMaybePresentProtectedIsDirtyFromNowOn) {
  WorkerRig rig;
  rig.make_remote(pages_of(5), PageWord::kMaybePresent);
  rig.space.put(5, 1, uffd::Protection::kWriteProtected);
  EXPECT_FALSE(rig.space.touch_write(5, kNewWord));
  rig.start();
  ASSERT_TRUE(rig.goes_on());
  ASSERT_TRUE(rig.has_handled_all());
  EXPECT_EQ(rig.log.take(), Lines{"unprotect 5"});
  EXPECT_EQ(rig.state(5), PageState::kDirty);
  EXPECT_EQ(rig.space.word(5), kNewWord);
  EXPECT_EQ(rig.budget.used(), 1U);
  EXPECT_EQ(rig.table.away_pages(), 0U);
}

// ---- Fetching: another thread owns the page ----

TEST(FaultWorkerStates, FetchingMissingWaitsForTheOwnerWhoWakesIt) {
  WorkerRig rig;
  const PageWord fetching = rig.make_fetching(5);
  rig.start();
  EXPECT_FALSE(rig.space.touch_read(5));
  ASSERT_TRUE(rig.has_handled_all());
  EXPECT_TRUE(rig.table.load(PageIndex{5}).has(PageWord::kAwaited));
  EXPECT_EQ(rig.state(5), PageState::kFetching);
  EXPECT_FALSE(rig.holds_a_fault()) << "it is the owner's now";
  EXPECT_TRUE(rig.space.sleeps());
  EXPECT_EQ(rig.counts().faults_coalesced.get(), 1U);
  EXPECT_EQ(rig.log.take(), Lines{});
  // The owner gives the page up, as after a prefetch that failed.
  rig.budget.give_back(1);
  rig.target.end_fetching(PageIndex{5}, fetching, fetching.to(PageState::kRemote));
  ASSERT_TRUE(rig.goes_on());
  EXPECT_EQ(rig.space.word(5), TargetRig::word_of(5));
}

TEST(FaultWorkerStates, FetchingProtectedIsRetriedUntilTheOwnerHasEnded) {
  WorkerRig rig;
  const PageWord fetching = rig.make_fetching(5);
  rig.space.put(5, 1, uffd::Protection::kWriteProtected);  // installed, not settled yet
  rig.start();
  EXPECT_FALSE(rig.space.touch_write(5, kNewWord));
  ASSERT_TRUE(rig.has_handled_all());
  EXPECT_TRUE(rig.holds_a_fault());
  EXPECT_TRUE(rig.space.sleeps());
  EXPECT_EQ(rig.log.take(), Lines{}) << "nothing is done to a page that another thread owns";
  rig.target.end_fetching(PageIndex{5}, fetching, fetching.to(PageState::kClean));
  ASSERT_TRUE(rig.goes_on());
  ASSERT_TRUE(rig.is_idle());
  EXPECT_EQ(rig.log.take(), Lines{"unprotect 5"});
  EXPECT_EQ(rig.state(5), PageState::kDirty);
}

// ---- Clean, Dirty, Evicting: the page is here ----

TEST(FaultWorkerStates, PresentMissingIsAnOldMessageAndChangesNoBytes) {
  for (const PageState state : {PageState::kClean, PageState::kDirty, PageState::kEvicting}) {
    for (const FaultKind kind : {FaultKind::kMissingRead, FaultKind::kMissingWrite}) {
      SCOPED_TRACE(to_string(state));
      WorkerRig rig;
      if (state == PageState::kClean) rig.make_clean(pages_of(5));
      if (state == PageState::kDirty) rig.make_dirty(pages_of(5));
      if (state == PageState::kEvicting) begin_eviction_of(rig, 5);
      rig.space.queue_old_message({PageIndex{5}, kind, kLateThread});
      rig.start();
      ASSERT_TRUE(rig.has_handled_all());
      EXPECT_EQ(rig.state(5), PageState::kDirty) << "always right";
      EXPECT_EQ(rig.space.word(5), TargetRig::word_of(5));
      EXPECT_EQ(rig.budget.used(), 1U);
      EXPECT_EQ(rig.log.count("READ"), 0U);
      EXPECT_FALSE(rig.holds_a_fault());
    }
  }
}

TEST(FaultWorkerStates, PresentMissingGetsZerosWhereTheProgramHasDroppedThePage) {
  for (const PageState state : {PageState::kClean, PageState::kDirty, PageState::kEvicting}) {
    SCOPED_TRACE(to_string(state));
    WorkerRig rig;
    if (state == PageState::kClean) rig.make_clean(pages_of(5));
    if (state == PageState::kDirty) rig.make_dirty(pages_of(5));
    if (state == PageState::kEvicting) begin_eviction_of(rig, 5);
    rig.space.drop_silently(pages_of(5));
    EXPECT_FALSE(rig.space.touch_read(5));
    rig.start();
    ASSERT_TRUE(rig.goes_on());
    ASSERT_TRUE(rig.has_handled_all());
    EXPECT_EQ(rig.space.word(5), 0U) << "not the bytes from before";
    EXPECT_EQ(rig.state(5), PageState::kDirty);
    EXPECT_EQ(rig.budget.used(), 1U);
    EXPECT_EQ(rig.log.count("READ"), 0U);
  }
}

TEST(FaultWorkerStates, CleanProtectedIsDirtyFromNowOn) {
  WorkerRig rig;
  rig.make_clean(pages_of(5));
  rig.start();
  EXPECT_FALSE(rig.space.touch_write(5, kNewWord));
  ASSERT_TRUE(rig.goes_on());
  ASSERT_TRUE(rig.has_handled_all());
  EXPECT_EQ(rig.state(5), PageState::kDirty);
  EXPECT_EQ(rig.table.load(PageIndex{5}).references(), 0U) << "the first write is no second use";
  EXPECT_EQ(rig.space.word(5), kNewWord);
  EXPECT_EQ(rig.counts().faults_write.get(), 1U);
}

// A neighbour of a victim.
TEST(FaultWorkerStates, DirtyProtectedIsWritableAgain) {
  WorkerRig rig;
  rig.make_dirty(pages_of(5));
  EXPECT_EQ(rig.space.protect(pages_of(5)), uffd::Outcome::kDone);
  rig.start();
  EXPECT_FALSE(rig.space.touch_write(5, kNewWord));
  ASSERT_TRUE(rig.goes_on());
  ASSERT_TRUE(rig.has_handled_all());
  EXPECT_EQ(rig.state(5), PageState::kDirty);
  EXPECT_EQ(rig.table.load(PageIndex{5}).references(), 1U) << "it is in use";
  EXPECT_EQ(rig.space.word(5), kNewWord);
  EXPECT_EQ(rig.counts().faults_write.get(), 0U);
}

TEST(FaultWorkerStates, EvictingProtectedCancelsTheEviction) {
  WorkerRig rig;
  begin_eviction_of(rig, 5);
  const PageWord evicting = rig.table.load(PageIndex{5});
  rig.start();
  EXPECT_FALSE(rig.space.touch_write(5, kNewWord));
  ASSERT_TRUE(rig.goes_on());
  ASSERT_TRUE(rig.has_handled_all());
  EXPECT_EQ(rig.state(5), PageState::kDirty);
  EXPECT_EQ(rig.space.word(5), kNewWord);
  EXPECT_EQ(rig.counts().faults_rescued.get(), 1U);
  EXPECT_FALSE(rig.table.transition(PageIndex{5}, evicting, evicting.to(PageState::kDropping)))
      << "the evictor has lost the page";
}

TEST(FaultWorkerStates, WhileTheProtectionIsRemovedThePageIsUnprotecting) {
  for (const bool evicting : {false, true}) {
    WorkerRig rig;
    if (evicting) {
      begin_eviction_of(rig, 5);
    } else {
      rig.make_clean(pages_of(5));
    }
    std::atomic<PageState> before{PageState::kEmpty};
    std::atomic<PageState> after{PageState::kEmpty};
    rig.space.before(Call::kUnprotect, [&](uffd::PageRun) { before = rig.state(5); });
    rig.space.after(Call::kUnprotect, [&](uffd::PageRun) { after = rig.state(5); });
    rig.start();
    EXPECT_FALSE(rig.space.touch_write(5, kNewWord));
    ASSERT_TRUE(rig.goes_on());
    ASSERT_TRUE(rig.has_handled_all());
    EXPECT_EQ(before, PageState::kUnprotecting) << "the evictor cannot take it";
    EXPECT_EQ(after, PageState::kUnprotecting);
  }
}

// ---- Unprotecting: another thread owns the page ----

TEST(FaultWorkerStates, UnprotectingIsRetriedUntilTheOwnerHasEnded) {
  for (const FaultKind kind : {FaultKind::kMissingRead, FaultKind::kWriteProtected}) {
    WorkerRig rig;
    rig.make_clean(pages_of(5));
    rig.move(5, PageState::kUnprotecting);
    rig.start();
    if (kind == FaultKind::kWriteProtected) {
      EXPECT_FALSE(rig.space.touch_write(5, kNewWord));
    } else {
      rig.space.queue_old_message({PageIndex{5}, kind, kLateThread});
    }
    ASSERT_TRUE(rig.has_handled_all());
    EXPECT_TRUE(rig.holds_a_fault());
    EXPECT_EQ(rig.state(5), PageState::kUnprotecting);
    EXPECT_EQ(rig.log.take(), Lines{});
    rig.move(5, PageState::kDirty);
    ASSERT_TRUE(rig.is_idle());
    EXPECT_EQ(rig.state(5), PageState::kDirty);
    EXPECT_EQ(rig.log.take(),
              Lines{kind == FaultKind::kWriteProtected ? "unprotect 5" : "zero 5 shared"});
    EXPECT_FALSE(rig.space.sleeps());
  }
}

// ---- Dropping: the evictor owns the page ----

TEST(FaultWorkerStates, DroppingIsLeftToTheEvictorWhoWakesTheThread) {
  for (const bool write : {false, true}) {
    WorkerRig rig;
    begin_eviction_of(rig, 5);
    rig.move(5, PageState::kDropping, PageWord::kWasDirty);
    rig.node().set_word(5, TargetRig::word_of(5));
    if (write) {
      EXPECT_FALSE(rig.space.touch_write(5, kNewWord));  // still protected
      rig.space.drop_silently(pages_of(5));
    } else {
      rig.space.drop_silently(pages_of(5));
      EXPECT_FALSE(rig.space.touch_read(5));
    }
    rig.start();
    ASSERT_TRUE(rig.has_handled_all());
    EXPECT_FALSE(rig.holds_a_fault());
    EXPECT_TRUE(rig.space.sleeps());
    EXPECT_EQ(rig.state(5), PageState::kDropping);
    EXPECT_EQ(rig.log.take(), Lines{});
    rig.move(5, PageState::kRemote);
    rig.budget.evicted(1);
    rig.space.wake(pages_of(5));
    ASSERT_TRUE(rig.goes_on());
    EXPECT_EQ(rig.space.word(5), write ? kNewWord : TargetRig::word_of(5));
  }
}

// ---- Lost ----

TEST(FaultWorkerStates, LostMissingEndsInSigbus) {
  for (const bool write : {false, true}) {
    WorkerRig rig;
    make_lost(rig, 5);
    rig.start();
    EXPECT_FALSE(write ? rig.space.touch_write(5, kNewWord) : rig.space.touch_read(5));
    ASSERT_TRUE(rig.goes_on());
    EXPECT_TRUE(rig.space.has_sigbus());
    EXPECT_EQ(rig.state(5), PageState::kLost);
    EXPECT_EQ(rig.budget.used(), 0U);
    EXPECT_EQ(rig.log.count("READ"), 0U);
  }
}

TEST(FaultWorkerStates, LostMissingWaitsWhileAnEventIsUnread) {
  WorkerRig rig;
  make_lost(rig, 5);
  std::atomic<int> tries{0};
  rig.space.before(Call::kPoison, [&](uffd::PageRun) {
    if (++tries == 1) rig.space.unmap(pages_of(900));
  });
  rig.start();
  EXPECT_FALSE(rig.space.touch_read(5));
  ASSERT_TRUE(rig.goes_on());
  EXPECT_TRUE(rig.space.has_sigbus());
  EXPECT_GE(tries, 2);
}

// A forked child may have a page that is lost for its parent.
TEST(FaultWorkerStates, LostProtectedLetsTheWriteThrough) {
  WorkerRig rig;
  make_lost(rig, 5);
  rig.space.put(5, 1, uffd::Protection::kWriteProtected);
  rig.start();
  EXPECT_FALSE(rig.space.touch_write(5, kNewWord));
  ASSERT_TRUE(rig.goes_on());
  EXPECT_FALSE(rig.space.has_sigbus());
  EXPECT_EQ(rig.space.word(5), kNewWord);
  EXPECT_EQ(rig.state(5), PageState::kLost);
}

}  // namespace
}  // namespace farpage::pager
