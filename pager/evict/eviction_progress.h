// EvictionProgress: may a fault that finds no room still hope for it?
//
// A fault gives up when nothing of its target could be evicted for as long as the fault deadline,
// although eviction was tried several times. It goes on waiting while pages leave (other threads
// may have taken that room), while the target does not drop its pages (it is stopped, and its
// threads with it; or its agent waits for a CPU), and while eviction has not come to this target:
// with hundreds of targets on a slow machine that takes seconds. So may the first answer of the
// coordinator to so many requests for slabs: only a refusal counts as a failure. The last two have
// a limit too.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>

#include "base/clock.h"

namespace farpage::pager {

// Threads: hopeless() any, the others: the holder of the evictor's turn.
class EvictionProgress {
 public:
  static constexpr int kUntried = 12;  // deadlines without enough attempts
  // Failures in a row, or at least one and two deadlines: a batch that fails for lack of an answer
  // takes a quarter of the deadline, and other targets have their turns.
  static constexpr uint32_t kAttempts = 3;
  static constexpr int kTriedOnce = 2;  // deadlines

  // A batch has freed pages.
  void freed(Instant now) {
    freed_at_.store(now.count(), std::memory_order_relaxed);
    failing_since_.store(kNever, std::memory_order_relaxed);
    failures_.store(0, std::memory_order_relaxed);
  }
  // A batch that began at `since` has freed nothing, or there was nothing to take.
  void failed(Instant since) {
    if (failing_since_.load(std::memory_order_relaxed) == kNever)
      failing_since_.store(since.count(), std::memory_order_relaxed);
    failures_.fetch_add(1, std::memory_order_relaxed);
  }
  // The target has not dropped the pages of its last batch yet.
  void set_dropping(bool dropping) { dropping_.store(dropping, std::memory_order_relaxed); }
  bool dropping() const { return dropping_.load(std::memory_order_relaxed); }

  // `since`: when the fault was read.
  bool hopeless(Instant since, Instant now, Nanoseconds deadline) const {
    if (now - since <= deadline || dropping()) return false;
    const Nanoseconds without =
        now - std::max(since, Instant(freed_at_.load(std::memory_order_relaxed)));
    if (without <= deadline) return false;
    const int64_t failing = failing_since_.load(std::memory_order_relaxed);
    const bool tried = failures_.load(std::memory_order_relaxed) >= kAttempts &&
                       now - Instant(failing) > deadline / 2;
    const Nanoseconds longest = deadline * (failing != kNever ? kTriedOnce : kUntried);
    return tried || without > longest;
  }

 private:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> freed_at_{0};
  std::atomic<int64_t> failing_since_{kNever};
  std::atomic<uint32_t> failures_{0};
  std::atomic<bool> dropping_{false};
};

}  // namespace farpage::pager
