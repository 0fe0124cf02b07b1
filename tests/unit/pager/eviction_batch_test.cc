// Phases 0 to 2: picked, protected, copied out.
#include <gtest/gtest.h>

#include <map>

#include "batch_rig.h"

namespace farpage::pager {
namespace {

using Call = FakeAddressSpace::Call;
using Turn = EvictionBatch::Turn;
using Lines = std::vector<std::string>;

TEST(EvictionBatch, GoesThroughItsPhasesInOrder) {
  BatchRig rig({.nodes = 2});
  rig.make_dirty(pages_of(10, 3));
  ASSERT_TRUE(rig.begin());
  EXPECT_EQ(rig.log.take(), (Lines{"protect 10+3", "read 10+3", "WRITE n0 10+3", "WRITE n1 10+3"}));
  EXPECT_EQ(rig.state(10), PageState::kEvicting);
  EXPECT_EQ(rig.batch.advance(), Turn::kWaiting);
  EXPECT_EQ(rig.log.take(), Lines{});
  rig.node(1).answer();
  EXPECT_EQ(rig.batch.advance(), Turn::kMoved);
  EXPECT_EQ(rig.batch.advance(), Turn::kWaiting) << "one replica is no reason to drop the pages";
  EXPECT_EQ(rig.log.take(), Lines{});
  EXPECT_TRUE(rig.space.is_present(10));
  rig.node(0).answer();
  EXPECT_EQ(rig.batch.advance(), Turn::kEnded);
  EXPECT_EQ(rig.log.take(), (Lines{"prepare", "drop 10+3", "wake 10+3", "free"}));
  for (uint64_t page = 10; page < 13; ++page) {
    EXPECT_EQ(rig.state(page), PageState::kRemote);
    EXPECT_FALSE(rig.space.is_present(page));
    EXPECT_EQ(rig.node(0).word(page), TargetRig::word_of(page));
    EXPECT_EQ(rig.node(1).word(page), TargetRig::word_of(page));
  }
  EXPECT_EQ(rig.budget.used(), 0U);
  EXPECT_EQ(rig.batch.freed(), 3U);
  EXPECT_EQ(rig.evicted().pages_written.get(), 3U);
  EXPECT_FALSE(rig.batch.active());
}

TEST(EvictionBatch, APageIsDroppingDuringTheDropAndRemoteBeforeItsThreadsAreWoken) {
  BatchRig rig;
  rig.let_nodes_answer();
  rig.make_dirty(pages_of(10));
  std::vector<PageState> states;
  rig.space.before(Call::kDrop, [&](uffd::PageRun) { states.push_back(rig.state(10)); });
  rig.space.after(Call::kDrop, [&](uffd::PageRun) {
    states.push_back(rig.state(10));
    EXPECT_FALSE(rig.space.touch_read(10));
    rig.space.read_all();  // a worker finds Dropping, and does nothing
  });
  rig.space.before(Call::kWake, [&](uffd::PageRun) { states.push_back(rig.state(10)); });
  ASSERT_TRUE(rig.evict());
  EXPECT_EQ(states, (std::vector<PageState>{PageState::kDropping, PageState::kDropping,
                                            PageState::kRemote}));
  EXPECT_EQ(rig.space.unread(), 1U) << "it has faulted again";
}

// ---- 0: pick ----

TEST(EvictionBatch, TakesNothingWhereThereIsRoom) {
  BatchRig rig({.budget_pages = 100});
  rig.make_dirty(pages_of(0, 94));
  EXPECT_FALSE(rig.begin());
  EXPECT_FALSE(rig.batch.active());
  rig.make_dirty(pages_of(94));
  EXPECT_TRUE(rig.begin());
}

TEST(EvictionBatch, TakesNoMoreThanItsSize) {
  BatchRig rig;
  rig.let_nodes_answer();
  rig.make_dirty(pages_of(0, 40));
  ASSERT_TRUE(rig.begin({.pages = 16, .spans = 16, .step_spans = 0}));
  ASSERT_TRUE(rig.batch.finish());
  EXPECT_EQ(rig.batch.freed(), 16U);
  EXPECT_EQ(rig.state(15), PageState::kRemote);
  EXPECT_EQ(rig.state(16), PageState::kDirty);
  for (uint64_t page = 100; page < 140; page += 2) rig.make_dirty(pages_of(page));
  ASSERT_TRUE(rig.begin({.pages = 100, .spans = 3, .step_spans = 0}));
  ASSERT_TRUE(rig.batch.finish());
  EXPECT_EQ(rig.batch.freed(), 26U) << "the span 16 to 39, and the first pages of two more";
}

// Batches of a target, and what the choice of their orders is to be told of them.
class OrdersRig : public BatchRig {
 public:
  OrdersRig() {
    make_clean(pages_of(0, 100));
    make_of_age(pages_of(200, 100), 1);
  }
  // Of four pages. There are victims for each order.
  EvictionOrder evict_four() {
    const EvictionOrder order = expected.next(kNow);
    expected.left(order, 4, kNow);
    EXPECT_TRUE(begin({.pages = 4, .spans = 4, .step_spans = 0}));
    EXPECT_TRUE(batch.finish());
    return order;
  }
  // Every other page that has left is back, in the same epoch.
  uint32_t return_half() {
    uint32_t back = 0;
    for (uint64_t page = 0; page < 300; page += 2) {
      const PageWord word = table.load(PageIndex{page});
      if (word.state() != PageState::kRemote) continue;
      target.age_clock = uint64_t{kNow} << 32;
      (void)target.note_return(word);
      expected.returned(order_of(word), 0);
      ++back;
    }
    return back;
  }

  OrderChoice expected;
};

TEST(EvictionBatch, WhatLeavesSaysByWhichOrderAndWhen) {
  OrdersRig rig;
  std::map<EvictionOrder, uint32_t> expected, left;
  for (int batch = 0; batch < 6; ++batch) expected[rig.evict_four()] += 4;
  for (uint64_t page = 0; page < 300; ++page) {
    const PageWord word = rig.table.load(PageIndex{page});
    if (word.state() != PageState::kRemote) continue;
    ++left[order_of(word)];
    EXPECT_EQ(word.epoch(), TargetRig::kNow);
  }
  EXPECT_EQ(expected.size(), 3U);
  EXPECT_EQ(left, expected);
}

TEST(EvictionBatch, WhatLeavesAndComesBackIsKnownToTheChoiceOfTheOrder) {
  OrdersRig rig;
  for (int batch = 0; batch < 6; ++batch) (void)rig.evict_four();
  EXPECT_EQ(rig.return_half(), 12U);
  rig.target.age_clock = uint64_t{TargetRig::kNow + 1} << 32;
  ASSERT_TRUE(rig.evict());
  (void)rig.expected.next(TargetRig::kNow + 1);
  const OrderChoice& choice = rig.target.eviction.choice;
  for (const EvictionOrder order :
       {EvictionOrder::kOldest, EvictionOrder::kAny, EvictionOrder::kYoungest}) {
    EXPECT_EQ(choice.record_of(order), rig.expected.record_of(order));
    EXPECT_LT(choice.record_of(order), 100) << "some came back";
  }
}

TEST(EvictionBatch, WhereNothingIsLeftOfARoundItTakesTheNextOne) {
  BatchRig rig;
  rig.let_nodes_answer();
  // The first batches try other orders.
  while (rig.target.eviction.choice.next(TargetRig::kNow) != EvictionOrder::kOldest) {
  }
  rig.make_clean(pages_of(0, 8));  // old
  rig.make_of_age(pages_of(8, 8), 0);
  const EvictionBatch::Size eight{.pages = 8, .spans = 8, .step_spans = 0};
  ASSERT_TRUE(rig.begin(eight));
  ASSERT_TRUE(rig.batch.finish());
  EXPECT_EQ(rig.state(7), PageState::kRemote);
  EXPECT_EQ(rig.state(8), PageState::kClean);
  ASSERT_TRUE(rig.begin(eight));
  ASSERT_TRUE(rig.batch.finish());
  EXPECT_EQ(rig.state(15), PageState::kRemote);
}

TEST(EvictionBatch, PinnedPagesStay) {
  BatchRig rig;
  rig.let_nodes_answer();
  rig.make_dirty(pages_of(0, 5));
  ASSERT_TRUE(rig.pins.pin(pages_of(1, 2)));
  ASSERT_TRUE(rig.evict());
  EXPECT_EQ(rig.state(0), PageState::kRemote);
  EXPECT_EQ(rig.state(1), PageState::kDirty);
  EXPECT_EQ(rig.state(2), PageState::kDirty);
  EXPECT_EQ(rig.state(3), PageState::kRemote);
}

TEST(EvictionBatch, PagesThatAThreadOwnsStay) {
  BatchRig rig;
  rig.make_fetching(0);
  rig.make_dirty(pages_of(1));
  rig.move(1, PageState::kUnprotecting);
  EXPECT_FALSE(rig.begin());
  EXPECT_EQ(rig.state(0), PageState::kFetching);
  EXPECT_EQ(rig.state(1), PageState::kUnprotecting);
}

TEST(EvictionBatch, APageWithoutASlabStaysAndTheSlabIsAskedFor) {
  BatchRig rig;
  rig.client.set_slab_limit(1);
  rig.make_dirty(pages_of(TargetRig::kSlabPages));
  EXPECT_FALSE(rig.begin());
  EXPECT_EQ(rig.state(TargetRig::kSlabPages), PageState::kDirty);
  EXPECT_EQ(rig.target.leases_of(PageWord()).wanted(10), std::vector<SlabIndex>{{1}});
}

TEST(EvictionBatch, ColdPagesGoFirstAndAlsoWhereThereIsRoom) {
  BatchRig rig({.budget_pages = 100});
  rig.let_nodes_answer();
  rig.make_dirty(pages_of(0, 10));
  rig.target.cold.push(pages_of(4, 2));
  ASSERT_TRUE(rig.evict());
  EXPECT_EQ(rig.log.of("drop"), Lines{"drop 4+2"});
  EXPECT_FALSE(rig.begin());
}

TEST(EvictionBatch, AColdPageWithoutASlabIsColdAgainOnceTheSlabIsLeased) {
  BatchRig rig({.budget_pages = 100});
  rig.let_nodes_answer();
  const uint64_t page = TargetRig::kSlabPages;
  rig.make_dirty(pages_of(page));
  rig.target.cold.push(pages_of(page));
  rig.client.set_slab_limit(1);
  EXPECT_FALSE(rig.begin());
  EXPECT_TRUE(rig.target.cold.empty());
  rig.client.set_slab_limit(UINT32_MAX);
  ASSERT_TRUE(rig.lease_slab_of(page));
  ASSERT_TRUE(becomes_true([&] { return !rig.target.cold.empty(); }));
  ASSERT_TRUE(rig.evict());
  EXPECT_EQ(rig.state(page), PageState::kRemote);
}

// ---- 1: protect ----

TEST(EvictionBatch, ABlockIsProtectedInOneCallFromItsFirstToItsLastDirtyVictim) {
  BatchRig rig;
  ASSERT_TRUE(rig.lease_slab_of(600));
  for (const uint64_t page : {3, 9, 20, 520, 530}) rig.make_dirty(pages_of(page));
  rig.make_clean(pages_of(25));
  rig.make_clean(pages_of(510));
  ASSERT_TRUE(rig.begin());
  EXPECT_EQ(rig.log.of("protect"), (Lines{"protect 3+18", "protect 520+11"}));
}

TEST(EvictionBatch, AFurtherCallBeginsBehindADirtyPageThatIsInUse) {
  BatchRig rig;
  ASSERT_TRUE(rig.lease_slab_of(600));
  for (const uint64_t page : {3, 6, 9, 15, 20}) rig.make_dirty(pages_of(page));
  rig.make_clean(pages_of(12));
  for (const uint64_t page : {6, 12}) {  // a clean one is protected anyway
    const PageWord word = rig.table.load(PageIndex{page});
    ASSERT_TRUE(rig.table.set_age(PageIndex{page}, word, word.epoch(), 3));
  }
  ASSERT_TRUE(rig.begin());
  EXPECT_EQ(rig.log.of("protect"), (Lines{"protect 3", "protect 9+12"}));
  EXPECT_EQ(rig.state(6), PageState::kDirty);
  EXPECT_FALSE(rig.space.is_protected(6));
}

TEST(EvictionBatch, AcrossMappingsItProtectsItsVictimsPageByPage) {
  BatchRig rig;
  rig.let_nodes_answer();
  for (const uint64_t page : {3, 5, 9}) rig.make_dirty(pages_of(page));
  rig.space.unmap(pages_of(7));
  rig.space.read_all();
  ASSERT_TRUE(rig.evict());
  EXPECT_EQ(rig.log.of("protect"), (Lines{"protect 3+7", "protect 3", "protect 5", "protect 9"}));
  EXPECT_EQ(rig.batch.freed(), 3U);
}

TEST(EvictionBatch, APageWhoseMemoryIsGoneIsEmptyAndItsRoomIsReturned) {
  BatchRig rig;
  rig.let_nodes_answer();
  rig.make_dirty(pages_of(3, 3));
  rig.space.unmap(pages_of(4));
  rig.space.read_all();
  ASSERT_TRUE(rig.evict());
  EXPECT_EQ(rig.state(4), PageState::kEmpty);
  EXPECT_EQ(rig.state(3), PageState::kRemote);
  EXPECT_EQ(rig.state(5), PageState::kRemote);
  EXPECT_EQ(rig.budget.used(), 0U);
  EXPECT_EQ(rig.batch.freed(), 3U);
  EXPECT_EQ(rig.log.of("WRITE"), (Lines{"WRITE n0 3", "WRITE n0 5"}));
}

TEST(EvictionBatch, WhileAnEventIsUnreadItProtectsAgain) {
  BatchRig rig;
  rig.make_dirty(pages_of(3));
  rig.space.unmap(pages_of(900));
  int calls = 0;
  rig.space.after(Call::kProtect, [&](uffd::PageRun) {
    if (++calls == 3) rig.space.read_all();  // a worker has
  });
  ASSERT_TRUE(rig.begin());
  EXPECT_EQ(calls, 4);
  EXPECT_TRUE(rig.space.is_protected(3));
  EXPECT_EQ(rig.node().waiting(), 1U);
}

// ---- 2: copy out ----

TEST(EvictionBatch, PagesOfZerosAreNotSentAndEmptyAfterwards) {
  BatchRig rig;
  rig.make_dirty(pages_of(10));
  rig.make_zero(pages_of(11, 2));
  rig.make_dirty(pages_of(13));
  ASSERT_TRUE(rig.begin());
  EXPECT_EQ(rig.log.of("WRITE"), (Lines{"WRITE n0 10", "WRITE n0 13"}));
  rig.node().answer();
  rig.node().answer();
  ASSERT_TRUE(rig.batch.finish());
  EXPECT_EQ(rig.state(10), PageState::kRemote);
  EXPECT_EQ(rig.state(11), PageState::kEmpty);
  EXPECT_EQ(rig.state(12), PageState::kEmpty);
  EXPECT_EQ(rig.log.of("drop"), Lines{"drop 10+4"});
  EXPECT_EQ(rig.evicted().pages_zero.get(), 2U);
  EXPECT_EQ(rig.node().word(13), TargetRig::word_of(13));
}

TEST(EvictionBatch, CleanPagesAreDroppedWithoutAnythingElse) {
  BatchRig rig;
  rig.make_clean(pages_of(10, 3));
  ASSERT_TRUE(rig.evict());
  EXPECT_EQ(rig.log.take(), (Lines{"prepare", "drop 10+3", "wake 10+3", "free"}));
  EXPECT_EQ(rig.state(10), PageState::kRemote);
  EXPECT_EQ(rig.evicted().pages_clean.get(), 3U);
}

TEST(EvictionBatch, APageThatCannotBeReadStaysDirty) {
  BatchRig rig;
  rig.let_nodes_answer();
  rig.make_dirty(pages_of(10, 3));
  rig.space.close_page(11);
  ASSERT_TRUE(rig.evict());
  EXPECT_EQ(rig.state(10), PageState::kRemote);
  EXPECT_EQ(rig.state(11), PageState::kDirty);
  EXPECT_EQ(rig.state(12), PageState::kRemote);
  EXPECT_EQ(rig.space.word(11), TargetRig::word_of(11));
  EXPECT_EQ(rig.budget.used(), 1U);
}

TEST(EvictionBatch, APageThatWasDroppedPastTheShimGetsZerosAndGoesNextTime) {
  BatchRig rig;
  rig.let_nodes_answer();
  rig.make_dirty(pages_of(10, 3));
  rig.space.drop_silently(pages_of(11));
  ASSERT_TRUE(rig.evict());
  EXPECT_EQ(rig.state(11), PageState::kDirty);
  EXPECT_TRUE(rig.space.is_present(11));
  EXPECT_EQ(rig.batch.freed(), 2U);
  ASSERT_TRUE(rig.evict());
  EXPECT_EQ(rig.state(11), PageState::kEmpty);
  EXPECT_EQ(rig.node().word(11), 0U);
}

}  // namespace
}  // namespace farpage::pager
