// Faults that the faulting thread resolves itself.
#include <gtest/gtest.h>

#include "pager/fault/fault_worker.h"
#include "target_rig.h"

namespace farpage::pager {
namespace {

using rdma::CompletionStatus;
using uffd::FaultKind;
using Lines = std::vector<std::string>;

// The program's threads are the test's, in their signal handlers. Nobody reads messages.
class InThreadRig : public TargetRig {
 public:
  explicit InThreadRig(TargetRigOptions options = {}) : TargetRig(in_thread(options)) {
    for (const auto& each : nodes) each->answer_all(CompletionStatus::kOk);
  }
  ~InThreadRig() {
    target.closing = true;
    evictor->remove(target);
    engine.stopping = true;
  }
  void resolve(uint64_t page, FaultKind kind = FaultKind::kMissingRead, uint32_t thread = 1) {
    worker.resolve_here(target, {PageIndex{page}, kind, thread});
  }

  std::unique_ptr<LinkPort> demand = make_port(Fetcher::kBufferBytes);
  std::unique_ptr<LinkPort> prefetch = make_port(Prefetcher::kBufferBytes);
  std::unique_ptr<LinkPort> evict = make_port(EvictionBatch::kBufferBytes);
  std::unique_ptr<Evictor> evictor = std::make_unique<Evictor>(engine, *evict);
  FaultWorker worker{engine, {*demand, *prefetch}, *evictor, 0};

 private:
  static TargetRigOptions in_thread(TargetRigOptions options) {
    options.resolve_in_thread = true;
    return options;
  }
};

TEST(FaultWorkerInThread, ReturnsWithThePage) {
  InThreadRig rig;
  rig.make_remote(pages_of(5));
  rig.make_clean(pages_of(6));
  rig.resolve(5);
  EXPECT_EQ(rig.state(5), PageState::kClean);
  EXPECT_EQ(rig.space.word(5), TargetRig::word_of(5));
  rig.resolve(6, FaultKind::kWriteProtected);
  EXPECT_EQ(rig.state(6), PageState::kDirty);
  EXPECT_FALSE(rig.space.is_protected(6));
  rig.resolve(7, FaultKind::kMissingWrite);
  EXPECT_EQ(rig.space.word(7), 0U);
  EXPECT_EQ(rig.budget.used(), 3U);
  EXPECT_FALSE(rig.target.is_held());
}

TEST(FaultWorkerInThread, ReturnsWithThePoisonOfALostPage) {
  InThreadRig rig;
  rig.make_remote(pages_of(5));
  rig.replica(5, 0).state = ReplicaState::kLost;
  rig.resolve(5);
  EXPECT_EQ(rig.state(5), PageState::kLost);
  EXPECT_TRUE(rig.space.touch_read(5));
  EXPECT_TRUE(rig.space.has_sigbus());
}

TEST(FaultWorkerInThread, ReturnsAfterTheLastOfItsPrefetches) {
  InThreadRig rig({.budget_pages = 1280, .prefetch_depth = 64});
  rig.make_remote(pages_of(0, 100));
  rig.access.set(pages_of(0, 2048), AccessPattern::kSequential);
  rig.resolve(0);
  EXPECT_GT(rig.counts().prefetch_pages.get(), 0U);
  for (uint64_t page = 0; page < 100; ++page) EXPECT_NE(rig.state(page), PageState::kFetching);
  EXPECT_FALSE(rig.target.is_held());
}

TEST(FaultWorkerInThread, WaitsForAPageThatAnotherThreadOwns) {
  struct Case {
    PageState owned;
    PageState afterwards;
  };
  for (const Case& c : {Case{PageState::kFetching, PageState::kClean},
                        {PageState::kUnprotecting, PageState::kDirty},
                        {PageState::kDropping, PageState::kRemote}}) {
    InThreadRig rig;
    rig.make_dirty(pages_of(5));
    if (c.owned == PageState::kDropping) rig.move(5, PageState::kEvicting);
    rig.move(5, c.owned);
    std::atomic<bool> begun{false};
    PageState at_return = PageState::kEmpty;
    std::jthread thread([&] {
      begun = true;
      rig.resolve(5);
      at_return = rig.state(5);
    });
    ASSERT_TRUE(becomes_true([&] { return begun.load(); }));
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();  // it would return now
    rig.move(5, c.afterwards);
    if (!is_resident(c.afterwards)) rig.budget.give_back(1);
    thread.join();
    EXPECT_EQ(at_return, c.afterwards) << "the instruction is tried again";
    EXPECT_EQ(rig.log.count("READ"), 0U);
  }
}

TEST(FaultWorkerInThread, ItsClaimEndsWhenAnotherThreadBringsThePage) {
  InThreadRig rig({.budget_pages = 4, .fault_deadline = Seconds(2)});
  rig.target.eviction.progress.set_dropping(true);  // so the fault waits on
  rig.make_dirty(pages_of(100, 4));
  rig.make_remote(pages_of(5));
  std::jthread thread([&] { rig.resolve(5); });
  ASSERT_TRUE(becomes_true([&] { return rig.budget.has_claim(); }));
  rig.move(5, PageState::kFetching);
  std::this_thread::sleep_for(Milliseconds(20));  // it waits for the page now
  rig.budget.take_anyway();
  rig.move(5, PageState::kClean);
  thread.join();
  EXPECT_FALSE(rig.budget.has_claim());
  rig.target.eviction.progress.set_dropping(false);
}

TEST(FaultWorkerInThread, WithoutRoomItWaitsForTheEvictor) {
  InThreadRig rig({.budget_pages = 100});
  rig.make_clean(pages_of(100, 100));
  rig.make_remote(pages_of(5));
  rig.evictor->add(rig.target);
  rig.resolve(5);
  EXPECT_EQ(rig.state(5), PageState::kClean);
  EXPECT_LE(rig.budget.used(), 100U);
  EXPECT_GT(rig.evicted().pages_clean.get(), 0U);
}

TEST(FaultWorkerInThread, EvictsWhileItsReadIsInFlight) {
  InThreadRig rig({.budget_pages = 1000});
  rig.make_dirty(pages_of(1000, 975));  // above the mark of helpers, below that of the thread
  rig.make_remote(pages_of(0, 200));
  rig.evictor->add(rig.target);
  rig.node().answer_all(std::nullopt);
  // Answers a READ when a WRITE is under way, or after a while: a helper does nothing while the
  // evictor's thread looks for work.
  std::jthread network([&](const std::stop_token& stop) {
    for (int looks = 0; !stop.stop_requested(); std::this_thread::yield()) {
      if (rig.node().waiting() == 0) continue;
      if (rig.log.count("WRITE") == 0 && ++looks % 1000 != 0) continue;
      rig.node().answer();
    }
    rig.node().answer_all(CompletionStatus::kOk);
    while (rig.node().waiting() > 0) rig.node().answer();
  });
  uint64_t page = 0;
  EXPECT_TRUE(becomes_true([&] {
    rig.resolve(page++);
    return rig.log.count("WRITE") > 0;
  }));
}

TEST(FaultWorkerInThread, OfATargetThatIsBeingRemovedNothingIsResolved) {
  InThreadRig rig;
  rig.make_remote(pages_of(5));
  rig.target.closing = true;
  rig.resolve(5);
  EXPECT_EQ(rig.state(5), PageState::kRemote);
  EXPECT_EQ(rig.log.take(), Lines{});
}

}  // namespace
}  // namespace farpage::pager
