// Phases 3 to 5: written to the replicas, acknowledged, dropped.
#include <gtest/gtest.h>

#include <thread>

#include "batch_rig.h"

namespace farpage::pager {
namespace {

using Call = FakeAddressSpace::Call;
using rdma::CompletionStatus;
using Turn = EvictionBatch::Turn;
using Lines = std::vector<std::string>;

// ---- 3: post ----

TEST(EvictionBatch, AWriteHasAtMostSixtyFourPagesOfOneSlab) {
  BatchRig rig;
  ASSERT_TRUE(rig.lease_slab_of(600));
  rig.make_dirty(pages_of(480, 100));
  ASSERT_TRUE(rig.begin());
  EXPECT_EQ(rig.log.of("WRITE"), (Lines{"WRITE n0 480+32", "WRITE n0 512+32", "WRITE n0 544+36"}));
  rig.let_nodes_answer();
  for (int i = 0; i < 3; ++i) rig.node().answer();
  ASSERT_TRUE(rig.batch.finish());
  EXPECT_EQ(rig.batch.freed(), 100U);
  for (uint64_t page = 480; page < 580; ++page)
    ASSERT_EQ(rig.node().word(page), TargetRig::word_of(page));
}

TEST(EvictionBatch, WhatTheChannelDoesNotAcceptIsPostedLater) {
  BatchRig rig;
  rig.narrow_channel(2);
  for (uint64_t page = 0; page < 10; page += 2) rig.make_dirty(pages_of(page));
  ASSERT_TRUE(rig.begin());
  EXPECT_EQ(rig.node().waiting(), 2U);
  for (int i = 0; i < 5; ++i) {
    rig.node().answer();
    (void)rig.batch.advance();
    (void)rig.batch.advance();
  }
  EXPECT_FALSE(rig.batch.active());
  EXPECT_EQ(rig.batch.freed(), 5U);
}

TEST(EvictionBatch, AReplicaThatIsBeingFilledIsWrittenToo) {
  BatchRig rig({.nodes = 2});
  rig.replica(0, 1).state = ReplicaState::kFilling;
  rig.make_dirty(pages_of(10));
  ASSERT_TRUE(rig.begin());
  rig.node(0).answer();
  EXPECT_EQ(rig.batch.advance(), Turn::kMoved);
  EXPECT_EQ(rig.batch.advance(), Turn::kWaiting);
  rig.node(1).answer();
  EXPECT_EQ(rig.batch.advance(), Turn::kEnded);
  EXPECT_EQ(rig.state(10), PageState::kRemote);
}

TEST(EvictionBatch, AReplicaThatIsBeingFilledIsNotEnoughToDropAPage) {
  BatchRig rig({.nodes = 2});
  rig.let_nodes_answer();
  rig.replica(0, 0).state = ReplicaState::kFilling;
  rig.replica(0, 1).state = ReplicaState::kLost;
  rig.make_dirty(pages_of(10));
  rig.make_clean(pages_of(12));
  ASSERT_TRUE(rig.evict());
  EXPECT_EQ(rig.state(10), PageState::kDirty);
  EXPECT_EQ(rig.state(12), PageState::kDirty) << "nobody can read its copy any more";
  EXPECT_EQ(rig.log.count("drop"), 0U);
}

TEST(EvictionBatch, WithoutAnyReplicaAPageStaysDirty) {
  BatchRig rig;
  rig.replica(0, 0).state = ReplicaState::kLost;
  rig.make_dirty(pages_of(10));
  ASSERT_TRUE(rig.evict());
  EXPECT_EQ(rig.state(10), PageState::kDirty);
  EXPECT_EQ(rig.log.count("WRITE"), 0U);
  EXPECT_TRUE(rig.batch.stuck());
}

// ---- 4: complete ----

TEST(EvictionBatch, AFailedWriteIsPostedAgainInSmallerParts) {
  BatchRig rig;
  rig.make_dirty(pages_of(0, 8));
  ASSERT_TRUE(rig.begin());
  EXPECT_EQ(rig.log.of("WRITE"), Lines{"WRITE n0 0+8"});
  (void)rig.log.take();
  rig.node().answer(CompletionStatus::kTimedOut);
  (void)rig.batch.advance();
  (void)rig.batch.advance();
  EXPECT_EQ(rig.log.of("WRITE"), Lines{"WRITE n0 0+4"}) << "and less is in flight";
  rig.node().answer();
  (void)rig.batch.advance();
  (void)rig.batch.advance();
  EXPECT_EQ(rig.log.of("WRITE").back(), "WRITE n0 4+4");
  EXPECT_EQ(rig.log.count("drop"), 0U);
  rig.node().answer();
  ASSERT_TRUE(rig.batch.finish());
  EXPECT_EQ(rig.batch.freed(), 8U);
  EXPECT_EQ(rig.evicted().write_failures.get(), 1U);
  for (uint64_t page = 0; page < 8; ++page)
    EXPECT_EQ(rig.node().word(page), TargetRig::word_of(page));
}

TEST(EvictionBatch, OverABrokenChannelNothingIsAcknowledgedAndTheNewOneGetsItAgain) {
  BatchRig rig;
  rig.make_dirty(pages_of(0));
  ASSERT_TRUE(rig.begin());
  rig.node().break_channels();
  (void)rig.batch.advance();
  EXPECT_EQ(rig.batch.advance(), Turn::kWaiting);
  EXPECT_TRUE(rig.port->wants(NodeIndex{0}));
  rig.connect(*rig.port, 0);
  EXPECT_EQ(rig.batch.advance(), Turn::kMoved);
  ASSERT_EQ(rig.node().waiting(), 1U);
  rig.node().answer();
  ASSERT_TRUE(rig.batch.finish());
  EXPECT_EQ(rig.state(0), PageState::kRemote);
}

TEST(EvictionBatch, AReplicaThatRefusesTheWriteIsLostAndThePageGoesToTheOther) {
  BatchRig rig({.nodes = 2});
  rig.make_dirty(pages_of(10));
  ASSERT_TRUE(rig.begin());
  rig.node(0).answer(CompletionStatus::kRemoteAccess);
  EXPECT_EQ(rig.batch.advance(), Turn::kMoved);
  EXPECT_EQ(rig.replica(10, 0).state, ReplicaState::kLost);
  EXPECT_EQ(rig.batch.advance(), Turn::kWaiting) << "the other one has not acknowledged";
  rig.node(1).answer();
  EXPECT_EQ(rig.batch.advance(), Turn::kEnded);
  EXPECT_EQ(rig.state(10), PageState::kRemote);
  EXPECT_EQ(rig.target.replicas_lost, 1U);
}

TEST(EvictionBatch, WhereTheOnlyReplicaRefusesThePageStaysDirty) {
  BatchRig rig;
  rig.make_dirty(pages_of(10));
  ASSERT_TRUE(rig.begin());
  rig.node().answer(CompletionStatus::kRemoteAccess);
  ASSERT_TRUE(rig.batch.finish());
  EXPECT_EQ(rig.state(10), PageState::kDirty);
  EXPECT_EQ(rig.space.word(10), TargetRig::word_of(10));
  EXPECT_EQ(rig.budget.used(), 1U);
  EXPECT_EQ(rig.batch.freed(), 0U);
  EXPECT_TRUE(rig.batch.stuck());
}

TEST(EvictionBatch, AReplicaIsGivenUpOnceItIsOutOfReachAndTheOtherHasAcknowledged) {
  BatchRig rig({.nodes = 2});
  rig.make_dirty(pages_of(10));
  rig.node(1).break_channels();
  ASSERT_TRUE(rig.begin());
  rig.let_patience_end(1);
  (void)rig.batch.advance();
  EXPECT_TRUE(rig.replica(10, 1).is_written()) << "nobody else has the page";
  rig.node(0).answer();
  ASSERT_TRUE(rig.batch.finish());
  EXPECT_EQ(rig.replica(10, 1).state, ReplicaState::kLost);
  EXPECT_EQ(rig.state(10), PageState::kRemote);
}

TEST(EvictionBatch, TimeInWhichItDidNotRunDoesNotCountAgainstANode) {
  BatchRig rig({.nodes = 2});
  rig.let_nodes_answer();
  rig.make_dirty(pages_of(10));
  rig.node(1).break_channels();
  ASSERT_TRUE(rig.begin());
  std::this_thread::sleep_for(LoopGap::kLongestTurn + Milliseconds(200));  // as if it was stopped
  (void)rig.batch.advance();
  (void)rig.batch.advance();
  EXPECT_TRUE(rig.replica(10, 1).is_written());
  rig.connect(*rig.port, 1);
  ASSERT_TRUE(rig.batch.finish());
  EXPECT_EQ(rig.state(10), PageState::kRemote);
  EXPECT_EQ(rig.node(1).word(10), TargetRig::word_of(10));
}

TEST(EvictionBatch, ANodeThatNoPortCanReachIsGivenUpWithoutWaitingForEachSlab) {
  BatchRig rig({.nodes = 2});
  rig.make_dirty(pages_of(10));
  rig.node(1).break_channels();
  rig.node(0).answer_all(CompletionStatus::kOk);
  rig.engine.peers[NodeIndex{1}].unreachable_since_ns = (SteadyClock::read() - Seconds(2)).count();
  ASSERT_TRUE(rig.evict());
  EXPECT_EQ(rig.replica(10, 1).state, ReplicaState::kLost);
  EXPECT_EQ(rig.state(10), PageState::kRemote);
}

TEST(EvictionBatch, WhileAWriteIsInFlightItsReplicaIsNotGivenUp) {
  BatchRig rig({.nodes = 2});
  rig.make_dirty(pages_of(10));
  ASSERT_TRUE(rig.begin());
  rig.node(0).answer();
  rig.let_patience_end(1);
  (void)rig.batch.advance();
  EXPECT_EQ(rig.batch.advance(), Turn::kWaiting);
  EXPECT_TRUE(rig.replica(10, 1).is_written());
  rig.node(1).answer();
  ASSERT_TRUE(rig.batch.finish());
  EXPECT_EQ(rig.state(10), PageState::kRemote);
}

TEST(EvictionBatch, WhenNoReplicaAcknowledgesInTimeThePagesStayDirty) {
  BatchRig rig({.nodes = 2, .fault_deadline = Milliseconds(0)});
  rig.make_dirty(pages_of(10));
  rig.node(0).break_channels();
  rig.node(1).break_channels();
  ASSERT_TRUE(rig.evict());
  EXPECT_EQ(rig.state(10), PageState::kDirty);
  EXPECT_TRUE(rig.replica(10, 0).is_written());
  EXPECT_TRUE(rig.replica(10, 1).is_written());
  EXPECT_TRUE(rig.batch.stuck());
}

TEST(EvictionBatch, WhenItIsTooLateWhatIsAcknowledgedIsDropped) {
  BatchRig rig({.fault_deadline = Milliseconds(0)});
  rig.narrow_channel(1);
  rig.make_dirty(pages_of(10));
  rig.make_dirty(pages_of(12));
  ASSERT_TRUE(rig.begin());
  ASSERT_EQ(rig.node().waiting(), 1U);
  EXPECT_EQ(rig.batch.advance(), Turn::kWaiting) << "the WRITE uses the buffer";
  rig.node().answer();
  EXPECT_EQ(rig.batch.advance(), Turn::kEnded);
  EXPECT_EQ(rig.state(10), PageState::kRemote);
  EXPECT_EQ(rig.state(12), PageState::kDirty);
}

TEST(EvictionBatch, AColdPageThatWasTooLateIsTakenAgainAsLongAsOthersLeave) {
  BatchRig rig({.budget_pages = 100, .fault_deadline = Milliseconds(0)});
  rig.narrow_channel(1);
  rig.make_dirty(pages_of(10));
  rig.make_dirty(pages_of(12));
  rig.target.cold.push(pages_of(10, 3));
  ASSERT_TRUE(rig.begin());
  rig.node().answer();
  ASSERT_EQ(rig.batch.advance(), Turn::kEnded);
  EXPECT_EQ(rig.state(10), PageState::kRemote);
  EXPECT_EQ(rig.state(12), PageState::kDirty);
  ASSERT_FALSE(rig.target.cold.empty());
  ASSERT_TRUE(rig.begin());
  rig.node().answer();
  ASSERT_EQ(rig.batch.advance(), Turn::kEnded);
  EXPECT_EQ(rig.state(12), PageState::kRemote);
  EXPECT_TRUE(rig.target.cold.empty());
}

TEST(EvictionBatch, AColdPageIsNotTakenAgainWhereNoneLeaves) {
  BatchRig rig({.budget_pages = 100, .fault_deadline = Milliseconds(0)});
  rig.node().break_channels();
  rig.make_dirty(pages_of(10));
  rig.target.cold.push(pages_of(10));
  ASSERT_TRUE(rig.evict());
  EXPECT_EQ(rig.state(10), PageState::kDirty);
  EXPECT_TRUE(rig.target.cold.empty());
}

// ---- a write, a discard during the eviction ----

TEST(EvictionBatch, AWriteCancelsTheEvictionOfItsPage) {
  BatchRig rig;
  rig.make_dirty(pages_of(10, 3));
  ASSERT_TRUE(rig.begin());
  EXPECT_FALSE(rig.space.touch_write(11, 4711)) << "the page is protected";
  // What a worker does with that fault.
  rig.move(11, PageState::kUnprotecting);
  EXPECT_EQ(rig.space.unprotect(pages_of(11)), uffd::Outcome::kDone);
  rig.move(11, PageState::kDirty);
  rig.node().answer();
  ASSERT_TRUE(rig.batch.finish());
  EXPECT_EQ(rig.log.of("drop"), (Lines{"drop 10", "drop 12"}));
  EXPECT_EQ(rig.state(11), PageState::kDirty);
  EXPECT_EQ(rig.space.word(11), 4711U);
  EXPECT_EQ(rig.budget.used(), 1U);
  EXPECT_EQ(rig.evicted().pages_cancelled.get(), 1U);
  EXPECT_EQ(rig.batch.freed(), 2U);
  EXPECT_FALSE(rig.batch.stuck());
}

TEST(EvictionBatch, AWriteBeforeTheProtectionIsPartOfTheCopy) {
  BatchRig rig;
  rig.let_nodes_answer();
  rig.make_dirty(pages_of(10));
  rig.space.before(Call::kProtect,
                   [&](uffd::PageRun) { EXPECT_TRUE(rig.space.touch_write(10, 4711)); });
  ASSERT_TRUE(rig.evict());
  EXPECT_EQ(rig.node().word(10), 4711U);
}

TEST(EvictionBatch, ADiscardedPageIsNeitherDroppedNorCountedTwice) {
  BatchRig rig;
  rig.make_dirty(pages_of(10, 2));
  ASSERT_TRUE(rig.begin());
  const PageWord evicting = rig.table.load(PageIndex{10});
  ASSERT_TRUE(rig.table.transition(PageIndex{10}, evicting, PageWord(PageState::kEmpty)));
  rig.budget.give_back(1);
  rig.node().answer();
  ASSERT_TRUE(rig.batch.finish());
  EXPECT_EQ(rig.log.of("drop"), Lines{"drop 11"});
  EXPECT_EQ(rig.state(10), PageState::kEmpty);
  EXPECT_EQ(rig.budget.used(), 0U);
}

TEST(EvictionBatch, IsNotStuckWhereTheProgramHasTakenEverythingBack) {
  BatchRig rig;
  rig.make_dirty(pages_of(10));
  ASSERT_TRUE(rig.begin());
  rig.move(10, PageState::kUnprotecting);
  rig.move(10, PageState::kDirty);
  rig.node().answer();
  ASSERT_TRUE(rig.batch.finish());
  EXPECT_EQ(rig.batch.freed(), 0U);
  EXPECT_FALSE(rig.batch.stuck());
}

// ---- 5: drop ----

TEST(EvictionBatch, APageWhoseDropIsRefusedStaysCleanOrDirtyIfItWasZero) {
  BatchRig rig;
  rig.let_nodes_answer();
  rig.make_dirty(pages_of(10));
  rig.make_zero(pages_of(20));
  rig.make_dirty(pages_of(30));
  rig.space.refuse_drop_of(10, EINVAL);
  rig.space.refuse_drop_of(20, EINVAL);
  ASSERT_TRUE(rig.evict());
  EXPECT_EQ(rig.state(10), PageState::kClean);
  EXPECT_TRUE(rig.space.is_protected(10)) << "its next write must be seen";
  EXPECT_EQ(rig.state(20), PageState::kDirty) << "no node has its zeros";
  EXPECT_EQ(rig.state(30), PageState::kRemote);
  EXPECT_EQ(rig.budget.used(), 2U);
  EXPECT_EQ(rig.batch.freed(), 1U);
}

TEST(EvictionBatch, ASlowDropGoesOnWhileThePortIsFree) {
  BatchRig rig;
  ASSERT_TRUE(rig.begin_slow_drop(10));
  EXPECT_TRUE(rig.batch.active());
  EXPECT_EQ(rig.state(10), PageState::kDropping);
  EXPECT_EQ(rig.budget.used(), 1U);
  EXPECT_FALSE(rig.batch.await_drop(Nanoseconds(0)));
  EXPECT_EQ(rig.batch.advance(), Turn::kWaiting);
  rig.space.do_drop();
  EXPECT_TRUE(rig.batch.await_drop(Nanoseconds(0)));
  EXPECT_FALSE(rig.batch.active());
  EXPECT_EQ(rig.state(10), PageState::kRemote);
  EXPECT_EQ(rig.budget.used(), 0U);
  EXPECT_EQ(rig.batch.freed(), 1U);
}

TEST(EvictionBatch, AnotherBatchMayRunWhileOneIsDropping) {
  BatchRig rig;
  rig.let_nodes_answer();
  TargetRig other({.budget_pages = 1});
  other.node().answer_all(CompletionStatus::kOk);
  rig.make_dirty(pages_of(10));
  rig.space.drop_later();
  ASSERT_TRUE(rig.begin());
  EXPECT_FALSE(rig.batch.finish());
  EvictionBatch second(rig.engine, *rig.port);
  rig.make_dirty(pages_of(20));
  EXPECT_FALSE(rig.batch.is_of(other.target));
  EXPECT_TRUE(rig.batch.is_of(rig.target));
  rig.space.do_drop();
  EXPECT_TRUE(rig.batch.await_drop(Nanoseconds(0)));
  ASSERT_TRUE(second.begin(rig.target, EvictionBatch::kLarge, Nanoseconds(0)));
  EXPECT_FALSE(second.finish());
  rig.space.do_drop();
  EXPECT_TRUE(second.await_drop(Nanoseconds(0)));
  EXPECT_EQ(rig.state(20), PageState::kRemote);
}

TEST(EvictionBatch, OfAProgramThatHasEndedThePagesStayWhereTheyAre) {
  BatchRig rig;
  rig.let_nodes_answer();
  rig.make_dirty(pages_of(10));
  rig.space.before(Call::kDrop, [&](uffd::PageRun) { rig.space.end_program(); });
  ASSERT_TRUE(rig.evict());
  EXPECT_TRUE(rig.target.gone);
  EXPECT_EQ(rig.state(10), PageState::kClean);
  EXPECT_EQ(rig.budget.used(), 1U);
}

TEST(EvictionBatch, OfATargetThatIsBeingRemovedNoDropIsAwaited) {
  BatchRig rig;
  ASSERT_TRUE(rig.begin_slow_drop(10));
  rig.target.closing = true;
  EXPECT_TRUE(rig.batch.await_drop(Nanoseconds(0)));
  EXPECT_FALSE(rig.batch.active());
  EXPECT_FALSE(rig.target.gone) << "it may only be stopped";
}

TEST(EvictionBatch, OfATargetThatIsBeingRemovedNothingMoreIsPosted) {
  BatchRig rig;
  rig.node().break_channels();
  rig.make_dirty(pages_of(10));
  ASSERT_TRUE(rig.begin());
  rig.target.closing = true;
  ASSERT_TRUE(rig.batch.finish()) << "though no node can be reached";
  EXPECT_EQ(rig.state(10), PageState::kDirty);
}

TEST(EvictionBatch, WhereMessagesWaitForADropPagesLeaveInParts) {
  BatchRig rig;
  rig.target.order = rig.space.let_events_tell();
  rig.let_nodes_answer();
  rig.make_dirty(pages_of(10, 40));
  ASSERT_TRUE(rig.evict());
  EXPECT_EQ(rig.log.of("drop"), (Lines{"drop 10+16", "drop 26+16", "drop 42+8"}));
  EXPECT_EQ(rig.log.count("prepare"), 3U);
  EXPECT_EQ(rig.log.count("free"), 1U);
  EXPECT_EQ(rig.batch.freed(), 40U);
  EXPECT_EQ(rig.budget.used(), 0U);
  for (uint64_t page = 10; page < 50; ++page) ASSERT_EQ(rig.state(page), PageState::kRemote);
}

TEST(EvictionBatch, APartHasFewSpans) {
  BatchRig rig;
  rig.target.order = rig.space.let_events_tell();
  for (uint64_t page = 0; page < 20; page += 2) rig.make_clean(pages_of(page));
  ASSERT_TRUE(rig.evict());
  EXPECT_EQ(rig.log.count("drop"), 10U);
  EXPECT_EQ(rig.log.count("prepare"), 2U);
  EXPECT_EQ(rig.batch.freed(), 10U);
}

// Again where this thread had to wait for a CPU: then the mappings seem busy, and all is one part.
TEST(EvictionBatch, WhereTheAgentStandsAfterAPartTheRestStays) {
  for (int attempt = 0; attempt < 20; ++attempt) {
    BatchRig rig;
    rig.target.order = rig.space.let_events_tell();
    rig.let_nodes_answer();
    rig.make_dirty(pages_of(10, 20));
    rig.make_clean(pages_of(40, 2));
    rig.space.after(Call::kDrop, [&](uffd::PageRun) { rig.space.let_agent_stand(true); });
    ASSERT_TRUE(rig.evict());
    if (rig.batch.freed() == 22) continue;
    EXPECT_EQ(rig.batch.freed(), 16U);
    EXPECT_EQ(rig.state(25), PageState::kRemote);
    EXPECT_EQ(rig.state(26), PageState::kDirty);
    EXPECT_EQ(rig.state(40), PageState::kClean);
    EXPECT_EQ(rig.log.count("free"), 1U);
    return;
  }
  FAIL() << "all was one part, each time";
}

TEST(EvictionBatch, DoesNotBeginWhileTheAgentStands) {
  BatchRig rig;
  rig.let_nodes_answer();
  rig.make_dirty(pages_of(10));
  rig.space.let_agent_stand(true);
  EXPECT_FALSE(rig.begin());
  EXPECT_EQ(rig.state(10), PageState::kDirty);
  EXPECT_EQ(rig.log.count("read"), 0U);
  rig.space.let_agent_stand(false);
  ASSERT_TRUE(rig.evict());
  EXPECT_EQ(rig.state(10), PageState::kRemote);
}

TEST(EvictionBatch, NeighboursAreWokenInOneCall) {
  BatchRig rig;
  for (const uint64_t page : {0, 2, 300}) rig.make_clean(pages_of(page));
  ASSERT_TRUE(rig.lease_slab_of(1600));
  rig.make_clean(pages_of(1600));
  ASSERT_TRUE(rig.evict());
  EXPECT_EQ(rig.log.of("wake"), (Lines{"wake 0+301", "wake 1600"}));
}

// ---- pages shared by a fork ----

TEST(EvictionBatch, ADirtyPageIsWrittenWhereNoOtherProcessReads) {
  BatchRig rig;
  rig.let_nodes_answer();
  rig.make_clean(pages_of(10));
  const auto child = ProcessImage::copy_of(*rig.image, [](PageIndex, PageWord w) { return w; });
  rig.move(10, PageState::kUnprotecting);
  rig.move(10, PageState::kDirty);
  // The other backing region gets no slab yet: the page waits for it.
  rig.client.set_slab_limit(0);
  EXPECT_FALSE(rig.begin());
  EXPECT_EQ(rig.state(10), PageState::kDirty);
  rig.client.set_slab_limit(UINT32_MAX);
  ASSERT_TRUE(becomes_true([&] { return rig.begin(); }));
  ASSERT_TRUE(rig.batch.finish());
  EXPECT_EQ(rig.state(10), PageState::kRemote);
  EXPECT_EQ(rig.table.load(PageIndex{10}).backing_region(), BackingId{1});
}

}  // namespace
}  // namespace farpage::pager
