// RunQueue: wishes of the target about runs of pages, until the thread that grants them comes by.
#pragma once

#include <deque>
#include <mutex>
#include <optional>

#include "uffd/address_space.h"

namespace farpage::pager {

// Threads: any.
class RunQueue {
 public:
  static constexpr size_t kMaxRuns = 256;

  // A wish too many is forgotten: nobody may rely on one.
  void push(uffd::PageRun run) {
    const std::lock_guard lock(mutex_);
    if (runs_.size() < kMaxRuns && run.pages > 0) runs_.push_back(run);
  }
  // At most `pages` pages, from the front; nullopt when there are none.
  std::optional<uffd::PageRun> take(uint32_t pages) {
    const std::lock_guard lock(mutex_);
    if (runs_.empty()) return std::nullopt;
    uffd::PageRun& front = runs_.front();
    if (front.pages <= pages) {
      const uffd::PageRun whole = front;
      runs_.pop_front();
      return whole;
    }
    const uffd::PageRun part{front.first, pages};
    front.first.value += pages;
    front.pages -= pages;
    return part;
  }
  bool empty() const {
    const std::lock_guard lock(mutex_);
    return runs_.empty();
  }

 private:
  mutable std::mutex mutex_;
  std::deque<uffd::PageRun> runs_;
};

}  // namespace farpage::pager
