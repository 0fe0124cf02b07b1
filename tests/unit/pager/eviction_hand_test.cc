#include "pager/evict/eviction_hand.h"

#include <gtest/gtest.h>

#include <vector>

namespace farpage::pager {
namespace {

constexpr uint8_t kInstalled = 100;
constexpr uint8_t kNow = kInstalled + kMinimumAge;

class EvictionHandTest : public testing::Test {
 protected:
  static PageTable make_table() {
    Result<PageTable> table = PageTable::create(3 * kPagesPerBlock + 7);
    EXPECT_TRUE(table.has_value());
    return std::move(*table);
  }
  void place(uint64_t page, uint32_t references = 0, uint8_t epoch = kInstalled) {
    table_.place(PageIndex{page},
                 PageWord(PageState::kClean).with_epoch(epoch).with_references(references));
  }
  // The pages that the hand selects until its round ends.
  std::vector<uint64_t> round() {
    std::vector<uint64_t> taken;
    do {
      while (const auto due = hand_.next_in_block(kNow)) {
        hand_.took();
        taken.push_back(due->page.value);
        EXPECT_TRUE(table_.transition(due->page, due->word, due->word.to(PageState::kEvicting)));
      }
    } while (hand_.next_block());
    return taken;
  }

  PageTable table_ = make_table();
  EvictionHand hand_{table_};
};

using Pages = std::vector<uint64_t>;
constexpr uint64_t kLast = 3 * kPagesPerBlock + 6;

TEST_F(EvictionHandTest, TakesResidentPagesInTheOrderOfTheirAddresses) {
  for (const uint64_t page : {kLast, uint64_t{600}, uint64_t{0}}) place(page);
  table_.place(PageIndex{5}, PageWord(PageState::kRemote).with_epoch(kInstalled));
  EXPECT_EQ(round(), (Pages{0, 600, kLast}));
  EXPECT_EQ(round(), Pages{});
}

TEST_F(EvictionHandTest, PassesYoungPagesOverUntilNothingElseIsLeft) {
  place(1, 0, kNow);
  place(2);
  EXPECT_EQ(round(), Pages{2});
  EXPECT_EQ(round(), Pages{1});
}

TEST_F(EvictionHandTest, SpendsAPassEachTimeItComesBy) {
  place(1, 2);
  for (const uint64_t page : {10, 20, 30}) {
    place(page);
    EXPECT_EQ(round(), page < 30 ? Pages{page} : (Pages{1, 30}));
  }
}

TEST_F(EvictionHandTest, SparesNobodyWhereEverybodyHasPasses) {
  for (const uint64_t page : {1, 2, 3}) place(page, 15);
  EXPECT_EQ(round(), (Pages{1, 2, 3}));
  // Pages placed later are spared again.
  place(4, 1);
  place(5);
  EXPECT_EQ(round(), Pages{5});
}

// Many rounds that yield one page each would be too expensive.
TEST_F(EvictionHandTest, SparesNobodyAfterARoundThatBroughtNextToNothing) {
  place(0);
  for (uint64_t page = 1; page <= 70; ++page) place(page, 15);
  EXPECT_EQ(round(), Pages{0});
  EXPECT_EQ(round().size(), 70U);
}

TEST_F(EvictionHandTest, GoesOnInTheMiddleOfABlock) {
  for (const uint64_t page : {1, 2, 3}) place(page);
  for (const uint64_t page : {1, 2, 3}) {
    const auto due = hand_.next_in_block(kNow);
    ASSERT_TRUE(due);
    EXPECT_EQ(due->page.value, page);
  }
  EXPECT_FALSE(hand_.next_in_block(kNow));
}

TEST_F(EvictionHandTest, StepsOverBlocksWithoutResidentPages) {
  place(1);
  place(kLast);
  table_.place(PageIndex{600}, PageWord(PageState::kRemote).with_epoch(kInstalled));
  EXPECT_TRUE(hand_.next_in_block(kNow));
  EXPECT_FALSE(hand_.next_in_block(kNow));
  ASSERT_TRUE(hand_.next_block());
  const auto due = hand_.next_in_block(kNow);
  ASSERT_TRUE(due);
  EXPECT_EQ(due->page.value, kLast);
}

TEST(ComeBack, SoonEarnsPassesAndLateDoesNot) {
  const PageWord left = stamped(PageWord(PageState::kRemote).with_references(3), 250);
  EXPECT_EQ(left.references(), 0U);
  const auto at = [&](uint8_t now) { return came_back(left.to(PageState::kClean), now); };
  EXPECT_EQ(at(250).references(), kReferencesOfReturn);
  EXPECT_EQ(at(static_cast<uint8_t>(250 + kSoonEpochs - 1)).references(), kReferencesOfReturn);
  EXPECT_EQ(at(static_cast<uint8_t>(250 + kSoonEpochs)).references(), 0U);
  EXPECT_EQ(at(3).epoch(), 3);
}

TEST(ComeBack, PageInUseHasAPassAtLeast) {
  const PageWord word(PageState::kDirty);
  EXPECT_EQ(in_use(word).references(), 1U);
  EXPECT_EQ(in_use(word.with_references(5)).references(), 5U);
}

TEST(Epoch, SixteenPassWhileABudgetIsInstalled) {
  const uint64_t step = age_step(16'000);
  EXPECT_EQ(epoch_of(0), 0);
  EXPECT_EQ(epoch_of(16'002 * step), kEpochsOfBudget);
  EXPECT_EQ(epoch_of(256 * 1001 * step), 0);
}

}  // namespace
}  // namespace farpage::pager
