// What a worker does beside the table of states: room, retries, events, streams, removal.
#include "pager/fault/fault_worker.h"

#include <gtest/gtest.h>

#include <semaphore>

#include "pager/fork/fork_in_progress.h"
#include "worker_rig.h"

namespace farpage::pager {
namespace {

using Call = FakeAddressSpace::Call;
using uffd::FaultKind;
using Lines = std::vector<std::string>;

TEST(FaultWorker, TwoThreadsAtOnePageShareARead) {
  WorkerRig rig;
  rig.make_remote(pages_of(5));
  rig.node().answer_all(std::nullopt);
  rig.start();
  EXPECT_FALSE(rig.space.touch_read(5, 1));
  ASSERT_TRUE(becomes_true([&] { return rig.node().waiting() == 1; }));
  EXPECT_FALSE(rig.space.touch_read(5, 2));
  EXPECT_FALSE(rig.space.touch_read(5, 3));
  ASSERT_TRUE(rig.has_handled_all());
  EXPECT_EQ(rig.node().waiting(), 1U);
  rig.node().answer();
  for (const uint32_t thread : {1, 2, 3}) EXPECT_TRUE(rig.goes_on(thread));
  EXPECT_EQ(rig.counts().faults_coalesced.get(), 2U);
  EXPECT_EQ(rig.counts().reads.get(), 1U);
}

TEST(FaultWorker, SeveralWorkersAnswerEachFaultOnce) {
  WorkerRig rig({.workers = 3});
  constexpr uint32_t kThreads = 300;
  rig.make_remote(pages_of(0, kThreads));
  rig.start();
  for (uint32_t i = 0; i < kThreads; ++i) EXPECT_FALSE(rig.space.touch_read(i, i + 1));
  for (uint32_t i = 0; i < kThreads; ++i) ASSERT_TRUE(rig.goes_on(i + 1)) << i;
  ASSERT_TRUE(rig.is_idle());
  uint64_t reads = 0;
  for (uint32_t worker = 0; worker < 3; ++worker) reads += rig.counts(worker).reads.get();
  EXPECT_EQ(reads, kThreads);
  EXPECT_EQ(rig.budget.used(), kThreads);
  for (uint32_t i = 0; i < kThreads; ++i) EXPECT_EQ(rig.space.word(i), TargetRig::word_of(i));
  EXPECT_TRUE(check_invariants(rig.table));
}

TEST(FaultWorker, MoreFaultsThanFetchesAreAnsweredOneAfterTheOther) {
  WorkerRig rig;
  constexpr uint32_t kThreads = Fetcher::kFetches + 20;
  rig.make_remote(pages_of(0, kThreads));
  rig.node().answer_all(std::nullopt);
  for (uint32_t i = 0; i < kThreads; ++i) EXPECT_FALSE(rig.space.touch_read(i, i + 1));
  rig.start();
  ASSERT_TRUE(becomes_true([&] { return rig.node().waiting() == Fetcher::kFetches; }));
  for (uint32_t i = 0; i < kThreads; ++i) {
    ASSERT_TRUE(becomes_true([&] { return rig.node().waiting() > 0; }));
    rig.node().answer();
  }
  for (uint32_t i = 0; i < kThreads; ++i) EXPECT_TRUE(rig.goes_on(i + 1)) << i;
}

// ---- room ----

// A budget of four pages that are all used.
class FullRig : public WorkerRig {
 public:
  explicit FullRig(Milliseconds fault_deadline = std::chrono::hours(1))
      : WorkerRig({.budget_pages = 4, .fault_deadline = fault_deadline}) {
    make_dirty(pages_of(0, 4));
    make_remote(pages_of(10));
  }
};

// As the evictor.
void evict(TargetRig& rig, uint64_t page) {
  rig.move(page, PageState::kEvicting, PageWord::kWasDirty);
  rig.move(page, PageState::kDropping, PageWord::kWasDirty);
  rig.move(page, PageState::kRemote);
  rig.budget.evicted(1);
}

TEST(FaultWorker, WithoutRoomAFaultWaitsForTheEvictor) {
  for (const uint64_t page : {10, 11}) {  // Remote, Empty
    FullRig rig;
    rig.start();
    EXPECT_FALSE(rig.space.touch_read(page));
    ASSERT_TRUE(becomes_true([&] { return rig.budget.has_waiters(); }));
    EXPECT_TRUE(rig.space.sleeps());
    EXPECT_TRUE(rig.holds_a_fault());
    EXPECT_TRUE(rig.target.has_waiters(SteadyClock::read()));
    EXPECT_EQ(rig.log.take(), Lines{});
    EXPECT_EQ(rig.state(page), page == 10 ? PageState::kRemote : PageState::kEmpty);
    evict(rig, 0);
    ASSERT_TRUE(rig.goes_on());
    ASSERT_TRUE(rig.is_idle());
    EXPECT_EQ(rig.budget.used(), 4U);
    EXPECT_EQ(rig.counts().faults_waited_room.get(), 1U) << "one fault, however long it waits";
  }
}

TEST(FaultWorker, WhileTheAgentOfAnAttachedProgramStandsAFaultGetsRoom) {
  FullRig rig;
  rig.target.order = rig.space.let_events_tell();
  rig.space.let_agent_stand(true);
  rig.start();
  EXPECT_FALSE(rig.space.touch_read(10));
  ASSERT_TRUE(rig.goes_on());
  ASSERT_TRUE(rig.is_idle());
  EXPECT_EQ(rig.budget.used(), 5U);
  EXPECT_EQ(rig.counts().faults_failed.get(), 0U);
}

TEST(FaultWorker, AFaultThatNeedsNoRoomIsAnsweredMeanwhile) {
  FullRig rig;
  rig.space.put(1, 1, uffd::Protection::kWriteProtected);
  rig.start();
  EXPECT_FALSE(rig.space.touch_read(10, 1));
  ASSERT_TRUE(becomes_true([&] { return rig.budget.has_waiters(); }));
  EXPECT_FALSE(rig.space.touch_write(1, 4711, 2));
  EXPECT_TRUE(rig.goes_on(2));
  EXPECT_TRUE(rig.space.sleeps(1));
}

TEST(FaultWorker, AFaultOfTheEvictorItselfNeverWaitsForRoom) {
  FullRig rig;
  rig.engine.evictor_thread = 55;
  rig.start();
  EXPECT_FALSE(rig.space.touch_read(10, 55));
  ASSERT_TRUE(rig.goes_on(55));
  ASSERT_TRUE(rig.is_idle());
  EXPECT_EQ(rig.budget.used(), 5U);
  EXPECT_EQ(rig.state(10), PageState::kClean);
}

TEST(FaultWorker, WithoutRoomUntilTheDeadlineAFaultEndsInSigbus) {
  for (const uint64_t page : {10, 11}) {
    FullRig rig(Milliseconds(1));
    rig.start();
    EXPECT_FALSE(rig.space.touch_read(page));
    ASSERT_TRUE(rig.goes_on());
    EXPECT_TRUE(rig.space.has_sigbus());
    EXPECT_EQ(rig.state(page), PageState::kLost);
    EXPECT_EQ(rig.budget.used(), 4U);
    EXPECT_EQ(rig.counts().faults_failed.get(), 1U);
    EXPECT_EQ(rig.log.count("READ"), 0U);
  }
}

TEST(FaultWorker, WithoutRoomAFaultOutlivesItsDeadlineWhileItsTargetIsStopped) {
  FullRig rig(Milliseconds(1));
  rig.target.eviction.progress.set_dropping(true);
  rig.start();
  EXPECT_FALSE(rig.space.touch_read(10));
  ASSERT_TRUE(becomes_true([&] { return rig.budget.has_waiters(); }));
  const Instant late = SteadyClock::read() + Milliseconds(20);
  ASSERT_TRUE(becomes_true([&] { return SteadyClock::read() > late; }));
  EXPECT_TRUE(rig.space.sleeps());
  evict(rig, 0);  // it runs again, and drops its pages
  ASSERT_TRUE(rig.goes_on());
  EXPECT_FALSE(rig.space.has_sigbus());
}

TEST(FaultWorker, AForkedChildOnTrialAsksForABudgetOnceWhenItFindsNoRoom) {
  FullRig rig;
  std::atomic<int> asked{0};
  rig.target.on_trial = true;
  rig.target.on_wants_budget = [&] { ++asked; };
  rig.start();
  EXPECT_FALSE(rig.space.touch_read(10, 1));
  EXPECT_FALSE(rig.space.touch_read(11, 2));
  ASSERT_TRUE(becomes_true([&] { return asked > 0; }));
  rig.budget.resize(10);
  EXPECT_TRUE(rig.goes_on(1));
  EXPECT_TRUE(rig.goes_on(2));
  EXPECT_EQ(asked, 1);
}

// ---- what the kernel may answer ----

TEST(FaultWorker, ZerosThatAnEventDelaysAreTriedAgain) {
  for (const bool resident : {false, true}) {
    WorkerRig rig;
    if (resident) {
      rig.make_dirty(pages_of(5));
      rig.space.drop_silently(pages_of(5));
    }
    std::atomic<int> tries{0};
    rig.space.before(Call::kZero, [&](uffd::PageRun) {
      if (++tries == 1) rig.space.unmap(pages_of(900));
    });
    rig.start();
    EXPECT_FALSE(rig.space.touch_read(5));
    ASSERT_TRUE(rig.goes_on());
    ASSERT_TRUE(rig.is_idle());
    EXPECT_GE(tries, 2);
    EXPECT_EQ(rig.state(5), PageState::kDirty);
    EXPECT_EQ(rig.budget.used(), 1U);
  }
}

TEST(FaultWorker, AProtectionThatAnEventDelaysIsRemovedAfterIt) {
  WorkerRig rig;
  rig.make_clean(pages_of(5));
  std::atomic<int> tries{0};
  rig.space.before(Call::kUnprotect, [&](uffd::PageRun) {
    if (++tries == 1) rig.space.unmap(pages_of(900));
  });
  rig.start();
  EXPECT_FALSE(rig.space.touch_write(5, 4711));
  ASSERT_TRUE(rig.goes_on());
  ASSERT_TRUE(rig.is_idle());
  EXPECT_GE(tries, 2);
  EXPECT_EQ(rig.space.word(5), 4711U);
  EXPECT_EQ(rig.state(5), PageState::kDirty);
}

TEST(FaultWorker, WhereNoMemoryIsAnyMoreTheThreadIsWokenAndTheRoomIsReturned) {
  for (const bool resident : {false, true}) {
    WorkerRig rig;
    if (resident) {
      rig.make_dirty(pages_of(5));
      rig.space.drop_silently(pages_of(5));
    }
    rig.space.before(Call::kZero, [&](uffd::PageRun) {
      rig.space.unmap(pages_of(5));
      rig.space.read_all();  // another worker has
    });
    rig.start();
    EXPECT_FALSE(rig.space.touch_read(5));
    ASSERT_TRUE(rig.goes_on());
    ASSERT_TRUE(rig.is_idle());
    EXPECT_EQ(rig.state(5), PageState::kEmpty);
    EXPECT_EQ(rig.budget.used(), 0U);
    EXPECT_FALSE(rig.target.gone);
  }
}

TEST(FaultWorker, AProgramThatHasEndedIsGone) {
  WorkerRig rig;
  EXPECT_FALSE(rig.space.touch_read(5));
  rig.space.end_program();
  rig.start();
  EXPECT_TRUE(becomes_true([&] { return rig.target.gone.load(); }));
}

// Two threads hit the protection of one page: the second message is old when it is handled.
TEST(FaultWorker, TwoWritersOfOnePageBothGoOn) {
  WorkerRig rig;
  rig.make_clean(pages_of(5));
  EXPECT_FALSE(rig.space.touch_write(5, 1, 1));
  EXPECT_FALSE(rig.space.touch_write(5, 2, 2));
  rig.start();
  EXPECT_TRUE(rig.goes_on(1));
  EXPECT_TRUE(rig.goes_on(2));
  ASSERT_TRUE(rig.is_idle());
  EXPECT_EQ(rig.state(5), PageState::kDirty);
}

// ---- parked faults ----

TEST(FaultWorker, ReadsOnHoweverManyFaultsAreParked) {
  constexpr uint32_t kMessages = 200;
  WorkerRig rig;
  rig.make_clean(pages_of(0, kMessages));
  for (uint64_t page = 0; page < kMessages; ++page) {
    EXPECT_FALSE(rig.space.touch_write(page, page, static_cast<uint32_t>(page) + 1));
    rig.move(page, PageState::kUnprotecting);  // another worker owns it
  }
  rig.start();
  ASSERT_TRUE(becomes_true([&] { return rig.space.unread() == 0; }));
  rig.make_dirty(pages_of(kMessages));
  rig.space.unmap(pages_of(kMessages));
  ASSERT_TRUE(becomes_true([&] { return rig.state(kMessages) == PageState::kEmpty; }));
  EXPECT_EQ(rig.log.take(), Lines{});
  for (uint64_t page = 0; page < kMessages; ++page) rig.move(page, PageState::kDirty);
  for (uint32_t i = 0; i < kMessages; ++i) ASSERT_TRUE(rig.goes_on(i + 1)) << i;
  ASSERT_TRUE(rig.is_idle());
  for (uint64_t page = 0; page < kMessages; ++page) EXPECT_EQ(rig.space.word(page), page);
}

// ---- events ----

TEST(FaultWorker, UnmappedPagesAreEmptyButForThoseThatAThreadOwns) {
  WorkerRig rig;
  rig.make_dirty(pages_of(5, 2));
  rig.make_remote(pages_of(7));
  const PageWord fetching = rig.make_fetching(8);
  rig.start();
  rig.space.unmap(pages_of(5, 4));
  ASSERT_TRUE(rig.has_handled_all());
  EXPECT_EQ(rig.state(5), PageState::kEmpty);
  EXPECT_EQ(rig.state(6), PageState::kEmpty);
  EXPECT_EQ(rig.state(7), PageState::kEmpty);
  EXPECT_EQ(rig.table.load(PageIndex{8}), fetching) << "its owner finds out when it installs";
  EXPECT_EQ(rig.budget.used(), 1U);
}

TEST(FaultWorker, AForkedChildIsHandedOn) {
  WorkerRig rig;
  CallLog child_log;
  std::atomic<uffd::AddressSpace*> child{nullptr};
  std::unique_ptr<uffd::AddressSpace> kept;
  rig.target.on_forked = [&](std::unique_ptr<uffd::AddressSpace> space) {
    kept = std::move(space);
    child = kept.get();
  };
  rig.start();
  auto made = std::make_unique<FakeAddressSpace>(10, child_log);
  const uffd::AddressSpace* expected = made.get();
  rig.space.fork(std::move(made));
  EXPECT_TRUE(becomes_true([&] { return child == expected; }));
}

// Children are registered by another thread, at the test's command.
class ForkingRig : public WorkerRig {
 public:
  ForkingRig() {
    target.on_forked = [this](std::unique_ptr<uffd::AddressSpace> child) {
      forks.arrived(std::move(child));
    };
    start();
  }
  ~ForkingRig() { stop(); }

  // True: a worker has read the event.
  [[nodiscard]] bool fork() {
    space.fork(std::make_unique<FakeAddressSpace>(space.pages(), child_log));
    return becomes_true([&] { return space.unread() == 0; });
  }
  [[nodiscard]] bool serves(uint64_t page) { return space.touch_read(page) || goes_on(); }

  CallLog child_log;
  std::atomic<int> children{0};
  std::counting_semaphore<> may_go_on{0};
  const Doorbell attention = std::move(*Doorbell::create());
  ForkInProgress forks{target, attention, [this](Inheritance) {
                         ++children;
                         may_go_on.acquire();
                       }};
};

TEST(FaultWorker, AnswersFaultsWhileAChildIsNotRegistered) {
  ForkingRig rig;
  rig.make_remote(pages_of(5, 2));
  ASSERT_TRUE(rig.forks.open());
  ASSERT_TRUE(rig.fork());
  const bool before = rig.serves(5);  // nobody has looked for the child yet
  EXPECT_EQ(rig.children, 0);
  std::jthread control([&] { rig.forks.close(/*forked=*/true); });
  ASSERT_TRUE(becomes_true([&] { return rig.children == 1; }));
  const bool read = rig.fork();  // one that was not announced arrives meanwhile
  const bool meanwhile = rig.serves(6);
  rig.may_go_on.release(2);
  control.join();
  rig.forks.adopt();
  EXPECT_EQ(rig.children, 2);
  EXPECT_TRUE(before);
  EXPECT_TRUE(read);
  EXPECT_TRUE(meanwhile);
}

// ---- streams ----

class StreamRig : public WorkerRig {
 public:
  StreamRig() : WorkerRig({.pages = 2048, .budget_pages = 1280, .prefetch_depth = 64}) {}
  // One thread, one page after the other.
  void walk(uint64_t first, uint64_t end) {
    for (uint64_t page = first; page < end; ++page) {
      if (!space.touch_write(page, page)) {
        ASSERT_TRUE(goes_on());
      }
      ASSERT_TRUE(is_idle());
    }
  }
};

TEST(FaultWorker, AheadOfAStreamPagesAreFetchedBeforeTheyAreTouched) {
  StreamRig rig;
  rig.make_remote(pages_of(0, 400));
  rig.start();
  rig.walk(0, 200);
  EXPECT_GT(rig.counts().prefetch_pages.get(), 100U);
  EXPECT_LT(rig.counts().faults_remote.get(), 100U);
  EXPECT_LE(rig.budget.used(), 200U + 3 * 10U) << "batches of a 128th of the budget";
  for (uint64_t page = 0; page < 200; ++page) EXPECT_EQ(rig.space.word(page), page);
}

TEST(FaultWorker, AheadOfAWalkThroughFreshMemoryZerosArePlaced) {
  StreamRig rig;
  rig.start();
  rig.walk(0, 200);
  EXPECT_GT(rig.counts().zeros_ahead.get(), 100U);
  EXPECT_LT(rig.counts().faults_zero.get(), 100U);
  EXPECT_LE(rig.budget.used(), 200U + 10U);
  EXPECT_TRUE(check_invariants(rig.table));
}

TEST(FaultWorker, NeighboursThatFaultSoonComeWithTheirPage) {
  StreamRig rig;
  rig.make_remote(pages_of(0, 400));
  rig.start();
  // No stride has a majority.
  constexpr std::array<uint64_t, 8> kOrder{0, 5, 1, 3, 7, 2, 6, 4};
  for (uint64_t cluster = 0; cluster < 50; ++cluster)
    for (const uint64_t i : kOrder) {
      const uint64_t page = (cluster * 21 % 50) * 8 + i;
      rig.walk(page, page + 1);
    }
  EXPECT_GT(rig.counts().clusters.get(), 10U);
  EXPECT_GT(rig.counts().cluster_pages.get(), 50U);
  EXPECT_LE(rig.counts().faults_remote.get() + rig.counts().prefetch_pages.get(), 400U);
  EXPECT_TRUE(check_invariants(rig.table));
}

TEST(FaultWorker, WhereAccessIsRandomNothingIsDoneAhead) {
  StreamRig rig;
  rig.access.set(pages_of(0, 2048), AccessPattern::kRandom);
  rig.make_remote(pages_of(0, 100));
  rig.start();
  rig.walk(0, 200);
  EXPECT_EQ(rig.counts().faults_remote.get(), 100U);
  EXPECT_EQ(rig.counts().faults_zero.get(), 100U);
  EXPECT_EQ(rig.counts().prefetch_pages.get(), 0U);
  EXPECT_EQ(rig.counts().zeros_ahead.get(), 0U);
  EXPECT_EQ(rig.budget.used(), 200U);
}

TEST(FaultWorker, WhereAccessIsSequentialTheFirstFaultFetchesAhead) {
  StreamRig rig;
  rig.access.set(pages_of(0, 2048), AccessPattern::kSequential);
  rig.make_remote(pages_of(0, 100));
  rig.start();
  EXPECT_FALSE(rig.space.touch_read(0));
  ASSERT_TRUE(rig.goes_on());
  ASSERT_TRUE(rig.is_idle());
  EXPECT_GT(rig.counts().prefetch_pages.get(), 0U);
  const Lines reads = rig.log.of("READ");
  EXPECT_EQ(reads.front(), "READ n0 0") << "the demanded page goes first";
}

// ---- targets ----

TEST(FaultWorker, AnswersFaultsOfAllTargets) {
  WorkerRig rig;
  TargetRig other({}, &rig);
  ASSERT_TRUE(rig.engine.targets.add(other.target, other.space.event_descriptor()));
  rig.make_remote(pages_of(5));
  rig.start();
  EXPECT_FALSE(rig.space.touch_read(5));
  EXPECT_FALSE(other.space.touch_write(5, 4711));
  ASSERT_TRUE(rig.goes_on());
  ASSERT_TRUE(becomes_true([&] { return !other.space.sleeps(1); }));
  EXPECT_EQ(rig.space.word(5), TargetRig::word_of(5));
  EXPECT_EQ(other.space.word(5), 4711U);
  EXPECT_EQ(other.budget.used(), 1U);
  rig.stop();
}

// One worker waits for the room of two targets, and answers faults of a third.
TEST(FaultWorker, WaitsForTheRoomOfSeveralTargetsAtOnce) {
  FullRig rig;
  TargetRig second({.budget_pages = 4, .fault_deadline = std::chrono::hours(1)}, &rig);
  TargetRig third({}, &rig);
  second.make_dirty(pages_of(0, 4));
  for (TargetRig* each : {&second, &third})
    ASSERT_TRUE(rig.engine.targets.add(each->target, each->space.event_descriptor()));
  rig.start();
  EXPECT_FALSE(rig.space.touch_read(10));
  EXPECT_FALSE(second.space.touch_read(10));
  ASSERT_TRUE(
      becomes_true([&] { return rig.budget.has_waiters() && second.budget.has_waiters(); }));
  EXPECT_FALSE(third.space.touch_read(10));
  ASSERT_TRUE(becomes_true([&] { return !third.space.sleeps(1); }));
  ASSERT_TRUE(
      becomes_true([&] { return rig.budget.has_waiters() && second.budget.has_waiters(); }));
  EXPECT_TRUE(rig.space.sleeps(1));
  evict(second, 0);
  ASSERT_TRUE(becomes_true([&] { return !second.space.sleeps(1); }));
  EXPECT_TRUE(rig.space.sleeps(1));
  evict(rig, 0);
  ASSERT_TRUE(rig.goes_on());
  EXPECT_TRUE(becomes_true([&] { return rig.is_idle() && !rig.budget.has_waiters(); }));
  EXPECT_FALSE(second.budget.has_waiters());
  rig.stop();
}

TEST(FaultWorker, LeavesATargetThatIsBeingRemovedAndServesTheOther) {
  WorkerRig rig;
  TargetRig other({}, &rig);
  ASSERT_TRUE(rig.engine.targets.add(other.target, other.space.event_descriptor()));
  rig.make_clean(pages_of(5));
  rig.move(5, PageState::kUnprotecting);
  rig.make_remote(pages_of(6));
  rig.node().answer_all(std::nullopt);
  rig.start();
  EXPECT_FALSE(rig.space.touch_write(5, 4711, 1));  // parked
  EXPECT_FALSE(rig.space.touch_read(6, 2));         // on the wire
  ASSERT_TRUE(becomes_true([&] { return rig.node().waiting() == 1; }));
  ASSERT_TRUE(rig.has_handled_all());
  EXPECT_TRUE(rig.holds_a_fault());
  rig.remove(rig.target);
  EXPECT_TRUE(becomes_true([&] { return !rig.holds_a_fault(); }));
  rig.engine.event_readers.wait_until_handled();
  EXPECT_FALSE(other.space.touch_write(5, 4712));
  EXPECT_TRUE(becomes_true([&] { return !other.space.sleeps(1); }));
  rig.node().answer();  // arrives in the landing page, and nowhere else
  EXPECT_EQ(rig.log.count("install"), 0U);
  rig.stop();
}

}  // namespace
}  // namespace farpage::pager
