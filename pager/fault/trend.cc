#include "pager/fault/trend.h"

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
  walker.marker = walker.next_marker = kNone;
}

std::optional<PrefetchPlan> TrendDetector::observe(uint32_t thread, PageIndex page,
                                                   uint32_t max_depth, bool sequential) {
  if (max_depth == 0) return std::nullopt;
  Walker& walker = walkers_[thread % kThreads];
  if (walker.busy.test_and_set(std::memory_order_acquire)) return std::nullopt;
  const auto at = static_cast<int64_t>(page.value);
  std::optional<PrefetchPlan> plan;
  int64_t stride = 0;
  if (walker.known && walker.thread == thread) {
    stride = follow(walker, at);
  } else {
    restart(walker, thread, page);
  }
  if (sequential) stride = 1;
  if (stride != walker.stride) walker.marker = walker.next_marker = kNone;
  walker.stride = stride;
  if (stride != 0) {
    const uint32_t depth = stride == 1 ? max_depth : std::min(max_depth, kScatteredDepth);
    plan = next_window(walker, at, sequential ? depth : std::min(kFirstDepth, depth), depth);
  }
  walker.busy.clear(std::memory_order_release);
  return plan;
}

int64_t TrendDetector::follow(Walker& walker, int64_t at) {
  // Pages fetched ahead lie between two faults of a stream: together they count as one step.
  const bool used_up = at == walker.marker || at == walker.next_marker;
  const int64_t delta = used_up ? walker.stride : at - static_cast<int64_t>(walker.last.value);
  walker.last = PageIndex{static_cast<uint64_t>(at)};
  walker.deltas[walker.next] = delta;
  walker.next = (walker.next + 1) % kHistory;
  walker.filled = std::min(walker.filled + 1, kHistory);
  const int64_t stride = majority(walker);
  return stride == delta && std::abs(stride) <= kMaxStride ? stride : 0;
}

PrefetchPlan TrendDetector::next_window(Walker& walker, int64_t at, uint32_t first_depth,
                                        uint32_t max_depth) {
  const int64_t stride = walker.stride;
  const auto behind = [&](int64_t page, uint32_t depth) {
    return page + stride * (static_cast<int64_t>(depth) + 1);
  };
  const auto plan_from = [&](int64_t page, uint32_t pages) {
    return PrefetchPlan{PageIndex{static_cast<uint64_t>(page + stride)}, stride, pages};
  };
  if (walker.next_marker == at) {  // the page at the previous marker was resident
    walker.marker = at;
    walker.next_marker = kNone;
  }
  if (walker.marker != at) {
    // A stream begins, or fewer pages were fetched than requested.
    const bool begins = walker.marker == kNone;
    walker.depth = begins ? first_depth : std::clamp(walker.depth / 2, first_depth, max_depth);
    walker.marker = behind(at, walker.depth);
    walker.next_marker = kNone;
    return plan_from(at, walker.depth);
  }
  walker.depth = std::min(walker.depth * 2, max_depth);
  if (walker.next_marker == kNone) {  // two windows: the current one and the next one
    walker.marker = behind(at, walker.depth);
    walker.next_marker = behind(walker.marker, walker.depth);
    PrefetchPlan plan = plan_from(at, 2 * walker.depth + 1);
    plan.gap = walker.depth;
    return plan;
  }
  walker.marker = walker.next_marker;
  walker.next_marker = behind(walker.marker, walker.depth);
  return plan_from(walker.marker, walker.depth);
}

}  // namespace farpage::pager
