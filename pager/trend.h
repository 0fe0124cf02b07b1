// TrendDetector: is a thread walking through memory, and in which steps?
//
// The majority vote over recent deltas is Leap's (Maruf and Chowdhury, USENIX ATC 2020, 4.1).
// Memory is fetched ahead in windows, and the page behind each window is left away: the fault
// there, at the marker, says that the window was used, as PG_readahead does in Linux's readahead.
// From the second window on, the one behind the next marker is asked for at each marker: while a
// window is used, the next one travels. The depth doubles from window to window.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "base/strong.h"

namespace farpage::pager {

// Pages first, first + stride, ... `pages` of them, without the one in place `gap`.
struct PrefetchPlan {
  PageIndex first;
  int64_t stride = 1;
  uint32_t pages = 0;
  uint32_t gap = UINT32_MAX;
};

// Threads: any; two that meet on one walker do not wait, the second one learns nothing.
class TrendDetector {
 public:
  // A demand fault of `thread` on `page`: what to fetch ahead, if anything, in windows of at most
  // `max_depth` pages. `sequential`: the program has said that it walks page by page.
  std::optional<PrefetchPlan> observe(uint32_t thread, PageIndex page, uint32_t max_depth,
                                      bool sequential = false);

 private:
  static constexpr size_t kHistory = 8;
  static constexpr size_t kThreads = 16;
  static constexpr uint32_t kFirstDepth = 4;
  static constexpr int64_t kMaxStride = 1024;
  static constexpr uint32_t kScatteredDepth = 8;  // where each page takes a READ of its own
  static constexpr int64_t kNone = -1;

  struct Walker {
    std::atomic_flag busy = ATOMIC_FLAG_INIT;
    uint32_t thread = 0;
    bool known = false;
    PageIndex last;
    std::array<int64_t, kHistory> deltas{};
    size_t next = 0;
    size_t filled = 0;
    int64_t marker = kNone;       // the fault that is due when the window is used up
    int64_t next_marker = kNone;  // behind the window after it, if that is on its way
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
