#include "pager/fault/prefetcher.h"

#include <gtest/gtest.h>

#include "target_rig.h"

namespace farpage::pager {
namespace {

using rdma::CompletionStatus;
using Lines = std::vector<std::string>;

class PrefetcherRig : public TargetRig {
 public:
  explicit PrefetcherRig(const TargetRigOptions& options = {}) : TargetRig(options) {}

  void start(uint64_t first, uint32_t pages, int64_t stride = 1, uint32_t gap = UINT32_MAX) {
    prefetcher.start(target,
                     {.first = PageIndex{first}, .stride = stride, .pages = pages, .gap = gap});
  }
  std::vector<uint64_t> fetching() const { return all_in(PageState::kFetching); }
  std::vector<uint64_t> all_in(PageState state) const {
    std::vector<uint64_t> found;
    for (uint64_t page = 0; page < table.pages(); ++page)
      if (table.load(PageIndex{page}).state() == state) found.push_back(page);
    return found;
  }
  // A thread touches a page that is being fetched, and a worker reads that.
  void touch_while_fetching(uint64_t page) {
    EXPECT_FALSE(space.touch_read(page));
    space.read_all();
    EXPECT_TRUE(table.mark_awaited(PageIndex{page}, table.load(PageIndex{page})));
  }

  std::unique_ptr<LinkPort> port = make_port(Prefetcher::kBufferBytes);
  Prefetcher prefetcher{*port, 0};
};

std::vector<uint64_t> pages_from(uint64_t first, uint64_t count) {
  std::vector<uint64_t> pages;
  for (uint64_t i = 0; i < count; ++i) pages.push_back(first + i);
  return pages;
}

TEST(Prefetcher, NeighboursShareAReadAndAnInstallation) {
  PrefetcherRig rig;
  rig.make_remote(pages_of(0, 100));
  rig.start(10, 20);
  EXPECT_EQ(rig.log.take(), (Lines{"READ n0 10+16", "READ n0 26+4"}));
  EXPECT_EQ(rig.node().posts(), 1U);
  EXPECT_EQ(rig.fetching(), pages_from(10, 20));
  EXPECT_EQ(rig.budget.used(), 20U);
  EXPECT_EQ(rig.prefetcher.outstanding(), 2U);
  EXPECT_TRUE(rig.target.is_held());
  EXPECT_FALSE(rig.prefetcher.progress());
  rig.node().answer(CompletionStatus::kOk, 1);
  EXPECT_TRUE(rig.prefetcher.progress());
  EXPECT_EQ(rig.log.take(), Lines{"install 26+4 protected"});
  rig.node().answer();
  EXPECT_TRUE(rig.prefetcher.progress());
  EXPECT_EQ(rig.all_in(PageState::kClean), pages_from(10, 20));
  for (uint64_t page = 10; page < 30; ++page) {
    EXPECT_EQ(rig.space.word(page), TargetRig::word_of(page));
    EXPECT_TRUE(rig.space.is_protected(page));
  }
  EXPECT_EQ(rig.prefetcher.outstanding(), 0U);
  EXPECT_FALSE(rig.target.is_held());
  EXPECT_EQ(rig.budget.used(), 20U);
  EXPECT_EQ(rig.counts().prefetch_pages.get(), 20U);
}

TEST(Prefetcher, PagesOfAStrideAreReadOneByOne) {
  PrefetcherRig rig;
  rig.make_remote(pages_of(0, 100));
  rig.start(10, 3, /*stride=*/7);
  EXPECT_EQ(rig.log.take(), (Lines{"READ n0 10", "READ n0 17", "READ n0 24"}));
  rig.start(90, 3, /*stride=*/-2);
  EXPECT_EQ(rig.log.take(), (Lines{"READ n0 90", "READ n0 88", "READ n0 86"}));
}

TEST(Prefetcher, NeighboursBelowShareAReadToo) {
  PrefetcherRig rig;
  rig.make_remote(pages_of(0, 100));
  for (uint64_t page = 0; page < 100; ++page)  // no word is that of another page
    rig.table.place(PageIndex{page},
                    PageWord(PageState::kRemote).with_epoch(static_cast<uint8_t>(page)));
  rig.start(60, 41, /*stride=*/-1, /*gap=*/20);
  EXPECT_EQ(rig.log.take(),
            (Lines{"READ n0 45+16", "READ n0 41+4", "READ n0 24+16", "READ n0 20+4"}));
  for (int run = 0; run < 4; ++run) rig.node().answer();
  EXPECT_TRUE(rig.prefetcher.progress());
  EXPECT_EQ(rig.log.of("install").size(), 4U);
  for (uint64_t page = 20; page <= 60; ++page) {
    if (page == 40) continue;
    EXPECT_EQ(rig.state(page), PageState::kClean);
    EXPECT_EQ(rig.space.word(page), TargetRig::word_of(page));
  }
  EXPECT_EQ(rig.state(40), PageState::kRemote);
}

TEST(Prefetcher, DownwardsAReadEndsAtAPageThatIsHereAtItsSlabAndAtTheWindow) {
  PrefetcherRig rig;
  ASSERT_TRUE(rig.lease_slab_of(600));
  rig.make_remote(pages_of(500, 20));
  rig.start(515, 10, /*stride=*/-1);
  EXPECT_EQ(rig.log.take(), (Lines{"READ n0 512+4", "READ n0 506+6"}));
  rig.make_remote(pages_of(0, 5));
  rig.make_clean(pages_of(5));
  rig.make_remote(pages_of(6, 3));
  rig.start(8, 12, /*stride=*/-1);
  EXPECT_EQ(rig.log.take(), (Lines{"READ n0 6+3", "READ n0 0+5"}));
}

TEST(Prefetcher, WherePagesAreWrittenARunComesInWritable) {
  PrefetcherRig rig;
  (void)rig.target.write_guess.protect_next(64);
  for (int page = 0; page < 64; ++page) rig.target.note_first_write();
  rig.make_remote(pages_of(0, 100));
  rig.start(10, 4);
  rig.node().answer();
  EXPECT_TRUE(rig.prefetcher.progress());
  EXPECT_EQ(rig.log.of("install"), Lines{"install 10+4 writable"});
  EXPECT_EQ(rig.all_in(PageState::kDirty), pages_from(10, 4));
  EXPECT_FALSE(rig.space.is_protected(10));
}

TEST(Prefetcher, TheGapIsNotFetched) {
  PrefetcherRig rig;
  rig.make_remote(pages_of(0, 100));
  rig.start(10, 9, /*stride=*/1, /*gap=*/4);
  EXPECT_EQ(rig.log.take(), (Lines{"READ n0 10+4", "READ n0 15+4"}));
  EXPECT_EQ(rig.state(14), PageState::kRemote);
}

TEST(Prefetcher, OnlyRemotePagesAreFetched) {
  PrefetcherRig rig;
  rig.make_remote(pages_of(10, 2));
  rig.make_clean(pages_of(12));
  rig.make_remote(pages_of(13));
  // 14 was never used.
  rig.make_remote(pages_of(15));
  rig.make_fetching(16);
  rig.make_remote(pages_of(17), PageWord::kMaybePresent);
  rig.make_remote(pages_of(18));
  rig.start(10, 9);
  EXPECT_EQ(rig.log.of("READ"), (Lines{"READ n0 10+2", "READ n0 13", "READ n0 15", "READ n0 18"}));
  EXPECT_EQ(rig.state(12), PageState::kClean);
  EXPECT_EQ(rig.state(14), PageState::kEmpty);
  EXPECT_EQ(rig.state(17), PageState::kRemote);
}

TEST(Prefetcher, AReadEndsWithItsSlabAndThePlanWithTheWindow) {
  PrefetcherRig rig;
  ASSERT_TRUE(rig.lease_slab_of(600));
  ASSERT_TRUE(rig.lease_slab_of(2047));
  rig.make_remote(pages_of(500, 20));
  rig.make_remote(pages_of(2040, 8));
  rig.start(505, 10);
  EXPECT_EQ(rig.log.take(), (Lines{"READ n0 505+7", "READ n0 512+3"}));
  rig.start(2044, 10);
  EXPECT_EQ(rig.log.take(), Lines{"READ n0 2044+4"});
  EXPECT_EQ(rig.budget.used(), 14U);
}

TEST(Prefetcher, OfAClusterEachRowOfNeighboursIsOneRead) {
  PrefetcherRig rig;
  rig.make_remote(pages_of(40, 8));
  rig.prefetcher.start(rig.target, Cluster{PageIndex{40}, 0b1101'0111});
  EXPECT_EQ(rig.log.take(), (Lines{"READ n0 40+3", "READ n0 44", "READ n0 46+2"}));
  EXPECT_EQ(rig.node().posts(), 1U);
  for (int row = 0; row < 3; ++row) rig.node().answer();
  EXPECT_TRUE(rig.prefetcher.progress());
  EXPECT_EQ(rig.all_in(PageState::kClean), (std::vector<uint64_t>{40, 41, 42, 44, 46, 47}));
  EXPECT_EQ(rig.counts().clusters.get(), 1U);
  EXPECT_EQ(rig.counts().cluster_pages.get(), 6U);
  EXPECT_EQ(rig.counts().prefetch_pages.get(), 6U);
  rig.make_remote(pages_of(10, 2));
  rig.start(10, 2);
  rig.node().answer();
  EXPECT_TRUE(rig.prefetcher.progress());
  EXPECT_EQ(rig.counts().cluster_pages.get(), 6U) << "a stream is no cluster";
}

TEST(Prefetcher, AClusterTakesOnlyRoomThatFaultsDoNotNeed) {
  PrefetcherRig rig({.budget_pages = 100});
  rig.make_dirty(pages_of(1000, 97));
  rig.make_remote(pages_of(40, 8));
  rig.prefetcher.start(rig.target, Cluster{PageIndex{40}, 0b1111'1110});
  EXPECT_EQ(rig.budget.used(), 98U);
  EXPECT_EQ(rig.log.take(), Lines{"READ n0 41"});
  rig.prefetcher.start(rig.target, Cluster{PageIndex{40}, 0b1111'1100});
  rig.prefetcher.start(rig.target, Cluster{PageIndex{40}, 0b1111'1000});
  EXPECT_LE(rig.budget.used(), 100U);
}

TEST(Prefetcher, OfAClusterPagesThatAreBackAreLeftOut) {
  PrefetcherRig rig;
  rig.make_clean(pages_of(40));
  rig.make_remote(pages_of(41, 3));
  rig.prefetcher.start(rig.target, Cluster{PageIndex{40}, 0b0000'1111});
  EXPECT_EQ(rig.log.of("READ"), Lines{});
  rig.prefetcher.start(rig.target, Cluster{PageIndex{40}, 0b0000'1110});
  EXPECT_EQ(rig.log.of("READ"), Lines{"READ n0 41+3"});
  EXPECT_EQ(rig.budget.used(), 4U);
}

TEST(Prefetcher, TakesOnlyRoomThatFaultsDoNotNeed) {
  PrefetcherRig rig({.budget_pages = 100});
  rig.make_dirty(pages_of(1000, 90));
  rig.make_remote(pages_of(0, 100));
  rig.start(0, 32);
  EXPECT_EQ(rig.log.of("READ"), Lines{"READ n0 0+8"})
      << "half of the room above 97 % is for faults";
  EXPECT_EQ(rig.budget.used(), 98U);
  rig.start(50, 32);
  EXPECT_EQ(rig.log.of("READ").back(), "READ n0 50") << "half of what is left";
  EXPECT_EQ(rig.budget.used(), 99U);
  rig.start(60, 32);
  EXPECT_EQ(rig.log.of("READ").size(), 2U);
}

TEST(Prefetcher, AsManyReadsAtOnceAsItHasRuns) {
  PrefetcherRig rig;
  rig.make_remote(pages_of(0, 500));
  rig.start(0, 40, /*stride=*/3);
  EXPECT_EQ(rig.node().waiting(), Prefetcher::kRuns);
  rig.start(400, 10);
  EXPECT_EQ(rig.node().waiting(), Prefetcher::kRuns);
  EXPECT_EQ(rig.budget.used(), Prefetcher::kRuns);
  rig.node().answer();
  EXPECT_TRUE(rig.prefetcher.progress());
  rig.start(400, 10);
  EXPECT_EQ(rig.log.of("READ").back(), "READ n0 400+10");
}

TEST(Prefetcher, GroupsOfPagesAreSpreadOverTheReplicas) {
  PrefetcherRig rig({.nodes = 2});
  rig.make_remote(pages_of(0, 64));
  rig.start(0, 64);
  EXPECT_EQ(rig.log.of("READ n0"), (Lines{"READ n0 0+16", "READ n0 32+16"}));
  EXPECT_EQ(rig.log.of("READ n1"), (Lines{"READ n1 16+16", "READ n1 48+16"}));
}

TEST(Prefetcher, OnlyALiveReplicaWithAChannelIsRead) {
  PrefetcherRig rig({.nodes = 3});
  rig.make_remote(pages_of(0, 16));
  rig.replica(0, 0).state = ReplicaState::kFilling;
  rig.node(1).break_channels();
  rig.start(0, 16);
  EXPECT_EQ(rig.log.of("READ"), Lines{"READ n2 0+16"});
}

// ---- failures: the pages are remote again, and whoever waits for one faults again ----

void expect_given_up(PrefetcherRig& rig) {
  EXPECT_TRUE(rig.fetching().empty());
  EXPECT_EQ(rig.all_in(PageState::kRemote), pages_from(0, 100));
  EXPECT_EQ(rig.budget.used(), 0U);
  EXPECT_EQ(rig.prefetcher.outstanding(), 0U);
  EXPECT_FALSE(rig.target.is_held());
  EXPECT_EQ(rig.log.count("install"), 0U);
  EXPECT_EQ(rig.space.unread(), 1U) << "the thread that waited has faulted again";
}

TEST(Prefetcher, WhenAReadFailsItsPagesAreRemoteAgainAndWhoWaitedFaultsAgain) {
  for (const CompletionStatus status :
       {CompletionStatus::kTimedOut, CompletionStatus::kPeerGone, CompletionStatus::kLocalError,
        CompletionStatus::kFlushed, CompletionStatus::kRemoteAccess}) {
    SCOPED_TRACE(to_string(status));
    PrefetcherRig rig({.nodes = 2});
    rig.make_remote(pages_of(0, 100));
    rig.start(0, 8);
    rig.touch_while_fetching(3);
    rig.node(0).answer(status);
    EXPECT_TRUE(rig.prefetcher.progress());
    expect_given_up(rig);
    EXPECT_EQ(rig.node(1).waiting(), 0U) << "nobody waits for these pages: no second try";
    EXPECT_EQ(rig.counts().prefetch_failed_pages.get(), 8U);
    EXPECT_TRUE(rig.replica(0, 0).is_read()) << "what it is good for is left to the faults";
  }
}

TEST(Prefetcher, OneReadThatFailsDoesNotConcernTheOthers) {
  PrefetcherRig rig;
  rig.make_remote(pages_of(0, 100));
  rig.start(0, 32);
  rig.node().answer(CompletionStatus::kTimedOut);
  rig.node().answer();
  EXPECT_TRUE(rig.prefetcher.progress());
  EXPECT_EQ(rig.all_in(PageState::kClean), pages_from(16, 16));
  EXPECT_EQ(rig.state(0), PageState::kRemote);
  EXPECT_EQ(rig.budget.used(), 16U);
}

TEST(Prefetcher, WithoutAChannelNothingIsTaken) {
  PrefetcherRig rig;
  rig.make_remote(pages_of(0, 100));
  rig.node().break_channels();
  rig.start(0, 8);
  EXPECT_EQ(rig.all_in(PageState::kRemote), pages_from(0, 100));
  EXPECT_EQ(rig.budget.used(), 0U);
  EXPECT_EQ(rig.prefetcher.outstanding(), 0U);
  EXPECT_FALSE(rig.target.is_held());
}

TEST(Prefetcher, WhatAFullChannelDoesNotAcceptIsRemoteAgain) {
  PrefetcherRig rig;
  (void)rig.port->channel(NodeIndex{0});
  rig.node().break_channels();
  (void)rig.port->channel(NodeIndex{0});
  rig.connect(*rig.port, 0, {.operations_in_flight = 3, .operation_bytes = 1U << 20});
  rig.make_remote(pages_of(0, 100));
  rig.start(0, 2, /*stride=*/5);
  EXPECT_EQ(rig.node().waiting(), 2U);
  rig.start(50, 3, /*stride=*/5);
  EXPECT_EQ(rig.node().waiting(), 3U);
  EXPECT_EQ(rig.fetching(), (std::vector<uint64_t>{0, 5, 50}));
  EXPECT_EQ(rig.budget.used(), 3U);
  EXPECT_EQ(rig.prefetcher.outstanding(), 3U);
}

TEST(Prefetcher, ARunThatIsTooLongForTheChannelIsNotRead) {
  PrefetcherRig rig({.nodes = 2});
  (void)rig.port->channel(NodeIndex{0});
  rig.node(0).break_channels();
  (void)rig.port->channel(NodeIndex{0});
  rig.connect(*rig.port, 0, {.operations_in_flight = 9, .operation_bytes = 4 * kPageBytes});
  rig.make_remote(pages_of(0, 100));
  rig.start(0, 16);
  EXPECT_EQ(rig.log.of("READ"), Lines{"READ n1 0+16"});
}

// ---- what the kernel may answer to the installation ----

TEST(Prefetcher, WhatIsThereAlreadyIsKeptAndDirty) {
  PrefetcherRig rig;
  rig.make_remote(pages_of(0, 4));
  rig.start(0, 4);
  rig.space.put(2, 4711, uffd::Protection::kWritable);
  rig.node().answer();
  EXPECT_TRUE(rig.prefetcher.progress());
  EXPECT_EQ(rig.space.word(2), 4711U);
  // Which pages the first attempt has placed is not known: Dirty is always right.
  EXPECT_EQ(rig.all_in(PageState::kDirty), pages_from(0, 4));
  EXPECT_EQ(rig.space.word(3), TargetRig::word_of(3));
  EXPECT_EQ(rig.budget.used(), 4U);
}

TEST(Prefetcher, AcrossAHoleItInstallsPageByPage) {
  PrefetcherRig rig;
  rig.make_remote(pages_of(0, 4));
  rig.start(0, 4);
  rig.touch_while_fetching(2);
  rig.space.unmap(pages_of(2));
  rig.space.read_all();
  rig.node().answer();
  EXPECT_TRUE(rig.prefetcher.progress());
  EXPECT_EQ(rig.all_in(PageState::kClean), (std::vector<uint64_t>{0, 1, 3}));
  EXPECT_EQ(rig.state(2), PageState::kEmpty);
  EXPECT_FALSE(rig.space.sleeps()) << "its thread finds out what is there now";
  EXPECT_EQ(rig.budget.used(), 3U);
  EXPECT_EQ(rig.prefetcher.outstanding(), 0U);
}

TEST(Prefetcher, OfAProgramThatHasEndedNothingIsKept) {
  PrefetcherRig rig;
  rig.make_remote(pages_of(0, 4));
  rig.start(0, 4);
  rig.space.end_program();
  rig.node().answer();
  EXPECT_TRUE(rig.prefetcher.progress());
  EXPECT_EQ(rig.all_in(PageState::kEmpty).size(), rig.table.pages());
  EXPECT_EQ(rig.budget.used(), 0U);
  EXPECT_FALSE(rig.target.is_held());
}

TEST(Prefetcher, WhileAnEventIsUnreadTheRunKeepsItsPages) {
  PrefetcherRig rig;
  rig.make_remote(pages_of(0, 4));
  rig.start(0, 4);
  rig.space.unmap(pages_of(900));
  rig.node().answer();
  EXPECT_TRUE(rig.prefetcher.progress());
  EXPECT_EQ(rig.fetching(), pages_from(0, 4));
  rig.space.read_all();
  (void)rig.prefetcher.progress();
  EXPECT_EQ(rig.all_in(PageState::kClean), pages_from(0, 4));
}

TEST(Prefetcher, AnEventBetweenThePagesOfARunMakesTheRestRemoteAgain) {
  PrefetcherRig rig;
  rig.make_remote(pages_of(0, 4));
  rig.start(0, 4);
  rig.touch_while_fetching(3);
  rig.space.unmap(pages_of(1));
  rig.space.read_all();
  rig.space.after(FakeAddressSpace::Call::kInstall, [&](uffd::PageRun run) {
    if (run.first.value == 2) rig.space.unmap(pages_of(900));
  });
  rig.node().answer();
  EXPECT_TRUE(rig.prefetcher.progress());
  EXPECT_EQ(rig.state(0), PageState::kClean);
  EXPECT_EQ(rig.state(1), PageState::kEmpty);
  EXPECT_EQ(rig.state(2), PageState::kClean);
  EXPECT_EQ(rig.state(3), PageState::kRemote);
  EXPECT_EQ(rig.log.count("wake 3"), 2U) << "as a page that failed, and as one that was awaited";
  EXPECT_EQ(rig.budget.used(), 2U);
}

TEST(Prefetcher, LeavesATargetThatIsBeingRemoved) {
  PrefetcherRig rig;
  rig.make_remote(pages_of(0, 64));
  rig.start(0, 4);
  rig.prefetcher.leave_closing();
  EXPECT_TRUE(rig.target.is_held());
  rig.target.closing = true;
  rig.prefetcher.leave_closing();
  EXPECT_FALSE(rig.target.is_held());
  EXPECT_EQ(rig.prefetcher.outstanding(), 1U) << "the READ still uses its buffer";
  rig.node().answer();
  EXPECT_TRUE(rig.prefetcher.progress());
  EXPECT_EQ(rig.prefetcher.outstanding(), 0U);
  EXPECT_EQ(rig.log.count("install"), 0U);
}

}  // namespace
}  // namespace farpage::pager
