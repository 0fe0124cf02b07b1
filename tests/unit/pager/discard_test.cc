#include "pager/fault/discard.h"

#include <gtest/gtest.h>

#include "target_rig.h"

namespace farpage::pager {
namespace {

// Calls discard_pages() with kWait on a thread of its own.
class Discarder {
 public:
  Discarder(TargetRig& rig, uffd::PageRun run)
      : thread_([this, &rig, run] {
          all_ = discard_pages(rig.target, run, BusyPages::kWait);
          returned_ = true;
        }) {}
  bool returned() const { return returned_; }
  bool all() {
    thread_.join();
    return all_;
  }

 private:
  std::atomic<bool> returned_{false};
  bool all_ = false;
  std::jthread thread_;
};

TEST(Discard, EveryPageThatNoThreadOwnsIsEmptyAtOnce) {
  TargetRig rig;
  rig.make_remote(pages_of(1));
  rig.make_clean(pages_of(2));
  rig.make_dirty(pages_of(3));
  rig.make_dirty(pages_of(4));
  rig.move(4, PageState::kEvicting, PageWord::kWasDirty);
  rig.make_fetching(5);
  rig.move(5, PageState::kLost);
  rig.budget.give_back(1);
  EXPECT_EQ(rig.budget.used(), 3U);
  EXPECT_TRUE(discard_pages(rig.target, pages_of(0, 7), BusyPages::kSkip));
  for (uint64_t page = 0; page < 7; ++page) EXPECT_EQ(rig.state(page), PageState::kEmpty) << page;
  EXPECT_EQ(rig.budget.used(), 0U);
  EXPECT_EQ(rig.table.away_pages(), 0U);
  EXPECT_TRUE(check_invariants(rig.table));
}

TEST(Discard, OnlyPagesOfTheRun) {
  TargetRig rig;
  rig.make_dirty(pages_of(0, 10));
  EXPECT_TRUE(discard_pages(rig.target, pages_of(3, 4), BusyPages::kSkip));
  EXPECT_EQ(rig.state(2), PageState::kDirty);
  EXPECT_EQ(rig.state(3), PageState::kEmpty);
  EXPECT_EQ(rig.state(6), PageState::kEmpty);
  EXPECT_EQ(rig.state(7), PageState::kDirty);
  EXPECT_EQ(rig.budget.used(), 6U);
}

TEST(Discard, SkipsWhatAThreadOwnsAndSaysSo) {
  const std::vector<PageState> owned{PageState::kFetching, PageState::kUnprotecting,
                                     PageState::kDropping};
  for (const PageState state : owned) {
    TargetRig rig;
    rig.make_dirty(pages_of(0, 3));
    if (state == PageState::kDropping) rig.move(1, PageState::kEvicting);
    rig.move(1, state);
    EXPECT_FALSE(discard_pages(rig.target, pages_of(0, 3), BusyPages::kSkip));
    EXPECT_EQ(rig.state(0), PageState::kEmpty);
    EXPECT_EQ(rig.state(1), state);
    EXPECT_EQ(rig.state(2), PageState::kEmpty) << "also behind it";
    EXPECT_EQ(rig.budget.used(), 1U);
  }
}

TEST(Discard, WaitsForTheOwnerOfAPage) {
  struct Case {
    PageState owned;
    PageState afterwards;
  };
  for (const Case& c : {Case{PageState::kFetching, PageState::kClean},
                        {PageState::kFetching, PageState::kRemote},
                        {PageState::kUnprotecting, PageState::kDirty},
                        {PageState::kDropping, PageState::kRemote}}) {
    TargetRig rig;
    rig.make_dirty(pages_of(0, 3));
    if (c.owned == PageState::kDropping) rig.move(1, PageState::kEvicting);
    rig.move(1, c.owned);
    Discarder discarder(rig, pages_of(0, 3));
    // It has come to the page, and waits.
    ASSERT_TRUE(becomes_true([&] { return rig.state(0) == PageState::kEmpty; }));
    for (int i = 0; i < 100; ++i) std::this_thread::yield();
    EXPECT_FALSE(discarder.returned());
    EXPECT_EQ(rig.state(2), PageState::kDirty);
    rig.move(1, c.afterwards);
    if (!is_resident(c.afterwards)) rig.budget.give_back(1);
    EXPECT_TRUE(discarder.all());
    for (uint64_t page = 0; page < 3; ++page) EXPECT_EQ(rig.state(page), PageState::kEmpty);
    EXPECT_EQ(rig.budget.used(), 0U);
  }
}

TEST(Discard, DoesNotWaitForATargetThatIsBeingRemoved) {
  TargetRig rig;
  rig.make_dirty(pages_of(0, 2));
  rig.move(1, PageState::kUnprotecting);
  Discarder discarder(rig, pages_of(0, 2));
  ASSERT_TRUE(becomes_true([&] { return rig.state(0) == PageState::kEmpty; }));
  rig.target.closing = true;
  EXPECT_FALSE(discarder.all());
  EXPECT_EQ(rig.state(1), PageState::kUnprotecting);
}

TEST(Discard, PagesThatChangeMeanwhileAreEmptyInTheEnd) {
  TargetRig rig;
  for (int round = 0; round < 200; ++round) {
    rig.make_clean(pages_of(0, 8));
    std::atomic<bool> begun{false};
    // As a worker that answers writes.
    std::jthread worker([&] {
      begun = true;
      for (uint64_t page = 0; page < 8; ++page) {
        const PageWord word = rig.table.load(PageIndex{page});
        const PageWord held = word.to(PageState::kUnprotecting);
        if (word.state() == PageState::kClean && rig.table.transition(PageIndex{page}, word, held))
          rig.table.transition_owned(PageIndex{page}, held, held.to(PageState::kDirty));
      }
    });
    while (!begun) std::this_thread::yield();
    EXPECT_TRUE(discard_pages(rig.target, pages_of(0, 8), BusyPages::kWait));
    for (uint64_t page = 0; page < 8; ++page) ASSERT_EQ(rig.state(page), PageState::kEmpty);
    worker.join();
    ASSERT_EQ(rig.budget.used(), 0U);
  }
}

}  // namespace
}  // namespace farpage::pager
