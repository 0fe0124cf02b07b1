#include "pager/evict/order_choice.h"

#include <gtest/gtest.h>

#include <map>

namespace farpage::pager {
namespace {

constexpr uint32_t kBatchesInEpoch = 200;
constexpr uint32_t kPages = 32;  // of a batch

// A program whose pages stay away for a number of epochs that depends on the order; 0: for ever.
class Program {
 public:
  explicit Program(std::map<EvictionOrder, uint8_t> away) : away_(std::move(away)) {}

  // How often each order was chosen in the last of the epochs.
  std::map<EvictionOrder, uint32_t> run(uint32_t epochs) {
    std::map<EvictionOrder, uint32_t> chosen;
    for (uint32_t i = 0; i < epochs; ++i, ++now_) {
      chosen.clear();
      for (uint32_t batch = 0; batch < kBatchesInEpoch; ++batch) {
        const EvictionOrder order = choice.next(now_);
        choice.left(order, kPages, now_);
        ++chosen[order];
        if (away_[order] > 0) ++due_[order][static_cast<uint8_t>(now_ + away_[order])];
      }
      for (auto& [order, at] : due_) {
        const uint32_t pages = std::exchange(at[now_], 0) * kPages;
        for (uint32_t page = 0; page < pages; ++page) choice.returned(order, away_[order]);
      }
    }
    return chosen;
  }
  void becomes(std::map<EvictionOrder, uint8_t> away) { away_ = std::move(away); }

  OrderChoice choice;

 private:
  std::map<EvictionOrder, uint8_t> away_;
  std::map<EvictionOrder, std::map<uint8_t, uint32_t>> due_;
  uint8_t now_ = 250;  // epochs wrap soon
};

using enum EvictionOrder;

TEST(OrderChoice, BeginsWithTheOldestAndTriesTheOthersRarely) {
  Program program({{kOldest, 4}, {kAny, 4}, {kYoungest, 4}});
  const auto chosen = program.run(1);
  EXPECT_GE(chosen.at(kOldest), kBatchesInEpoch * 95 / 100);
  EXPECT_GE(chosen.at(kAny), 1U);
  EXPECT_GE(chosen.at(kYoungest), 1U);
}

TEST(OrderChoice, StaysWithTheOldestWhereAllAreAlike) {
  Program program({{kOldest, 8}, {kAny, 8}, {kYoungest, 8}});
  EXPECT_GE(program.run(100)[kOldest], kBatchesInEpoch * 95 / 100);
}

TEST(OrderChoice, TakesTheOrderWhosePagesStayAwayLonger) {
  Program loop({{kOldest, 3}, {kAny, 9}, {kYoungest, 20}});
  EXPECT_GE(loop.run(80)[kYoungest], kBatchesInEpoch * 9 / 10);
  EXPECT_GT(loop.choice.record_of(kYoungest), loop.choice.record_of(kAny));
  EXPECT_GT(loop.choice.record_of(kAny), loop.choice.record_of(kOldest));
}

TEST(OrderChoice, PagesThatStayAwayForEverAreTheBestVictims) {
  Program program({{kOldest, 0}, {kAny, 6}, {kYoungest, 12}});
  EXPECT_GE(program.run(80)[kOldest], kBatchesInEpoch * 95 / 100);
}

TEST(OrderChoice, TriesABadOrderLessOften) {
  Program program({{kOldest, 0}, {kAny, 1}, {kYoungest, 1}});
  program.run(100);
  EXPECT_LE(program.run(1)[kAny], 1U);
}

TEST(OrderChoice, LearnsAnewWhenTheProgramChanges) {
  Program program({{kOldest, 3}, {kAny, 9}, {kYoungest, 20}});
  program.run(80);
  program.becomes({{kOldest, 30}, {kAny, 9}, {kYoungest, 1}});
  EXPECT_GE(program.run(150)[kOldest], kBatchesInEpoch * 9 / 10);
}

// Half of 100 pages that left in epoch 6 are back in it.
double record_after_departures(uint8_t chosen_at) {
  OrderChoice choice;
  (void)choice.next(chosen_at);
  choice.left(kOldest, 100, 6);
  for (int page = 0; page < 50; ++page) choice.returned(kOldest, 0);
  (void)choice.next(7);
  return choice.record_of(kOldest);
}

TEST(OrderChoice, PagesMayLeaveInALaterEpochThanThatOfTheirChoice) {
  const double record = record_after_departures(6);
  EXPECT_EQ(record_after_departures(5), record);
  EXPECT_EQ(record_after_departures(3), record);
}

TEST(OrderChoice, PagesThatAHintHasEvictedCountForNoOrder) {
  OrderChoice choice;
  choice.left(kByHint, 100, 0);
  choice.returned(kByHint, 0);
  (void)choice.next(1);
  EXPECT_EQ(choice.record_of(kOldest), choice.record_of(kYoungest));
}

}  // namespace
}  // namespace farpage::pager
