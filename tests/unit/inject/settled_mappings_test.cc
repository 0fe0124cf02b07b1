#include "inject/settled_mappings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace farpage::inject {
namespace {

using Ranges = std::vector<AddressRange>;

constexpr uint64_t kLeast = 0x10;

Ranges taken(const SettledMappings& mappings) {
  return {mappings.taken().begin(), mappings.taken().end()};
}

TEST(SettledMappings, AllIsTakenInAtTheFirstLook) {
  SettledMappings mappings(kLeast);
  const Ranges ranges{{0x100, 0x200}, {0x200, 0x300}, {0x400, 0x480}};
  EXPECT_EQ(mappings.choose(ranges), ranges);
  EXPECT_FALSE(mappings.unsettled());
  EXPECT_EQ(taken(mappings), ranges);
  EXPECT_EQ(mappings.choose(ranges), Ranges{});
  EXPECT_EQ(taken(mappings), ranges);
}

TEST(SettledMappings, NothingThereAtTheFirstLookIsNoSecondFirstLook) {
  SettledMappings mappings(kLeast);
  EXPECT_EQ(mappings.choose(Ranges{}), Ranges{});
  EXPECT_EQ(mappings.choose(Ranges{{0x100, 0x200}}), Ranges{});
  EXPECT_TRUE(mappings.unsettled());
}

TEST(SettledMappings, ANewOneIsTakenInWhenItHasStoodOverTwoLooks) {
  SettledMappings mappings(kLeast);
  (void)mappings.choose(Ranges{{0x100, 0x200}});
  const Ranges both{{0x100, 0x200}, {0x300, 0x400}};
  EXPECT_EQ(mappings.choose(both), Ranges{});
  EXPECT_TRUE(mappings.unsettled());
  EXPECT_EQ(mappings.choose(both), (Ranges{{0x300, 0x400}}));
  EXPECT_FALSE(mappings.unsettled());
  EXPECT_EQ(taken(mappings), both);
}

TEST(SettledMappings, OneThatGrowsAllTheTimeIsTakenInByAndBy) {
  SettledMappings mappings(kLeast);
  (void)mappings.choose(Ranges{{0x100, 0x200}});
  EXPECT_EQ(mappings.choose(Ranges{{0x100, 0x300}}), (Ranges{{0x200, 0x300}}));
  EXPECT_TRUE(mappings.unsettled());
  EXPECT_EQ(mappings.choose(Ranges{{0x100, 0x400}}), (Ranges{{0x300, 0x400}}));
  EXPECT_EQ(taken(mappings), (Ranges{{0x100, 0x400}}));
  EXPECT_EQ(mappings.choose(Ranges{{0x100, 0x400}}), (Ranges{{0x100, 0x400}}));
  EXPECT_FALSE(mappings.unsettled());
}

// mremap(2) of two mappings fails, and what is registered is not joined with what is not.
TEST(SettledMappings, AMappingIsTakenInAsAWhole) {
  SettledMappings mappings(kLeast);
  (void)mappings.choose(Ranges{});
  EXPECT_EQ(mappings.choose(Ranges{{0x100, 0x200}}), Ranges{});
  EXPECT_EQ(mappings.choose(Ranges{{0x100, 0x204}}), (Ranges{{0x100, 0x204}}));
}

TEST(SettledMappings, WhatWasLeftBehindInARegistrationIsChosenHoweverSmall) {
  SettledMappings mappings(kLeast);
  (void)mappings.choose(Ranges{{0x100, 0x200}});
  // It had grown by 2 before it was registered.
  EXPECT_EQ(mappings.choose(Ranges{{0x100, 0x200}}), Ranges{});
  const Ranges small{{0xff, 0x100}, {0x200, 0x202}, {0x203, 0x204}};
  EXPECT_EQ(mappings.behind_taken(small), (Ranges{{0x200, 0x202}}));
  EXPECT_EQ(taken(mappings), (Ranges{{0x100, 0x200}})) << "the kernel joins the other with it";
  EXPECT_EQ(mappings.choose(Ranges{{0x100, 0x202}}), (Ranges{{0x200, 0x202}}));
}

TEST(SettledMappings, OneThatGrowsDownwardsIsTakenInByAndBy) {
  SettledMappings mappings(kLeast);
  (void)mappings.choose(Ranges{});
  EXPECT_EQ(mappings.choose(Ranges{{0x400, 0x500}}), Ranges{});
  EXPECT_EQ(mappings.choose(Ranges{{0x300, 0x500}}), (Ranges{{0x300, 0x500}}));
  EXPECT_EQ(mappings.choose(Ranges{{0x200, 0x500}}), (Ranges{{0x200, 0x300}}));
}

TEST(SettledMappings, OneBesideAnAreaThatChangesAllTheTimeIsTakenIn) {
  SettledMappings mappings(kLeast);
  (void)mappings.choose(Ranges{});
  EXPECT_EQ(mappings.choose(Ranges{{0x100, 0x340}, {0x360, 0x400}}), Ranges{});
  EXPECT_EQ(mappings.choose(Ranges{{0x100, 0x380}, {0x3a0, 0x400}}),
            (Ranges{{0x100, 0x380}, {0x3a0, 0x400}}));
  EXPECT_EQ(mappings.choose(Ranges{{0x100, 0x310}, {0x330, 0x400}}), (Ranges{{0x380, 0x3a0}}));
}

TEST(SettledMappings, AMappingInAHoleIsTakenInWithItsNeighbours) {
  SettledMappings mappings(kLeast);
  (void)mappings.choose(Ranges{{0x100, 0x400}});
  const Ranges cut{{0x100, 0x200}, {0x200, 0x220}, {0x220, 0x400}};
  EXPECT_EQ(mappings.choose(cut), Ranges{});
  EXPECT_TRUE(mappings.unsettled());
  EXPECT_EQ(mappings.choose(cut), cut);
}

TEST(SettledMappings, SmallOnesStayLocalUntilTheyAreLarge) {
  SettledMappings mappings(kLeast);
  EXPECT_EQ(mappings.choose(Ranges{{0x100, 0x10f}, {0x200, 0x210}}), (Ranges{{0x200, 0x210}}));
  EXPECT_EQ(mappings.choose(Ranges{{0x100, 0x10f}, {0x200, 0x210}}), Ranges{});
  EXPECT_EQ(mappings.choose(Ranges{{0x100, 0x110}, {0x200, 0x210}}), Ranges{});
  EXPECT_EQ(mappings.choose(Ranges{{0x100, 0x110}, {0x200, 0x210}}), (Ranges{{0x100, 0x110}}));
}

TEST(SettledMappings, WhatIsGoneIsForgottenAndNewWhenItComesAgain) {
  SettledMappings mappings(kLeast);
  const Ranges ranges{{0x100, 0x200}};
  (void)mappings.choose(ranges);
  EXPECT_EQ(mappings.choose(Ranges{}), Ranges{});
  EXPECT_EQ(taken(mappings), Ranges{});
  EXPECT_EQ(mappings.choose(ranges), Ranges{});
  EXPECT_EQ(mappings.choose(ranges), ranges);
}

// Against sets of bytes.
TEST(SettledMappings, OfRandomMappingsTakesInWhatWasThereTwice) {
  constexpr uint64_t kBytes = 200;
  std::mt19937_64 random(21);
  SettledMappings mappings(1);
  std::vector<bool> before(kBytes, false);
  std::vector<bool> in(kBytes, false);
  (void)mappings.choose(Ranges{});
  for (int step = 0; step < 2000; ++step) {
    std::vector<bool> now(kBytes, false);
    Ranges ranges;
    for (uint64_t at = random() % 20; at + 1 < kBytes;) {
      const uint64_t end = std::min(kBytes, at + 1 + random() % 30);
      ranges.push_back({at, end});
      std::fill(now.begin() + static_cast<ptrdiff_t>(at), now.begin() + static_cast<ptrdiff_t>(end),
                true);
      at = end + (random() % 2 == 0 ? 0 : 1 + random() % 15);
    }
    const Ranges chosen = mappings.choose(ranges);
    for (const AddressRange& range : chosen)
      std::fill(in.begin() + static_cast<ptrdiff_t>(range.begin),
                in.begin() + static_cast<ptrdiff_t>(range.end), true);
    std::vector<bool> told(kBytes, false);
    for (const AddressRange& range : mappings.taken())
      std::fill(told.begin() + static_cast<ptrdiff_t>(range.begin),
                told.begin() + static_cast<ptrdiff_t>(range.end), true);
    for (uint64_t at = 0; at < kBytes; ++at) {
      in[at] = in[at] && now[at];
      EXPECT_TRUE(!before[at] || !now[at] || in[at]) << "step " << step << " byte " << at;
      EXPECT_EQ(in[at], told[at]) << "step " << step << " byte " << at;
    }
    before = now;
  }
}

}  // namespace
}  // namespace farpage::inject
