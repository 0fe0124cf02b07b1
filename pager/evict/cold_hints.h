// ColdHints: the ranges that the target has declared cold (MADV_COLD, MADV_PAGEOUT).
#pragma once

#include <optional>

#include "base/mutex.h"
#include "pager/pages/run_list.h"

namespace farpage::pager {

// A page can be evicted only to a leased slab. Earlier hints wait for the next lease.
//
// Threads: any, but for take(), put_off() and put_back(), which are the evictor's.
class ColdHints {
 public:
  // A repeated hint for the same range counts once.
  void push(uffd::PageRun run) {
    const MutexLock lock(mutex_);
    forget_all(run);
    ready_.push(run);
  }
  void forget(uffd::PageRun run) {
    const MutexLock lock(mutex_);
    forget_all(run);
  }
  bool empty() const {
    const MutexLock lock(mutex_);
    return ready_.empty();
  }
  // A slab has been leased.
  void leased() {
    const MutexLock lock(mutex_);
    lease_since_take_ = true;
    waiting_.move_to(ready_);
  }

  // The next ones that may be granted, at most `pages`.
  std::optional<uffd::PageRun> take(uint32_t pages) {
    const MutexLock lock(mutex_);
    taken_.clear();
    lease_since_take_ = false;
    const auto run = ready_.take(pages);
    if (run) taken_.push(*run);
    return run;
  }
  // A page of the last take() has no slab.
  void put_off(PageIndex page) {
    const MutexLock lock(mutex_);
    if (!taken_.contains(page)) return;  // forgotten meanwhile
    (lease_since_take_ ? ready_ : waiting_).push({page, 1});
  }
  // A page of the last take() could not leave in time.
  void put_back(PageIndex page) {
    const MutexLock lock(mutex_);
    if (taken_.contains(page)) ready_.push({page, 1});
  }

 private:
  void forget_all(uffd::PageRun run) FARPAGE_REQUIRES(mutex_) {
    ready_.forget(run);
    taken_.forget(run);
    waiting_.forget(run);
  }

  mutable Mutex mutex_;
  RunList ready_ FARPAGE_GUARDED_BY(mutex_);
  RunList taken_ FARPAGE_GUARDED_BY(mutex_);  // last
  RunList waiting_ FARPAGE_GUARDED_BY(mutex_);
  bool lease_since_take_ FARPAGE_GUARDED_BY(mutex_) = false;
};

}  // namespace farpage::pager
