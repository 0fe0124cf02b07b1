// RunQueue: wishes of the target about runs of pages, until the thread that grants them comes by.
#pragma once

#include <mutex>
#include <optional>

#include "pager/run_list.h"

namespace farpage::pager {

// A wish too many is forgotten: nobody may rely on one. Threads: any.
class RunQueue {
 public:
  void push(uffd::PageRun run) {
    const std::lock_guard lock(mutex_);
    runs_.push(run);
  }
  // At most `pages` pages, from the front; nullopt when there are none.
  std::optional<uffd::PageRun> take(uint32_t pages) {
    const std::lock_guard lock(mutex_);
    return runs_.take(pages);
  }
  // The target has changed its mind.
  void forget(uffd::PageRun run) {
    const std::lock_guard lock(mutex_);
    runs_.forget(run);
  }
  bool empty() const {
    const std::lock_guard lock(mutex_);
    return runs_.empty();
  }

 private:
  mutable std::mutex mutex_;
  RunList runs_;
};

}  // namespace farpage::pager
