#include "pager/compress/recent_median.h"

#include <numeric>

namespace farpage::pager {

uint64_t RecentMedian::look(const Histogram& times) {
  std::array<uint32_t, kGroups> fresh{};
  for (size_t group = 0; group < kGroups; ++group) {
    uint64_t values = 0;
    for (size_t i = 0; i < kTogether; ++i) values += times.bucket_count(group * kTogether + i);
    fresh[group] = static_cast<uint32_t>(values) - seen_[group];
  }
  const uint64_t all = std::accumulate(fresh.begin(), fresh.end(), uint64_t{0});
  if (all < kFewest) return median_ns_;
  size_t group = 0;
  for (uint64_t below = fresh[0]; below * 2 < all; below += fresh[group]) ++group;
  median_ns_ = Histogram::upper_edge_ns(group * kTogether + kTogether - 1);
  for (size_t i = 0; i < kGroups; ++i) seen_[i] += fresh[i];
  return median_ns_;
}

}  // namespace farpage::pager
