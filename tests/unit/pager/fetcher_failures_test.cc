// Lost pages, and what the kernel may answer to an installation.
#include <gtest/gtest.h>

#include "fetcher_rig.h"

namespace farpage::pager {
namespace {

using rdma::CompletionStatus;
using uffd::FaultKind;

// ---- lost pages ----

TEST(Fetcher, WhenEveryReplicaIsLostThePageIsLostAtOnce) {
  FetcherRig rig({.nodes = 2});
  rig.begin_fetch(5);
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
    rig.begin_fetch(5, rig.too_long_ago());
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
  rig.begin_fetch(5, rig.too_long_ago());
  rig.answer();
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
  rig.begin_fetch(5, rig.too_long_ago());
  rig.space.unmap(pages_of(900));
  rig.answer(CompletionStatus::kTimedOut);
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
  rig.begin_fetch(5);
  rig.space.put(5, 4711, uffd::Protection::kWritable);
  rig.answer();
  EXPECT_EQ(rig.space.word(5), 4711U);
  EXPECT_EQ(rig.state(5), PageState::kDirty);
  EXPECT_EQ(rig.budget.used(), 1U);
  EXPECT_FALSE(rig.waits(5));
  EXPECT_EQ(rig.fetcher.outstanding(), 0U);
}

TEST(Fetcher, APageThatWasUnmappedMeanwhileIsEmptyAndItsRoomIsFree) {
  FetcherRig rig;
  rig.begin_fetch(5);
  rig.space.unmap(pages_of(5));
  rig.space.read_all();
  rig.answer();
  EXPECT_EQ(rig.state(5), PageState::kEmpty);
  EXPECT_EQ(rig.budget.used(), 0U);
  EXPECT_FALSE(rig.waits(5)) << "its thread finds out what is there now";
  EXPECT_EQ(rig.fetcher.outstanding(), 0U);
  EXPECT_FALSE(rig.target.gone);
}

TEST(Fetcher, AProgramThatHasEndedIsGone) {
  FetcherRig rig;
  rig.begin_fetch(5);
  rig.space.end_program();
  rig.answer();
  EXPECT_TRUE(rig.target.gone);
  EXPECT_EQ(rig.state(5), PageState::kEmpty);
  EXPECT_EQ(rig.budget.used(), 0U);
  EXPECT_EQ(rig.fetcher.outstanding(), 0U);
}

TEST(Fetcher, WhileAnEventIsUnreadTheFetchKeepsThePage) {
  FetcherRig rig;
  rig.begin_fetch(5);
  rig.space.unmap(pages_of(900));
  rig.answer();
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
  rig.begin_fetch(5);
  // The installation has woken all threads. Before the worker goes on, the program drops the page,
  // touches it, and another worker reads that.
  rig.space.after(FakeAddressSpace::Call::kInstall, [&](uffd::PageRun) {
    rig.space.drop_silently(pages_of(5));
    EXPECT_FALSE(rig.space.touch_read(5, 99));
    rig.space.read_all();
    EXPECT_TRUE(rig.table.mark_awaited(PageIndex{5}, rig.table.load(PageIndex{5})));
  });
  rig.answer();
  EXPECT_EQ(rig.state(5), PageState::kClean);
  EXPECT_EQ(rig.log.count("wake 5"), 1U);
  EXPECT_EQ(rig.space.unread(), 1U) << "it has faulted again";
}

TEST(Fetcher, APageThatComesBackSoonIsPassedOverByEvictionAtFirst) {
  FetcherRig rig;
  rig.make_remote(pages_of(0, 2));
  const auto left_at = [&](uint64_t page, uint8_t epoch) {
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
  rig.answer();
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
  EXPECT_EQ(rig.fetcher.outstanding(), 1U) << "the READ still uses its landing page";
  rig.answer();
  EXPECT_EQ(rig.fetcher.outstanding(), 0U);
  EXPECT_EQ(rig.log.count("install"), 0U);
  EXPECT_EQ(rig.state(0), PageState::kFetching);
}

}  // namespace
}  // namespace farpage::pager
