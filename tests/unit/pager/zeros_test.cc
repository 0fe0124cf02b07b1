#include "pager/fault/zeros.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace farpage::pager {
namespace {

constexpr uint64_t kPages = 300;
constexpr uint32_t kLimit = 64;

class FreshWalk : public testing::Test {
 protected:
  static PageTable make_table() {
    Result<PageTable> table = PageTable::create(kPages);
    EXPECT_TRUE(table.has_value());
    return std::move(*table);
  }
  void use(uint64_t first, uint64_t end, PageState state = PageState::kDirty) {
    for (uint64_t page = first; page < end; ++page) table_.place(PageIndex{page}, PageWord(state));
  }
  // The pages ahead of a walk that has reached `page`, as "first+count".
  std::string ahead(uint64_t page, bool sequential = false) {
    const uffd::PageRun run = fresh_walk(table_, PageIndex{page}, kLimit, sequential);
    use(page, page + 1);
    if (run.pages == 1) return "none";
    const uint64_t first = run.first.value + (run.first.value == page ? 1 : 0);
    return std::to_string(first) + "+" + std::to_string(run.pages - 1);
  }

  PageTable table_ = make_table();
};

TEST_F(FreshWalk, AsManyBeforeAWalkAsLieBehindIt) {
  use(10, 14);
  EXPECT_EQ(ahead(14), "15+4");
  use(15, 19);
  EXPECT_EQ(ahead(19), "20+9");
}

TEST_F(FreshWalk, NoMoreThanTheLimit) {
  use(0, 100);
  EXPECT_EQ(ahead(100), "101+64");
}

TEST_F(FreshWalk, NoneBeforeAWalkIsKnown) {
  EXPECT_EQ(ahead(50), "none");
  use(97, 100);
  EXPECT_EQ(ahead(100), "none");
}

TEST_F(FreshWalk, WhatHasLeftWasUsedAllTheSame) {
  use(0, 20, PageState::kRemote);
  use(20, 24, PageState::kClean);
  EXPECT_EQ(ahead(24), "25+24");
}

TEST_F(FreshWalk, NotBeyondAPageThatIsInUse) {
  use(0, 20);
  use(25, 26, PageState::kRemote);
  EXPECT_EQ(ahead(20), "21+4");
}

TEST_F(FreshWalk, DownwardsToo) {
  use(201, 211);
  EXPECT_EQ(ahead(200), "190+10");
  use(1, 101);
  EXPECT_EQ(ahead(0), "none");  // no page below it
}

TEST_F(FreshWalk, NotBeyondTheEnd) {
  use(kPages - 30, kPages - 5);
  EXPECT_EQ(ahead(kPages - 5), std::to_string(kPages - 4) + "+4");
  EXPECT_EQ(ahead(kPages - 1), "none");
}

TEST_F(FreshWalk, AllThatIsAllowedWhereTheProgramHasSaidThatItWalks) {
  EXPECT_EQ(ahead(7, /*sequential=*/true), "8+64");
}

// Two walks that alternate, as in a sort that writes its lines upwards and its table downwards.
TEST_F(FreshWalk, EachOfTwoWalksIsKnown) {
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(ahead(i), "none");
    EXPECT_EQ(ahead(kPages - 1 - i), "none");
  }
  EXPECT_EQ(ahead(4), "5+4");
  EXPECT_EQ(ahead(kPages - 5), std::to_string(kPages - 9) + "+4");
}

TEST_F(FreshWalk, RandomTouchesOfLittleBringLittle) {
  std::mt19937_64 random(11);
  uint64_t touched = 0;
  uint64_t placed = 0;
  for (int i = 0; i < 100; ++i) {  // at most a third is used
    const PageIndex page{random() % kPages};
    if (table_.load(page).state() != PageState::kEmpty) continue;
    const uffd::PageRun run = fresh_walk(table_, page, kLimit, /*sequential=*/false);
    use(run.first.value, run.first.value + run.pages);
    ++touched;
    placed += run.pages - 1;
  }
  EXPECT_GT(touched, 80U);
  EXPECT_LT(placed, touched / 20);
}

}  // namespace
}  // namespace farpage::pager
