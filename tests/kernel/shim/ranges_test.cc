#include "shim/ranges.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace farpage::shim {
namespace {

constexpr uint64_t kPages = 512;

Span pages(uint64_t begin, uint64_t end) {
  return {begin * kPageBytes, end * kPageBytes};
}

TEST(Ranges, FindsTheLowestThatFitsAndIsAligned) {
  Ranges free;
  ASSERT_EQ(free.open(), 0);
  ASSERT_TRUE(free.add(pages(3, 5)));
  ASSERT_TRUE(free.add(pages(9, 40)));
  EXPECT_EQ(free.find(kPageBytes, kPageBytes).begin, 3 * kPageBytes);
  EXPECT_EQ(free.find(3 * kPageBytes, kPageBytes).begin, 9 * kPageBytes);
  EXPECT_EQ(free.find(3 * kPageBytes, 16 * kPageBytes).begin, 16 * kPageBytes);
  EXPECT_TRUE(free.find(32 * kPageBytes, kPageBytes).empty());
}

TEST(Ranges, NeighboursBecomeOne) {
  Ranges free;
  ASSERT_EQ(free.open(), 0);
  free.add(pages(1, 2));
  free.add(pages(3, 4));
  free.add(pages(2, 3));
  ASSERT_EQ(free.size(), 1U);
  EXPECT_TRUE(free.contains(pages(1, 4)));
}

TEST(Ranges, HoldsAsManySpansAsItSaysAndThenRefuses) {
  constexpr uint64_t kMost = 4096;
  Ranges free;
  ASSERT_EQ(free.open(kMost), 0);
  for (uint64_t i = 0; i < kMost; ++i) {
    ASSERT_TRUE(free.add(pages(4 * i, 4 * i + 3)));
  }
  const uint64_t beyond = 4 * kMost;
  EXPECT_FALSE(free.add(pages(beyond, beyond + 1)));
  EXPECT_FALSE(free.remove(pages(1, 2)));  // would split one range
  EXPECT_TRUE(free.contains(pages(0, 3)));
  EXPECT_TRUE(free.add(pages(3, 4)));  // joins two ranges
  EXPECT_TRUE(free.remove(pages(1, 2)));
}

// Compared with a plain table of pages.
TEST(Ranges, AgreesWithATableOfPages) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  Ranges free;
  ASSERT_EQ(free.open(), 0);
  std::vector<bool> table(kPages, false);
  for (int step = 0; step < 20000; ++step) {
    const uint64_t begin = random() % kPages;
    const uint64_t end = begin + random() % (kPages - begin + 1);
    const bool add = random() % 2 == 0;
    ASSERT_TRUE(add ? free.add(pages(begin, end)) : free.remove(pages(begin, end)));
    bool any = false;
    bool all = true;
    const uint64_t other_begin = random() % kPages;
    const uint64_t other_end = other_begin + 1 + random() % (kPages - other_begin);
    for (uint64_t page = 0; page < kPages; ++page) {
      table[page] = page >= begin && page < end ? add : table[page];
      if (page >= other_begin && page < other_end) {
        any = any || table[page];
        all = all && table[page];
      }
    }
    ASSERT_EQ(free.intersects(pages(other_begin, other_end)), any);
    ASSERT_EQ(free.contains(pages(other_begin, other_end)), all);
    // The ranges and the gaps are visited in order, each once, and cover the whole.
    std::vector<bool> seen(kPages, false);
    uint64_t inside = 0;
    uint64_t between = 0;
    free.for_each_in(pages(other_begin, other_end), [&](Span span) {
      inside += span.bytes() / kPageBytes;
      for (uint64_t at = span.begin; at < span.end; at += kPageBytes)
        seen[(at - pages(0, 1).begin) / kPageBytes] = true;
    });
    free.for_each_gap_in(pages(other_begin, other_end),
                         [&](Span span) { between += span.bytes() / kPageBytes; });
    ASSERT_EQ(inside + between, other_end - other_begin);
    for (uint64_t page = other_begin; page < other_end; ++page) ASSERT_EQ(seen[page], table[page]);
    for (size_t i = 0; i + 1 < free.size(); ++i) {
      ASSERT_LT(free[i].begin, free[i].end);
      ASSERT_LT(free[i].end, free[i + 1].begin);
    }
  }
}

}  // namespace
}  // namespace farpage::shim
