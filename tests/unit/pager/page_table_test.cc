#include "pager/pages/page_table.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>
#include <vector>

namespace farpage::pager {
namespace {

PageTable make_table(uint64_t pages) {
  Result<PageTable> table = PageTable::create(pages);
  EXPECT_TRUE(table.has_value());
  return std::move(*table);
}

TEST(PageTable, EveryPageStartsEmptyWithEpochZero) {
  const PageTable table = make_table(1000);
  for (uint64_t page = 0; page < 1000; ++page)
    ASSERT_EQ(table.load(PageIndex{page}), PageWord(PageState::kEmpty));
  EXPECT_TRUE(check_invariants(table).has_value());
}

TEST(PageTable, OnlyOneOfTwoThreadsTakesAPage) {
  PageTable table = make_table(4096);
  std::atomic<int> taken{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (uint64_t page = 0; page < 4096; ++page)
        if (table.transition(PageIndex{page}, PageWord(PageState::kEmpty),
                             PageWord(PageState::kFetching)))
          ++taken;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taken, 4096);
  EXPECT_TRUE(check_invariants(table).has_value());
}

TEST(PageTable, CountsFollowARandomWalkOverEveryLegalEdge) {
  constexpr uint64_t kSeed = 42;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937_64 random(kSeed);
  PageTable table = make_table(1500);
  for (int step = 0; step < 50'000; ++step) {
    const PageIndex page{random() % 1500};
    const PageWord from = table.load(page);
    const auto to = static_cast<PageState>(random() % 9);
    if (!is_legal_transition(from.state(), to)) continue;
    const bool from_remote = from.state() == PageState::kRemote && to == PageState::kFetching;
    ASSERT_TRUE(table.transition(page, from, from.to(to, from_remote ? PageWord::kFromRemote : 0)));
    if (step % 1000 == 0) {
      const Status status = check_invariants(table);
      ASSERT_TRUE(status.has_value()) << status.error().message();
    }
  }
  EXPECT_TRUE(check_invariants(table).has_value());
}

TEST(PageTable, FetchedPageIsAwayUntilItIsInstalled) {
  PageTable table = make_table(8);
  const PageIndex page{3};
  PageWord word;
  const auto go = [&](PageState state, uint32_t flags = 0) {
    const PageWord next = word.to(state, flags);
    table.transition_owned(page, word, next);
    word = next;
  };
  go(PageState::kFetching);
  go(PageState::kDirty);
  EXPECT_EQ(table.away_pages(), 0U);
  go(PageState::kEvicting, PageWord::kWasDirty);
  EXPECT_EQ(table.away_pages(), 0U);
  go(PageState::kDropping);
  EXPECT_EQ(table.away_pages(), 1U);
  go(PageState::kRemote);
  EXPECT_EQ(table.resident_in_block(0), 0U);
  go(PageState::kFetching, PageWord::kFromRemote);
  EXPECT_EQ(table.away_pages(), 1U);
  EXPECT_EQ(table.resident_in_block(0), 1U);
  go(PageState::kClean);
  EXPECT_EQ(table.away_pages(), 0U);
}

TEST(PageTable, ASharedPageCountsUntilItIsWrittenOrLeaves) {
  PageTable table = make_table(4);
  for (uint64_t page = 0; page < 3; ++page)
    table.place(PageIndex{page}, PageWord(page == 0 ? PageState::kClean : PageState::kDirty));
  for (uint64_t page = 0; page < 3; ++page) {
    const PageWord word = table.load(PageIndex{page});
    EXPECT_TRUE(table.mark_shared(PageIndex{page}, word));
    EXPECT_FALSE(table.mark_shared(PageIndex{page}, word)) << "it is at another word now";
    EXPECT_EQ(table.load(PageIndex{page}).state(), word.state());
  }
  EXPECT_EQ(table.shared_pages(), 3U);
  const auto move = [&](uint64_t page, PageState state, uint32_t flags = 0) {
    const PageWord word = table.load(PageIndex{page});
    ASSERT_TRUE(table.transition(PageIndex{page}, word, word.to(state, flags)));
  };
  move(0, PageState::kUnprotecting);  // it is written
  EXPECT_EQ(table.shared_pages(), 2U);
  move(1, PageState::kEvicting, shared_flag(table.load(PageIndex{1})));
  EXPECT_EQ(table.shared_pages(), 2U);
  move(1, PageState::kDropping, shared_flag(table.load(PageIndex{1})));
  move(1, PageState::kRemote);
  EXPECT_EQ(table.shared_pages(), 1U);
  EXPECT_TRUE(check_invariants(table).has_value());
  // Absent: the same bit has another meaning.
  EXPECT_FALSE(is_shared(PageWord(PageState::kRemote, PageWord::kMaybePresent)));
}

TEST(PageTableDeathTest, IllegalTransitionIsABug) {
  PageTable table = make_table(8);
  EXPECT_DEATH((void)table.transition(PageIndex{1}, PageWord(PageState::kEmpty),
                                      PageWord(PageState::kClean)),
               "Empty to Clean");
}

TEST(PageTableDeathTest, OwnedPageThatMovedIsABug) {
  PageTable table = make_table(8);
  EXPECT_DEATH(table.transition_owned(PageIndex{1}, PageWord(PageState::kFetching),
                                      PageWord(PageState::kClean)),
               "its owner left it");
}

TEST(PageTable, PassesChangeOnlyWhileThePageIsAsItWas) {
  PageTable table = make_table(8);
  const PageWord clean = PageWord(PageState::kClean).with_epoch(7);
  table.place(PageIndex{1}, clean);
  EXPECT_TRUE(table.set_age(PageIndex{1}, clean, 9, 8));
  EXPECT_EQ(table.load(PageIndex{1}), clean.with_epoch(9).with_references(8));
  EXPECT_FALSE(table.set_age(PageIndex{1}, clean, 7, 3));
  EXPECT_TRUE(check_invariants(table).has_value());
}

TEST(PageWord, LayerEpochAndPassesDoNotTouchOneAnother) {
  const PageWord word = PageWord(PageState::kDirty)
                            .with_references(15)
                            .with_backing(BackingId{kMaxBackingRegions - 1})
                            .with_epoch(255);
  EXPECT_EQ(word.references(), 15U);
  EXPECT_EQ(word.backing_region().value, kMaxBackingRegions - 1);
  EXPECT_EQ(word.epoch(), 255);
  EXPECT_EQ(word.with_references(0).backing_region().value, kMaxBackingRegions - 1);
  EXPECT_EQ(word.to(PageState::kClean).references(), 15U);
}

TEST(PageWord, ChangingStateKeepsTheEpochAndDropsFlags) {
  const PageWord word =
      PageWord(PageState::kEvicting, PageWord::kWasDirty).with_epoch(200).to(PageState::kDirty);
  EXPECT_EQ(word.epoch(), 200);
  EXPECT_EQ(word.state(), PageState::kDirty);
  EXPECT_FALSE(word.has(PageWord::kWasDirty));
}

}  // namespace
}  // namespace farpage::pager
