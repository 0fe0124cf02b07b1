// Eviction by the thread that resolves its own faults.
#include <gtest/gtest.h>

#include "rig.h"

namespace farpage::pager {
namespace {

constexpr uint64_t kLocalPages = 1000;
// The evictor's thread comes above 980; above 970 those evict who wait for a READ.
constexpr uint64_t kPagesAboveHighWater = 975;
constexpr uint64_t kPagesBelowHighWater = 960;
constexpr uint64_t kAwayPages = 100;

class Help : public ::testing::Test {
 protected:
  Help()
      : rig_({.transport = rdma::TransportKind::kLoop,
              .pages = 4096,
              .local_pages = kLocalPages,
              .resolve_in_thread = true,
              .adaptive_water_marks = false,
              .loop = slow_loop()}) {}

  // A READ takes some looks, so that there is time to help.
  static rdma::LoopOptions slow_loop() {
    rdma::LoopOptions loop;
    loop.faults.delay_polls = 50;
    return loop;
  }

  void SetUp() override {
    for (uint64_t page = 0; page < kAwayPages; ++page) write(page);
    // A hint is not repeated by itself after a WRITE that has found the machine too busy to answer.
    ASSERT_TRUE(comes_true([&] {
      if (rig_.stats().evictions() == kAwayPages) return true;
      rig_.pager().hint_cold({PageIndex{0}, kAwayPages});
      return false;
    }));
    for (uint64_t page = 0; page < kPagesBelowHighWater; ++page) write(kAwayPages + page);
  }

  // As a write would be that finds the page missing.
  void write(uint64_t page) {
    rig_.pager().resolve(PageIndex{page}, uffd::FaultKind::kMissingWrite);
    fill(rig_, page, 1);
  }
  // One of those that were away.
  void write_with_a_read() {
    ASSERT_TRUE(rig_.pager().is_away(PageIndex{away_}));
    write(away_++);
  }
  // Fails if that takes more than it takes to be above the high-water mark.
  void write_until_pages_leave() {
    const uint64_t before = rig_.stats().evictions();
    while (leaving() == 0 && rig_.stats().evictions() == before) {
      ASSERT_LT(rig_.stats().resident_pages, kPagesAboveHighWater) << "nobody evicts";
      write_with_a_read();
    }
  }
  // Pages that are leaving: all that are here were written.
  uint64_t leaving() {
    uint64_t pages = 0;
    for (uint64_t page = 0; page < rig_.pages(); ++page)
      if (rig_.pager().next_fault(PageIndex{page}, true) == uffd::FaultKind::kWriteProtected)
        ++pages;
    return pages;
  }

  Rig rig_;
  uint64_t away_ = 0;
};

TEST_F(Help, WhatAFaultHasBegunToEvictEndsWithTheNextOrWithout) {
  for (const bool next : {true, false}) {
    write_until_pages_leave();
    if (next) write_with_a_read();
    EXPECT_TRUE(comes_true([&] { return leaving() == 0; }));
    EXPECT_GT(rig_.stats().evictions(), 0U);
    // The last pages may still be on their way out: leaving() does not see those that are dropped.
    EXPECT_TRUE(comes_true([&] { return rig_.pager().check_invariants().has_value(); }));
  }
}

TEST_F(Help, NothingIsLeavingWhenAPinHasReturned) {
  write_until_pages_leave();
  // Twice: the second pause may find the evictor as the first has left it.
  for (const uint64_t first : {0, 100}) {
    ASSERT_TRUE(rig_.pager().pin({PageIndex{first}, 100}));
    for (uint64_t page = first; page < first + 100; ++page)
      EXPECT_NE(rig_.pager().next_fault(PageIndex{page}, true), uffd::FaultKind::kWriteProtected);
  }
}

TEST_F(Help, WhatIsWrittenComesBackWholeFromManyRounds) {
  for (uint64_t round = 1; round <= 3; ++round)
    for (uint64_t page = 0; page < rig_.pages(); ++page) {
      while (const auto missing = rig_.pager().next_fault(PageIndex{page}, true))
        rig_.pager().resolve(PageIndex{page}, *missing);
      // It may have stayed since the last round, and was protected between two victims.
      rig_.pager().resolve(PageIndex{page}, uffd::FaultKind::kWriteProtected);
      if (round > 1) {
        ASSERT_TRUE(holds(rig_, page, round - 1)) << page;
      }
      fill(rig_, page, round);
    }
}

}  // namespace
}  // namespace farpage::pager
