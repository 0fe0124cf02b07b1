#include "pager/compress/recent_median.h"

#include <gtest/gtest.h>

namespace farpage::pager {
namespace {

void record(Histogram& times, uint64_t value_ns, int count) {
  for (int i = 0; i < count; ++i) times.record(value_ns);
}

TEST(RecentMedian, IsOfWhatCameSinceTheLastLook) {
  Histogram times;
  RecentMedian median{Nanoseconds(5)};
  record(times, 10'000, 1000);
  EXPECT_NEAR(static_cast<double>(median.look(times)), 10'000, 700);
  record(times, 900, 60);
  record(times, 50'000, 40);
  EXPECT_NEAR(static_cast<double>(median.look(times)), 900, 70);
}

TEST(RecentMedian, FewValuesAreKeptForTheNextLook) {
  Histogram times;
  RecentMedian median{Nanoseconds(5)};
  record(times, 1000, RecentMedian::kFewest - 1);
  EXPECT_EQ(median.look(times), 5U) << "the usual one";
  record(times, 1000, 1);
  const uint64_t first = median.look(times);
  EXPECT_NEAR(static_cast<double>(first), 1000, 70);
  record(times, 9000, RecentMedian::kFewest - 1);
  EXPECT_EQ(median.look(times), first);
  record(times, 9000, 1);
  EXPECT_NEAR(static_cast<double>(median.look(times)), 9000, 600);
}

}  // namespace
}  // namespace farpage::pager
