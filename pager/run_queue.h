// RunQueue: wishes of the target about runs of pages, until the thread that grants them comes by.
#pragma once

#include <algorithm>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "uffd/address_space.h"

namespace farpage::pager {

// Threads: any.
class RunQueue {
 public:
  static constexpr size_t kMaxRuns = 256;

  // A wish too many is forgotten: nobody may rely on one.
  void push(uffd::PageRun run) {
    const std::lock_guard lock(mutex_);
    add(run);
  }
  // All of them, behind those of `other`.
  void move_to(RunQueue& other) {
    const std::scoped_lock lock(mutex_, other.mutex_);
    for (const uffd::PageRun& run : std::exchange(runs_, {})) other.add(run);
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
  // No wish covers pages of the run any more: the target has changed its mind.
  void forget(uffd::PageRun run) {
    const std::lock_guard lock(mutex_);
    const uint64_t first = run.first.value;
    const uint64_t end = first + run.pages;
    std::deque<uffd::PageRun> kept;
    for (const uffd::PageRun& wish : runs_) {
      const uint64_t wish_first = wish.first.value;
      const uint64_t wish_end = wish_first + wish.pages;
      keep_part(kept, wish_first, std::min(wish_end, first));
      keep_part(kept, std::max(wish_first, end), wish_end);
    }
    runs_ = std::move(kept);
  }
  bool empty() const {
    const std::lock_guard lock(mutex_);
    return runs_.empty();
  }

 private:
  void add(uffd::PageRun run) {
    if (run.pages == 0) return;
    if (!runs_.empty() && runs_.back().first.value + runs_.back().pages == run.first.value) {
      runs_.back().pages += run.pages;
    } else if (runs_.size() < kMaxRuns) {
      runs_.push_back(run);
    }
  }
  // All of a wish that the run does not touch is kept by one of the two calls above, not by both.
  static void keep_part(std::deque<uffd::PageRun>& kept, uint64_t first, uint64_t end) {
    if (first < end && kept.size() < kMaxRuns)
      kept.push_back({PageIndex{first}, static_cast<uint32_t>(end - first)});
  }

  mutable std::mutex mutex_;
  std::deque<uffd::PageRun> runs_;
};

}  // namespace farpage::pager
