#include "pager/fault/fetcher.h"

#include <gtest/gtest.h>

#include "target_rig.h"

namespace farpage::pager {
namespace {

using rdma::CompletionStatus;
using uffd::FaultKind;
using Lines = std::vector<std::string>;

class FetcherRig : public TargetRig {
 public:
  explicit FetcherRig(const TargetRigOptions& options = {}) : TargetRig(options) {}

  // As the worker does for a fault on a remote page, which is read now or was read at `since`.
  void start(uint64_t page, FaultKind kind = FaultKind::kMissingRead,
             Instant since = SteadyClock::read()) {
    const PageWord word = table.load(PageIndex{page});
    const PageWord fetching = word.to(PageState::kFetching, PageWord::kFromRemote);
    ASSERT_TRUE(budget.try_take());
    table.transition_owned(PageIndex{page}, word, fetching);
    fetcher.start(target, PageIndex{page}, fetching, kind, since);
  }
  // A thread has touched the page, and the message is read.
  void fault(uint64_t page, FaultKind kind = FaultKind::kMissingRead,
             Instant since = SteadyClock::read()) {
    if (kind == FaultKind::kMissingWrite) {
      EXPECT_FALSE(space.touch_write(page, kWritten, thread_of(page)));
    } else {
      EXPECT_FALSE(space.touch_read(page, thread_of(page)));
    }
    space.read_all();
    start(page, kind, since);
  }
  bool waits(uint64_t page) const { return space.sleeps(thread_of(page)); }
  bool is_killed(uint64_t page) const { return space.has_sigbus(thread_of(page)); }
  // Posts again what has failed, after the pause if that was the last replica.
  bool posts_again(size_t node) {
    return becomes_true([&] {
      (void)fetcher.progress();
      return nodes[node]->waiting() > 0;
    });
  }
  // As long ago as a fault that is too late.
  Instant too_long_ago() const {
    return SteadyClock::read() - engine.options.fault_deadline - Seconds(1);
  }

  static constexpr uint64_t kWritten = 77;
  std::unique_ptr<LinkPort> port = make_port(Fetcher::kBufferBytes);
  Fetcher fetcher{engine, *port, 0};

 private:
  static uint32_t thread_of(uint64_t page) { return static_cast<uint32_t>(page) + 1; }
};

TEST(Fetcher, PageOfAReadFaultIsInstalledProtectedAndClean) {
  FetcherRig rig;
  rig.make_remote(pages_of(5));
  rig.fault(5);
  rig.fetcher.post_queued();
  EXPECT_EQ(rig.log.take(), Lines{"READ n0 5"});
  EXPECT_FALSE(rig.fetcher.progress()) << "the node has not answered";
  EXPECT_TRUE(rig.waits(5));
  rig.node().answer();
  EXPECT_TRUE(rig.fetcher.progress());
  EXPECT_EQ(rig.log.take(), Lines{"install 5 protected"});
  EXPECT_EQ(rig.state(5), PageState::kClean);
  EXPECT_EQ(rig.space.word(5), TargetRig::word_of(5));
  EXPECT_FALSE(rig.waits(5));
  EXPECT_EQ(rig.fetcher.outstanding(), 0U);
  EXPECT_FALSE(rig.target.is_held());
  EXPECT_EQ(rig.budget.used(), 1U);
  EXPECT_EQ(rig.counts().faults_remote.get(), 1U);
  EXPECT_EQ(rig.counts().read_bytes.get(), kPageBytes);
}

TEST(Fetcher, PageOfAWriteFaultIsInstalledWritableAndDirty) {
  FetcherRig rig;
  rig.make_remote(pages_of(5));
  rig.fault(5, FaultKind::kMissingWrite);
  rig.fetcher.post_queued();
  rig.node().answer();
  EXPECT_TRUE(rig.fetcher.progress());
  EXPECT_EQ(rig.log.count("install 5 writable"), 1U);
  EXPECT_EQ(rig.state(5), PageState::kDirty);
  EXPECT_EQ(rig.space.word(5), FetcherRig::kWritten);
}

TEST(Fetcher, AfterAForkAPageIsProtectedWhateverTheGuess) {
  FetcherRig rig;
  // Most protected pages are written: pages are installed writable from here on.
  for (int i = 0; i < 300; ++i) {
    (void)rig.target.write_guess.protect_next();
    rig.target.write_guess.written();
  }
  rig.make_remote(pages_of(0, 40));
  rig.node().answer_all(CompletionStatus::kOk);
  const auto fetch = [&](uint64_t first) {
    for (uint64_t page = first; page < first + 20; ++page) rig.fault(page);
    rig.fetcher.post_queued();
    EXPECT_TRUE(becomes_true([&] { return !rig.fetcher.progress(); }));
    EXPECT_EQ(rig.fetcher.outstanding(), 0U);
    return rig.log.count("install");
  };
  EXPECT_EQ(fetch(0), 20U);
  EXPECT_GE(rig.log.count("install 1 writable") + rig.log.count("install 2 writable"), 1U);
  (void)rig.log.take();
  const auto child = ProcessImage::copy_of(*rig.image, [](PageIndex, PageWord w) { return w; });
  EXPECT_EQ(fetch(20), 20U);
  for (uint64_t page = 20; page < 40; ++page) EXPECT_EQ(rig.state(page), PageState::kClean) << page;
}

TEST(Fetcher, AllFaultsOfABatchGoToANodeInOneCall) {
  FetcherRig rig({.nodes = 2});
  rig.make_remote(pages_of(0, 8));
  for (uint64_t page = 0; page < 8; page += 2) rig.fault(page);
  rig.fault(1);
  rig.fetcher.post_queued();
  EXPECT_EQ(rig.node(0).waiting(), 4U);
  EXPECT_EQ(rig.node(0).posts(), 1U);
  EXPECT_EQ(rig.node(1).waiting(), 1U);
}

TEST(Fetcher, BytesLandInTheirOwnPageWhateverTheOrderOfTheAnswers) {
  FetcherRig rig;
  rig.make_remote(pages_of(0, 600));
  ASSERT_TRUE(rig.lease_slab_of(600));
  const std::vector<uint64_t> pages{3, 599, 4, 512, 511};
  for (const uint64_t page : pages) rig.fault(page);
  rig.fetcher.post_queued();
  for (const size_t place : {3, 0, 2, 1, 0}) {
    rig.node().answer(CompletionStatus::kOk, place);
    EXPECT_TRUE(rig.fetcher.progress());
  }
  for (const uint64_t page : pages) EXPECT_EQ(rig.space.word(page), TargetRig::word_of(page));
}

TEST(Fetcher, HasAsManySlotsAsItSaysAndUsesThemAgain) {
  FetcherRig rig;
  rig.make_remote(pages_of(0, Fetcher::kSlots + 1));
  for (uint64_t page = 0; page < Fetcher::kSlots; ++page) {
    EXPECT_TRUE(rig.fetcher.has_room());
    rig.fault(page);
  }
  EXPECT_FALSE(rig.fetcher.has_room());
  rig.fetcher.post_queued();
  rig.node().answer(CompletionStatus::kOk, 7);
  EXPECT_TRUE(rig.fetcher.progress());
  EXPECT_TRUE(rig.fetcher.has_room());
  rig.fault(Fetcher::kSlots);
  rig.fetcher.post_queued();
  for (size_t i = 0; i < Fetcher::kSlots; ++i) rig.node().answer();
  while (rig.fetcher.progress()) {
  }
  EXPECT_EQ(rig.fetcher.outstanding(), 0U);
  for (uint64_t page = 0; page <= Fetcher::kSlots; ++page)
    EXPECT_EQ(rig.space.word(page), TargetRig::word_of(page));
}

TEST(Fetcher, WhatAFullChannelDoesNotAcceptIsPostedWhenThereIsRoom) {
  FetcherRig rig;
  (void)rig.port->channel(NodeIndex{0});  // takes the first one
  rig.node().break_channels();
  EXPECT_EQ(rig.port->channel(NodeIndex{0}), nullptr);
  rig.connect(*rig.port, 0, {.operations_in_flight = 2, .operation_bytes = kPageBytes});
  rig.make_remote(pages_of(0, 5));
  for (uint64_t page = 0; page < 5; ++page) rig.fault(page);
  rig.fetcher.post_queued();
  EXPECT_EQ(rig.node().waiting(), 2U);
  for (int i = 0; i < 5; ++i) {
    rig.node().answer();
    EXPECT_TRUE(rig.fetcher.progress());
  }
  EXPECT_EQ(rig.fetcher.outstanding(), 0U);
  for (uint64_t page = 0; page < 5; ++page) EXPECT_FALSE(rig.waits(page));
}

TEST(Fetcher, WaitingTakesTheNextAnswerToo) {
  FetcherRig rig;
  rig.make_remote(pages_of(5));
  rig.fault(5);
  rig.fetcher.post_queued();
  rig.fetcher.wait_a_little();
  EXPECT_TRUE(rig.waits(5));
  rig.node().answer();
  rig.fetcher.wait_a_little();
  EXPECT_EQ(rig.state(5), PageState::kClean);
  EXPECT_FALSE(rig.waits(5));
}

// ---- replicas ----

TEST(Fetcher, ThePageNumberChoosesTheFirstReplica) {
  FetcherRig rig({.nodes = 3});
  rig.make_remote(pages_of(0, 6));
  for (uint64_t page = 0; page < 6; ++page) rig.fault(page);
  rig.fetcher.post_queued();
  EXPECT_EQ(rig.log.of("READ n0"), (Lines{"READ n0 0", "READ n0 3"}));
  EXPECT_EQ(rig.log.of("READ n1"), (Lines{"READ n1 1", "READ n1 4"}));
  EXPECT_EQ(rig.log.of("READ n2"), (Lines{"READ n2 2", "READ n2 5"}));
}

TEST(Fetcher, AFailedReadIsTriedAtTheNextReplica) {
  for (const CompletionStatus status :
       {CompletionStatus::kTimedOut, CompletionStatus::kPeerGone, CompletionStatus::kLocalError}) {
    FetcherRig rig({.nodes = 2});
    rig.make_remote(pages_of(5));
    rig.fault(5);
    rig.fetcher.post_queued();
    ASSERT_EQ(rig.node(1).waiting(), 1U);
    rig.node(1).answer(status);
    EXPECT_TRUE(rig.fetcher.progress());
    EXPECT_EQ(rig.node(1).waiting(), 0U);
    ASSERT_EQ(rig.node(0).waiting(), 1U) << to_string(status);
    EXPECT_TRUE(rig.replica(5, 1).is_read()) << "one failure does not end its use";
    rig.node(0).answer();
    EXPECT_TRUE(rig.fetcher.progress());
    EXPECT_EQ(rig.space.word(5), TargetRig::word_of(5));
    EXPECT_EQ(rig.counts().retries.get(), 1U);
  }
}

TEST(Fetcher, AfterTheLastReplicaItStartsAgainFromTheFirst) {
  FetcherRig rig({.nodes = 3});
  rig.make_remote(pages_of(4));
  rig.fault(4);
  rig.fetcher.post_queued();
  for (int round = 0; round < 3; ++round)
    for (const size_t node : {1, 2, 0}) {
      ASSERT_TRUE(rig.posts_again(node)) << round;
      rig.node(node).answer(CompletionStatus::kTimedOut);
      (void)rig.fetcher.progress();
    }
  ASSERT_TRUE(rig.posts_again(1));
  rig.node(1).answer();
  EXPECT_TRUE(rig.fetcher.progress());
  EXPECT_EQ(rig.state(4), PageState::kClean);
  EXPECT_EQ(rig.counts().retries.get(), 9U);
}

TEST(Fetcher, BetweenTwoRoundsThereIsAPause) {
  FetcherRig rig;
  rig.make_remote(pages_of(5));
  rig.fault(5);
  rig.fetcher.post_queued();
  for (int round = 0; round < 3; ++round) {
    const Instant failed = SteadyClock::read();
    rig.node().answer(CompletionStatus::kTimedOut);
    ASSERT_TRUE(rig.posts_again(0));
    EXPECT_GE(SteadyClock::read() - failed, std::chrono::microseconds(500));
  }
}

TEST(Fetcher, AFlushedReadIsTriedAtTheSameReplicaOverTheNewChannel) {
  FetcherRig rig({.nodes = 2});
  rig.make_remote(pages_of(0, 6));
  rig.fault(2);
  rig.fault(4);
  rig.fetcher.post_queued();
  rig.node(0).break_channels(CompletionStatus::kTimedOut);  // of the first READ
  rig.connect(*rig.port, 0);
  EXPECT_TRUE(rig.fetcher.progress());
  EXPECT_EQ(rig.log.of("READ n1"), Lines{"READ n1 2"});
  EXPECT_EQ(rig.log.of("READ n0"), (Lines{"READ n0 2", "READ n0 4", "READ n0 4"}));
}

TEST(Fetcher, AFlushedReadDoesNotWaitForTheNewChannelWhereAnotherReplicaHasOne) {
  FetcherRig rig({.nodes = 2});
  rig.make_remote(pages_of(4));
  rig.fault(4);
  rig.fetcher.post_queued();
  rig.node(0).break_channels(CompletionStatus::kFlushed);
  EXPECT_TRUE(rig.fetcher.progress());
  EXPECT_EQ(rig.node(1).waiting(), 1U);
}

TEST(Fetcher, ARefusedKeyEndsTheUseOfThatReplica) {
  FetcherRig rig({.nodes = 2});
  rig.make_remote(pages_of(0, 8));
  rig.fault(5);
  rig.fetcher.post_queued();
  rig.node(1).answer(CompletionStatus::kRemoteAccess);
  EXPECT_TRUE(rig.fetcher.progress());
  EXPECT_EQ(rig.replica(5, 1).state, ReplicaState::kLost);
  EXPECT_EQ(rig.target.replicas_lost, 1U);
  ASSERT_EQ(rig.node(0).waiting(), 1U);
  rig.fault(7);
  rig.fetcher.post_queued();
  EXPECT_EQ(rig.node(1).waiting(), 0U);
  EXPECT_EQ(rig.node(0).waiting(), 2U);
}

TEST(Fetcher, AReplicaThatIsBeingFilledIsNotRead) {
  FetcherRig rig({.nodes = 2});
  rig.make_remote(pages_of(0, 8));
  rig.replica(0, 0).state = ReplicaState::kFilling;
  for (uint64_t page = 0; page < 8; ++page) rig.fault(page);
  rig.fetcher.post_queued();
  EXPECT_EQ(rig.node(0).waiting(), 0U);
  EXPECT_EQ(rig.node(1).waiting(), 8U);
}

TEST(Fetcher, AReplicaWithoutAKeyForTheTransportIsPassedOver) {
  FetcherRig rig({.nodes = 2});
  rig.make_remote(pages_of(4));
  const_cast<ReplicaLease&>(rig.replica(4, 0)).keys = {};
  rig.fault(4);
  rig.fetcher.post_queued();
  EXPECT_EQ(rig.node(0).waiting(), 0U);
  EXPECT_EQ(rig.node(1).waiting(), 1U);
}

TEST(Fetcher, WithoutAChannelTheNextReplicaIsRead) {
  FetcherRig rig({.nodes = 2});
  rig.make_remote(pages_of(5));
  rig.node(1).break_channels();
  rig.fault(5);
  rig.fetcher.post_queued();
  EXPECT_EQ(rig.node(0).waiting(), 1U);
  EXPECT_TRUE(rig.port->wants(NodeIndex{1})) << "the connector is asked for a new one";
}

TEST(Fetcher, WithoutAnyChannelAFaultWaitsForOne) {
  FetcherRig rig;
  rig.make_remote(pages_of(5));
  rig.node().break_channels();
  rig.fault(5);
  rig.fetcher.post_queued();
  EXPECT_FALSE(rig.fetcher.progress());
  EXPECT_EQ(rig.state(5), PageState::kFetching);
  EXPECT_TRUE(rig.port->wants(NodeIndex{0}));
  rig.connect(*rig.port, 0);
  ASSERT_TRUE(rig.posts_again(0));
  rig.node().answer();
  EXPECT_TRUE(rig.fetcher.progress());
  EXPECT_FALSE(rig.waits(5));
}

// ---- lost pages ----

TEST(Fetcher, WhenEveryReplicaIsLostThePageIsLostAtOnce) {
  FetcherRig rig({.nodes = 2});
  rig.make_remote(pages_of(5));
  rig.fault(5);
  rig.fetcher.post_queued();
  rig.node(1).answer(CompletionStatus::kRemoteAccess);
  EXPECT_TRUE(rig.fetcher.progress());
  rig.node(0).answer(CompletionStatus::kRemoteAccess);
  EXPECT_TRUE(rig.fetcher.progress());
  EXPECT_EQ(rig.state(5), PageState::kLost);
  EXPECT_TRUE(rig.is_killed(5));
  EXPECT_EQ(rig.budget.used(), 0U);
  EXPECT_EQ(rig.fetcher.outstanding(), 0U);
  EXPECT_FALSE(rig.target.is_held());
  EXPECT_EQ(rig.counts().faults_failed.get(), 1U);
  EXPECT_EQ(rig.log.count("install"), 0U);
}

TEST(Fetcher, AReadThatFailsAfterTheDeadlineIsTheLastOne) {
  for (const CompletionStatus status :
       {CompletionStatus::kTimedOut, CompletionStatus::kPeerGone, CompletionStatus::kLocalError,
        CompletionStatus::kFlushed, CompletionStatus::kRemoteAccess}) {
    FetcherRig rig({.nodes = 2});
    rig.make_remote(pages_of(5));
    rig.fault(5, FaultKind::kMissingRead, rig.too_long_ago());
    rig.fetcher.post_queued();
    ASSERT_EQ(rig.node(1).waiting(), 1U) << "one try in any case";
    rig.node(1).answer(status);
    EXPECT_TRUE(rig.fetcher.progress());
    EXPECT_EQ(rig.state(5), PageState::kLost) << to_string(status);
    EXPECT_TRUE(rig.is_killed(5));
    EXPECT_EQ(rig.node(0).waiting(), 0U);
    EXPECT_EQ(rig.budget.used(), 0U);
  }
}

TEST(Fetcher, AReadThatSucceedsAfterTheDeadlineIsInTime) {
  FetcherRig rig;
  rig.make_remote(pages_of(5));
  rig.fault(5, FaultKind::kMissingRead, rig.too_long_ago());
  rig.fetcher.post_queued();
  rig.node().answer();
  EXPECT_TRUE(rig.fetcher.progress());
  EXPECT_EQ(rig.state(5), PageState::kClean);
  EXPECT_FALSE(rig.is_killed(5));
}

TEST(Fetcher, AFaultThatNoChannelServesBeforeTheDeadlineIsLost) {
  FetcherRig rig;
  rig.make_remote(pages_of(0, 2));
  rig.node().break_channels();
  rig.fault(0);
  rig.fault(1, FaultKind::kMissingRead, rig.too_long_ago());
  rig.fetcher.post_queued();
  EXPECT_EQ(rig.state(1), PageState::kLost);
  EXPECT_TRUE(rig.is_killed(1));
  EXPECT_EQ(rig.state(0), PageState::kFetching) << "it has time left";
  EXPECT_EQ(rig.fetcher.outstanding(), 1U);
}

// As behind a network that carries handshakes but no pages.
TEST(Fetcher, TheDeadlineHoldsWhereEachChannelIsAcceptedAndNoReadAnswered) {
  FetcherRig rig({.fault_deadline = Milliseconds(1500)});
  rig.make_remote(pages_of(5));
  rig.node().break_channels();
  rig.fault(5);
  rig.fetcher.post_queued();
  const Nanoseconds timeout = rig.engine.options.channel.operation_timeout;
  const auto is_lost_after_another_try = [&] {
    rig.connect(*rig.port, 0);
    while (rig.node().waiting() == 0 && rig.state(5) != PageState::kLost)
      (void)rig.fetcher.progress();
    const Instant posted = SteadyClock::read();
    while (SteadyClock::read() - posted < timeout) std::this_thread::yield();
    rig.node().break_channels(CompletionStatus::kTimedOut);
    (void)rig.fetcher.progress();
    return rig.state(5) == PageState::kLost;
  };
  EXPECT_TRUE(becomes_true(is_lost_after_another_try));
  EXPECT_TRUE(rig.is_killed(5));
}

TEST(Fetcher, WhileAnEventIsUnreadThePoisonWaits) {
  FetcherRig rig;
  rig.make_remote(pages_of(5));
  rig.fault(5, FaultKind::kMissingRead, rig.too_long_ago());
  rig.fetcher.post_queued();
  rig.space.unmap(pages_of(900));
  rig.node().answer(CompletionStatus::kTimedOut);
  EXPECT_TRUE(rig.fetcher.progress());
  EXPECT_EQ(rig.state(5), PageState::kLost);
  EXPECT_FALSE(rig.is_killed(5));
  EXPECT_EQ(rig.fetcher.outstanding(), 1U);
  rig.space.read_all();
  (void)rig.fetcher.progress();
  EXPECT_TRUE(rig.is_killed(5));
  EXPECT_EQ(rig.fetcher.outstanding(), 0U);
}

// ---- what the kernel may answer to the installation ----

TEST(Fetcher, WhatTheProgramHasPlacedThereItselfIsKeptAndDirty) {
  FetcherRig rig;
  rig.make_remote(pages_of(5));
  rig.fault(5);
  rig.fetcher.post_queued();
  rig.space.put(5, 4711, uffd::Protection::kWritable);
  rig.node().answer();
  EXPECT_TRUE(rig.fetcher.progress());
  EXPECT_EQ(rig.space.word(5), 4711U);
  EXPECT_EQ(rig.state(5), PageState::kDirty);
  EXPECT_EQ(rig.budget.used(), 1U);
  EXPECT_FALSE(rig.waits(5));
  EXPECT_EQ(rig.fetcher.outstanding(), 0U);
}

TEST(Fetcher, APageThatWasUnmappedMeanwhileIsEmptyAndItsRoomIsFree) {
  FetcherRig rig;
  rig.make_remote(pages_of(5));
  rig.fault(5);
  rig.fetcher.post_queued();
  rig.space.unmap(pages_of(5));
  rig.space.read_all();
  rig.node().answer();
  EXPECT_TRUE(rig.fetcher.progress());
  EXPECT_EQ(rig.state(5), PageState::kEmpty);
  EXPECT_EQ(rig.budget.used(), 0U);
  EXPECT_FALSE(rig.waits(5)) << "its thread finds out what is there now";
  EXPECT_EQ(rig.fetcher.outstanding(), 0U);
  EXPECT_FALSE(rig.target.gone);
}

TEST(Fetcher, AProgramThatHasEndedIsGone) {
  FetcherRig rig;
  rig.make_remote(pages_of(5));
  rig.fault(5);
  rig.fetcher.post_queued();
  rig.space.end_program();
  rig.node().answer();
  EXPECT_TRUE(rig.fetcher.progress());
  EXPECT_TRUE(rig.target.gone);
  EXPECT_EQ(rig.state(5), PageState::kEmpty);
  EXPECT_EQ(rig.budget.used(), 0U);
  EXPECT_EQ(rig.fetcher.outstanding(), 0U);
}

TEST(Fetcher, WhileAnEventIsUnreadTheSlotKeepsThePage) {
  FetcherRig rig;
  rig.make_remote(pages_of(5));
  rig.fault(5);
  rig.fetcher.post_queued();
  rig.space.unmap(pages_of(900));
  rig.node().answer();
  EXPECT_TRUE(rig.fetcher.progress());
  EXPECT_FALSE(rig.fetcher.progress());
  EXPECT_EQ(rig.state(5), PageState::kFetching);
  EXPECT_EQ(rig.fetcher.outstanding(), 1U);
  rig.space.read_all();
  (void)rig.fetcher.progress();
  EXPECT_EQ(rig.state(5), PageState::kClean);
  EXPECT_EQ(rig.space.word(5), TargetRig::word_of(5));
  EXPECT_FALSE(rig.waits(5));
  EXPECT_EQ(rig.counts().reads.get(), 1U) << "it is not read twice";
}

TEST(Fetcher, WhoFaultedAgainBeforeThePageWasCleanIsWoken) {
  FetcherRig rig;
  rig.make_remote(pages_of(5));
  rig.fault(5);
  rig.fetcher.post_queued();
  // The installation has woken all threads. Before the worker goes on, the program drops the page,
  // touches it, and another worker reads that.
  rig.space.after(FakeAddressSpace::Call::kInstall, [&](uffd::PageRun) {
    rig.space.drop_silently(pages_of(5));
    EXPECT_FALSE(rig.space.touch_read(5, 99));
    rig.space.read_all();
    EXPECT_TRUE(rig.table.mark_awaited(PageIndex{5}, rig.table.load(PageIndex{5})));
  });
  rig.node().answer();
  EXPECT_TRUE(rig.fetcher.progress());
  EXPECT_EQ(rig.state(5), PageState::kClean);
  EXPECT_EQ(rig.log.count("wake 5"), 1U);
  EXPECT_EQ(rig.space.unread(), 1U) << "it has faulted again";
}

TEST(Fetcher, APageThatComesBackSoonIsPassedOverByEvictionAtFirst) {
  FetcherRig rig;
  rig.make_remote(pages_of(0, 2));
  const auto left_at = [&](uint64_t page, uint8_t epoch) {
    rig.table.set_references(PageIndex{page}, rig.table.load(PageIndex{page}), 0);
    const PageWord word = rig.table.load(PageIndex{page});
    rig.table.transition_owned(PageIndex{page}, word, word.to(PageState::kEmpty));
    rig.table.place(PageIndex{page}, PageWord(PageState::kRemote).with_epoch(epoch));
  };
  left_at(0, TargetRig::kNow - 1);
  left_at(1, TargetRig::kNow - kSoonEpochs - 2);
  rig.fault(0);
  rig.fault(1);
  rig.fetcher.post_queued();
  rig.node().answer();
  rig.node().answer();
  EXPECT_TRUE(rig.fetcher.progress());
  EXPECT_EQ(rig.table.load(PageIndex{0}).references(), kReferencesOfReturn);
  EXPECT_EQ(rig.table.load(PageIndex{1}).references(), 0U);
}

// ---- a target that is removed ----

TEST(Fetcher, LeavesATargetThatIsBeingRemoved) {
  FetcherRig rig;
  rig.make_remote(pages_of(0, 2));
  rig.fault(0);
  rig.fetcher.post_queued();
  rig.fault(1);  // not posted
  rig.fetcher.leave_closing();
  EXPECT_EQ(rig.fetcher.outstanding(), 2U) << "it stays";
  rig.target.closing = true;
  rig.fetcher.leave_closing();
  EXPECT_FALSE(rig.target.is_held());
  EXPECT_EQ(rig.fetcher.outstanding(), 1U) << "the READ still uses its slot";
  rig.node().answer();
  EXPECT_TRUE(rig.fetcher.progress());
  EXPECT_EQ(rig.fetcher.outstanding(), 0U);
  EXPECT_EQ(rig.log.count("install"), 0U);
  EXPECT_EQ(rig.state(0), PageState::kFetching);
}

}  // namespace
}  // namespace farpage::pager
