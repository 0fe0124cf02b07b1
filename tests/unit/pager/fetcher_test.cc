// READs, replicas, retries.
#include <gtest/gtest.h>

#include "fetcher_rig.h"

namespace farpage::pager {
namespace {

using rdma::CompletionStatus;
using uffd::FaultKind;
using Lines = std::vector<std::string>;

TEST(Fetcher, PageOfAReadFaultIsInstalledProtectedAndClean) {
  FetcherRig rig;
  rig.begin_fetch(5);
  EXPECT_EQ(rig.log.take(), Lines{"READ n0 5"});
  EXPECT_FALSE(rig.fetcher.progress()) << "the node has not answered";
  EXPECT_TRUE(rig.waits(5));
  rig.answer();
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
  rig.answer();
  EXPECT_EQ(rig.log.count("install 5 writable"), 1U);
  EXPECT_EQ(rig.state(5), PageState::kDirty);
  EXPECT_EQ(rig.space.word(5), FetcherRig::kWritten);
}

// Most pages that are fetched for a read are written.
class FetcherThatExpectsWrites : public FetcherRig {
 public:
  FetcherThatExpectsWrites() {
    for (int i = 0; i < 300; ++i) {
      (void)target.write_guess.protect_next();
      target.write_guess.written();
    }
    make_remote(pages_of(0, 40));
    node().answer_all(rdma::CompletionStatus::kOk);
  }
  int writable_of_twenty(uint64_t first) {
    for (uint64_t page = first; page < first + 20; ++page) fault(page);
    fetcher.post_queued();
    EXPECT_TRUE(becomes_true([&] { return !fetcher.progress(); }));
    EXPECT_EQ(fetcher.outstanding(), 0U);
    int writable = 0;
    for (uint64_t page = first; page < first + 20; ++page)
      writable += state(page) == PageState::kDirty ? 1 : 0;
    return writable;
  }
};

TEST(Fetcher, AfterAForkAPageIsProtectedWhateverTheGuess) {
  FetcherThatExpectsWrites rig;
  EXPECT_GE(rig.writable_of_twenty(0), 19);
  const auto child = ProcessImage::copy_of(*rig.image, [](PageIndex, PageWord w) { return w; });
  EXPECT_EQ(rig.writable_of_twenty(20), 0);
}

TEST(Fetcher, WhereTouchesAreRecordedAPageIsProtectedWhateverTheGuess) {
  FetcherThatExpectsWrites rig;
  EXPECT_GE(rig.writable_of_twenty(0), 19);
  rig.target.recorder = std::make_shared<TouchRecorder>();
  EXPECT_EQ(rig.writable_of_twenty(20), 0) << "the trace would lack their writes";
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

TEST(Fetcher, HasAsManyFetchesAsItSaysAndUsesThemAgain) {
  FetcherRig rig;
  rig.make_remote(pages_of(0, Fetcher::kFetches + 1));
  for (uint64_t page = 0; page < Fetcher::kFetches; ++page) {
    EXPECT_TRUE(rig.fetcher.has_room());
    rig.fault(page);
  }
  EXPECT_FALSE(rig.fetcher.has_room());
  rig.fetcher.post_queued();
  rig.node().answer(CompletionStatus::kOk, 7);
  EXPECT_TRUE(rig.fetcher.progress());
  EXPECT_TRUE(rig.fetcher.has_room());
  rig.fault(Fetcher::kFetches);
  rig.fetcher.post_queued();
  for (size_t i = 0; i < Fetcher::kFetches; ++i) rig.node().answer();
  while (rig.fetcher.progress()) {
  }
  EXPECT_EQ(rig.fetcher.outstanding(), 0U);
  for (uint64_t page = 0; page <= Fetcher::kFetches; ++page)
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
  rig.begin_fetch(5);
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
  rig.begin_fetch(5);
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
  rig.answer();
  EXPECT_FALSE(rig.waits(5));
}

}  // namespace
}  // namespace farpage::pager
