// RecentMedian: the median of what a histogram has got lately.
#pragma once

#include <array>
#include <cstdint>

#include "base/clock.h"
#include "base/histogram.h"

namespace farpage::pager {

// Looks are cheap enough for a signal handler's stack: buckets are taken together, so the median is
// up to 6 % too high.
//
// Threads: one; others may record meanwhile.
class RecentMedian {
 public:
  static constexpr uint64_t kFewest = 8;  // values

  // `usual`: until there are some.
  explicit RecentMedian(Nanoseconds usual) : median_ns_(static_cast<uint64_t>(usual.count())) {}

  // The median of the values since the look before; the one that it had then, if there are fewer
  // than kFewest, which the next look has too. Always of the same histogram.
  uint64_t look(const Histogram& times);

 private:
  static constexpr size_t kTogether = 8;
  static constexpr size_t kGroups = Histogram::kBuckets / kTogether;
  static_assert(Histogram::kBuckets % kTogether == 0);

  std::array<uint32_t, kGroups> seen_{};  // modulo 2^32
  uint64_t median_ns_;
};

}  // namespace farpage::pager
