// TrendDetector: is a thread walking through memory, and in which steps?
//
// The majority vote over recent deltas is Leap's (Maruf and Chowdhury, USENIX ATC 2020, 4.1); the
// depth doubles while the window that was fetched ahead is used up, as Linux readahead does.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "base/strong.h"

namespace farpage::pager {

// Pages first, first + stride, ... `pages` of them.
struct PrefetchPlan {
  PageIndex first;
  int64_t stride = 1;
  uint32_t pages = 0;
};

// Threads: any; two that meet on one walker do not wait, the second one learns nothing.
class TrendDetector {
 public:
  explicit TrendDetector(uint32_t max_depth) : max_depth_(max_depth) {}

  // A demand fault of `thread` on `page`: what to fetch ahead, if anything.
  std::optional<PrefetchPlan> observe(uint32_t thread, PageIndex page);

 private:
  static constexpr size_t kHistory = 8;
  static constexpr size_t kThreads = 16;
  static constexpr uint32_t kFirstDepth = 4;
  static constexpr int64_t kMaxStride = 1024;

  struct Walker {
    std::atomic_flag busy = ATOMIC_FLAG_INIT;
    uint32_t thread = 0;
    bool known = false;
    PageIndex last;
    std::array<int64_t, kHistory> deltas{};
    size_t next = 0;
    size_t filled = 0;
    // The fault that is due if the window that was fetched ahead is used to its end.
    int64_t expected = -1;
    int64_t stride = 0;
    uint32_t depth = 0;
  };

  static int64_t majority(const Walker& walker);
  static void restart(Walker& walker, uint32_t thread, PageIndex page);
  std::optional<PrefetchPlan> advance(Walker& walker, PageIndex page) const;

  const uint32_t max_depth_;
  std::array<Walker, kThreads> walkers_{};
};

}  // namespace farpage::pager
