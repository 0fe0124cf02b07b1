// TrendDetector: detects whether a thread walks through memory, and its stride.
//
// The majority vote over recent deltas is Leap's (Maruf and Chowdhury, USENIX ATC 2020, 4.1).
// Memory is prefetched in windows, and the page after each window is not fetched: the fault at this
// marker shows that the window was used, like PG_readahead in Linux's readahead. From the second
// window on, the fault at a marker requests the window after the next marker, so one window is in
// flight while the other is used. The depth doubles from window to window.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "base/strong.h"

namespace farpage::pager {

// `pages` pages: first, first + stride, ..., without the one at index `gap`.
struct PrefetchPlan {
  PageIndex first;
  int64_t stride = 1;
  uint32_t pages = 0;
  uint32_t gap = UINT32_MAX;
};

// Threads: any. When two threads use one walker at the same time, neither waits, and the second one
// is not recorded.
class TrendDetector {
 public:
  // Records a demand fault of `thread` on `page` and returns what to prefetch, if anything, in
  // windows of at most `max_depth` pages. `sequential`: the program has announced a sequential
  // walk.
  std::optional<PrefetchPlan> observe(uint32_t thread, PageIndex page, uint32_t max_depth,
                                      bool sequential = false);

 private:
  static constexpr size_t kHistory = 8;
  static constexpr size_t kThreads = 16;
  static constexpr uint32_t kFirstDepth = 4;
  static constexpr int64_t kMaxStride = 1024;
  static constexpr uint32_t kScatteredDepth = 8;  // where each page needs its own READ
  static constexpr int64_t kNone = -1;

  struct Walker {
    std::atomic_flag busy = ATOMIC_FLAG_INIT;
    uint32_t thread = 0;
    bool known = false;
    PageIndex last;
    std::array<int64_t, kHistory> deltas{};
    size_t next = 0;
    size_t filled = 0;
    int64_t marker = kNone;       // the fault that is expected when the window is used up
    int64_t next_marker = kNone;  // after the following window, if that is in flight
    int64_t stride = 0;
    uint32_t depth = 0;
  };

  static int64_t majority(const Walker& walker);
  static void restart(Walker& walker, uint32_t thread, PageIndex page);
  // The stride of the walk that this fault belongs to; 0: of none.
  static int64_t follow(Walker& walker, int64_t at);
  static PrefetchPlan next_window(Walker& walker, int64_t at, uint32_t first_depth,
                                  uint32_t max_depth);

  std::array<Walker, kThreads> walkers_{};
};

}  // namespace farpage::pager
