#include "base/histogram.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "base/mapping.h"

namespace farpage {
namespace {

TEST(Histogram, EmptyReportsZero) {
  const Histogram histogram;
  EXPECT_EQ(histogram.count(), 0U);
  EXPECT_EQ(histogram.percentile_ns(50), 0U);
  EXPECT_EQ(histogram.mean_ns(), 0.0);
}

TEST(Histogram, EveryValueLiesInItsBucket) {
  for (uint64_t value = 0; value < (uint64_t{1} << 41); value = value * 21 / 20 + 1) {
    const size_t bucket = Histogram::bucket_of(value);
    ASSERT_LT(bucket, Histogram::kBuckets);
    EXPECT_LE(value, Histogram::upper_edge_ns(bucket)) << value;
    if (bucket > 0) {
      EXPECT_GT(value, Histogram::upper_edge_ns(bucket - 1)) << value;
    }
  }
}

TEST(Histogram, ValueBeyondTheLimitCountsAsTheLargest) {
  Histogram histogram;
  histogram.record(~uint64_t{0} >> 1);
  EXPECT_EQ(histogram.count(), 1U);
  EXPECT_EQ(histogram.max_ns(), Histogram::upper_edge_ns(Histogram::kBuckets - 1));
}

TEST(Histogram, PercentilesAreRightToOnePercent) {
  std::mt19937_64 random(4711);
  std::lognormal_distribution<double> latency(9.0, 1.2);
  Histogram histogram;
  std::vector<uint64_t> values;
  for (int i = 0; i < 100'000; ++i) {
    values.push_back(static_cast<uint64_t>(latency(random)));
    histogram.record(values.back());
  }
  std::sort(values.begin(), values.end());
  for (const double percent : {1.0, 25.0, 50.0, 90.0, 99.0, 99.9}) {
    const auto rank = static_cast<size_t>(std::ceil(percent / 100 * 100'000)) - 1;
    const auto exact = static_cast<double>(values[rank]);
    EXPECT_NEAR(static_cast<double>(histogram.percentile_ns(percent)), exact, exact * 0.01 + 1);
  }
}

TEST(Histogram, MergedEqualsRecordedInOne) {
  Histogram a;
  Histogram b;
  Histogram all;
  for (uint64_t i = 0; i < 1000; ++i) {
    (i % 3 == 0 ? a : b).record(i * i);
    all.record(i * i);
  }
  const Histogram before = a;
  a.merge(b);
  EXPECT_EQ(a.count(), all.count());
  EXPECT_EQ(a.sum_ns(), all.sum_ns());
  EXPECT_EQ(a.percentile_ns(99), all.percentile_ns(99));
  EXPECT_EQ(a.since(before).count(), b.count());
  a = before;
  EXPECT_EQ(a.count(), before.count());
  EXPECT_EQ(a.max_ns(), before.max_ns());
}

TEST(Histogram, ReadsNoBucketOfAnOctaveWithoutValues) {
  const auto memory = *Mapping::anonymous(sizeof(Histogram));
  auto& histogram = *reinterpret_cast<Histogram*>(memory.data());
  histogram.record(1000);
  std::vector<unsigned char> resident((memory.size() + 4095) / 4096);
  (void)histogram.summary();
  (void)Histogram().since(histogram);
  ASSERT_EQ(::mincore(memory.data(), memory.size(), resident.data()), 0);
  const auto pages = std::count_if(resident.begin(), resident.end(), [](auto r) { return r & 1; });
  EXPECT_LE(pages, 2) << "that of the bucket, and that of the sums";
}

}  // namespace
}  // namespace farpage
