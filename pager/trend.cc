#include "pager/trend.h"

#include <algorithm>
#include <cstdlib>

namespace farpage::pager {

int64_t TrendDetector::majority(const Walker& walker) {
  // Boyer-Moore: one candidate, then count it. Nothing below four observations.
  if (walker.filled < 4) return 0;
  int64_t candidate = 0;
  size_t votes = 0;
  for (size_t i = 0; i < walker.filled; ++i) {
    if (votes == 0) candidate = walker.deltas[i];
    votes += walker.deltas[i] == candidate ? 1 : static_cast<size_t>(-1);
  }
  const auto count = static_cast<size_t>(
      std::count(walker.deltas.begin(),
                 walker.deltas.begin() + static_cast<ptrdiff_t>(walker.filled), candidate));
  return count * 2 > walker.filled ? candidate : 0;
}

void TrendDetector::restart(Walker& walker, uint32_t thread, PageIndex page) {
  walker.thread = thread;
  walker.known = true;
  walker.last = page;
  walker.next = 0;
  walker.filled = 0;
  walker.expected = -1;
  walker.depth = 0;
}

std::optional<PrefetchPlan> TrendDetector::observe(uint32_t thread, PageIndex page) {
  if (max_depth_ == 0) return std::nullopt;
  Walker& walker = walkers_[thread % kThreads];
  if (walker.busy.test_and_set(std::memory_order_acquire)) return std::nullopt;
  std::optional<PrefetchPlan> plan;
  if (walker.known && walker.thread == thread) {
    plan = advance(walker, page);
  } else {
    restart(walker, thread, page);
  }
  walker.busy.clear(std::memory_order_release);
  return plan;
}

std::optional<PrefetchPlan> TrendDetector::advance(Walker& walker, PageIndex page) const {
  const auto at = static_cast<int64_t>(page.value);
  const bool used_up = walker.expected == at;
  // Between two faults of a walk lies what was fetched ahead: that is one step of it.
  const int64_t delta = used_up ? walker.stride : at - static_cast<int64_t>(walker.last.value);
  walker.last = page;
  walker.deltas[walker.next] = delta;
  walker.next = (walker.next + 1) % kHistory;
  walker.filled = std::min(walker.filled + 1, kHistory);

  const int64_t stride = majority(walker);
  if (stride == 0 || std::abs(stride) > kMaxStride || stride != delta) {
    walker.depth = 0;
    walker.expected = -1;
    return std::nullopt;
  }
  walker.depth =
      used_up ? std::min(walker.depth * 2, max_depth_) : std::min(kFirstDepth, max_depth_);
  walker.stride = stride;
  const int64_t first = at + stride;
  const int64_t last = at + stride * static_cast<int64_t>(walker.depth);
  if (first < 0 || last < 0) return std::nullopt;
  walker.expected = last + stride;
  return PrefetchPlan{PageIndex{static_cast<uint64_t>(first)}, stride, walker.depth};
}

}  // namespace farpage::pager
