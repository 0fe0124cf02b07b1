#include "pager/evict/eviction_hand.h"

#include <gtest/gtest.h>

#include <vector>

namespace farpage::pager {
namespace {

constexpr uint8_t kNow = 100;

class EvictionHandTest : public testing::Test {
 protected:
  static PageTable make_table() {
    Result<PageTable> table = PageTable::create(3 * kPagesPerBlock + 7);
    EXPECT_TRUE(table.has_value());
    return std::move(*table);
  }
  void place(uint64_t page, uint8_t age = 20, uint32_t references = 0) {
    table_.place(PageIndex{page}, PageWord(PageState::kClean)
                                      .with_epoch(static_cast<uint8_t>(kNow - age))
                                      .with_references(references));
  }
  void place_all(uint64_t first, uint64_t end, uint8_t age) {
    for (uint64_t page = first; page < end; ++page) place(page, age);
  }
  // The pages that the hand selects until its round ends.
  std::vector<uint64_t> round(EvictionHand& hand, uint8_t now = kNow) {
    std::vector<uint64_t> taken;
    do {
      while (const auto due = hand.next_in_block(now)) {
        hand.took();
        taken.push_back(due->page.value);
        EXPECT_TRUE(table_.transition(due->page, due->word, due->word.to(PageState::kEvicting)));
      }
    } while (hand.next_block());
    return taken;
  }

  PageTable table_ = make_table();
  EvictionHand oldest_{table_, EvictionOrder::kOldest};
  EvictionHand any_{table_, EvictionOrder::kAny};
  EvictionHand youngest_{table_, EvictionOrder::kYoungest};
};

using Pages = std::vector<uint64_t>;
constexpr uint64_t kLast = 3 * kPagesPerBlock + 6;

TEST_F(EvictionHandTest, TakesResidentPagesInTheOrderOfTheirAddresses) {
  for (const uint64_t page : {kLast, uint64_t{600}, uint64_t{0}}) place(page);
  table_.place(PageIndex{5}, PageWord(PageState::kRemote).with_epoch(kNow - 20));
  EXPECT_EQ(round(oldest_), (Pages{0, 600, kLast}));
  EXPECT_EQ(round(oldest_), Pages{});
  EXPECT_EQ(round(any_), Pages{});
  EXPECT_EQ(round(youngest_), Pages{});
}

TEST_F(EvictionHandTest, OldestTakesOldPagesBeforeYoungerOnesOfLowerAddresses) {
  place_all(0, 10, 3);
  place_all(600, 610, 9);
  place_all(1100, 1105, 30);
  EXPECT_EQ(round(oldest_), (Pages{1100, 1101, 1102, 1103, 1104}));
  EXPECT_EQ(round(oldest_), (Pages{600, 601, 602, 603, 604, 605, 606, 607, 608, 609}));
  EXPECT_EQ(round(oldest_), (Pages{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST_F(EvictionHandTest, OldestTakesASixteenthOfWhatIsThereInARound) {
  place(700);
  for (uint64_t i = 0; i < 320; ++i) place(i, static_cast<uint8_t>(1 + i % 10));
  EXPECT_EQ(round(oldest_), Pages{700});
  EXPECT_EQ(round(oldest_).size(), 32U) << "those of age 10";
  EXPECT_EQ(round(oldest_).size(), 32U) << "those of age 9";
  // Meanwhile all have become older, and the same ones are the oldest.
  EXPECT_EQ(round(oldest_, kNow + 50).size(), 32U);
}

TEST_F(EvictionHandTest, OldestTreatsAPageWithReferencesAsInstalledAgain) {
  place(1, 20, 2);
  place(2);
  place_all(10, 12, 5);
  EXPECT_EQ(round(oldest_), Pages{2});
  EXPECT_EQ(table_.load(PageIndex{1}),
            PageWord(PageState::kClean).with_epoch(kNow).with_references(1));
  EXPECT_EQ(round(oldest_), (Pages{10, 11}));
}

TEST_F(EvictionHandTest, AnyPassesYoungPagesOverUntilNothingElseIsLeft) {
  place(1, 0);
  place(2, 7);
  place(3, 200);
  EXPECT_EQ(round(any_), (Pages{2, 3}));
  EXPECT_EQ(round(any_), Pages{1});
}

TEST_F(EvictionHandTest, AnySpendsAReferenceEachTimeItComesBy) {
  place(1, 20, 2);
  for (const uint64_t page : {10, 20, 30}) {
    place(page);
    EXPECT_EQ(round(any_), page < 30 ? Pages{page} : (Pages{1, 30}));
  }
}

TEST_F(EvictionHandTest, YoungestTakesWhatHasJustSettled) {
  place(1, 0);
  place(2, 1);
  place(3, 2, 15);
  place(4, 3);
  EXPECT_EQ(round(youngest_), (Pages{2, 3}));
  EXPECT_EQ(round(youngest_), Pages{}) << "another order takes the rest";
}

TEST_F(EvictionHandTest, SparesNobodyWhereEverybodyHasReferences) {
  for (const uint64_t page : {1, 2, 3}) place(page, 20, 15);
  for (int rounds = 0; rounds < 3; ++rounds) {
    const Pages taken = round(oldest_);
    if (taken.empty()) continue;
    EXPECT_EQ(taken, (Pages{1, 2, 3}));
    return;
  }
  FAIL() << "nothing was taken";
}

// Many rounds that yield one page each would be too expensive.
TEST_F(EvictionHandTest, SparesNobodyAfterARoundThatBroughtNextToNothing) {
  place(0);
  for (uint64_t page = 1; page <= 70; ++page) place(page, 20, 15);
  EXPECT_EQ(round(any_), Pages{0});
  EXPECT_EQ(round(any_).size(), 70U);
}

// What cannot be taken (pinned, without a lease) must not keep the hand going.
TEST_F(EvictionHandTest, EndsItsRoundsWhereNothingCanBeTaken) {
  for (uint64_t page = 0; page < 200; ++page)
    place(page, static_cast<uint8_t>(page), page % 3 == 0 ? 15 : 0);
  for (EvictionHand* hand : {&oldest_, &any_, &youngest_}) {
    size_t looked = 0;
    do {
      while (hand->next_in_block(kNow)) ++looked;
    } while (hand->next_block());
    EXPECT_LT(looked, 256U * 200U);
  }
}

TEST_F(EvictionHandTest, GoesOnInTheMiddleOfABlock) {
  for (const uint64_t page : {1, 2, 3}) place(page);
  for (const uint64_t page : {1, 2, 3}) {
    const auto due = oldest_.next_in_block(kNow);
    ASSERT_TRUE(due);
    EXPECT_EQ(due->page.value, page);
  }
  EXPECT_FALSE(oldest_.next_in_block(kNow));
}

TEST_F(EvictionHandTest, StepsOverBlocksWithoutResidentPages) {
  place(1);
  place(kLast);
  table_.place(PageIndex{600}, PageWord(PageState::kRemote).with_epoch(kNow));
  EXPECT_TRUE(oldest_.next_in_block(kNow));
  EXPECT_FALSE(oldest_.next_in_block(kNow));
  ASSERT_TRUE(oldest_.next_block());
  const auto due = oldest_.next_in_block(kNow);
  ASSERT_TRUE(due);
  EXPECT_EQ(due->page.value, kLast);
}

TEST(ComeBack, SoonEarnsReferencesAndLateDoesNot) {
  const PageWord left =
      departed(PageWord(PageState::kRemote).with_references(9), EvictionOrder::kAny, 250);
  EXPECT_EQ(order_of(left), EvictionOrder::kAny);
  EXPECT_EQ(stamped(left, 3).references(), 0U);
  const auto at = [&](uint8_t now) { return came_back(left.to(PageState::kClean), now); };
  EXPECT_EQ(at(250).references(), kReferencesOfReturn);
  EXPECT_EQ(at(static_cast<uint8_t>(250 + kSoonEpochs - 1)).references(), kReferencesOfReturn);
  EXPECT_EQ(at(static_cast<uint8_t>(250 + kSoonEpochs)).references(), 0U);
  EXPECT_EQ(at(3).epoch(), 3);
}

TEST(ComeBack, PageInUseHasAReferenceAtLeast) {
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
