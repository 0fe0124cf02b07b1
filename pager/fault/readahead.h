// Readahead: the thread that fetches the ranges of MADV_WILLNEED.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "pager/core.h"
#include "pager/pages/run_list.h"

namespace farpage::pager {

// It reads the ranges of the target one after the other, so that each absent page is an ordinary
// fault and the fault workers fetch it: no second path installs pages. It uses only room below the
// high-water mark; pages that do not fit are skipped.
// Threads: one of its own; request() from any. It may wait for a page of the target, so it ends
// before the fault workers do.
class Readahead {
 public:
  explicit Readahead(Core& core);
  ~Readahead();
  Readahead(const Readahead&) = delete;
  Readahead& operator=(const Readahead&) = delete;

  void request(uffd::PageRun run);
  // The target has cancelled the hint.
  void forget(uffd::PageRun run);

 private:
  PageState settled_state(PageIndex page) const;
  void run();
  void bring_in(PageIndex page);

  Core& core_;
  std::mutex mutex_;
  RunList wanted_;  // guarded by mutex_
  std::condition_variable changed_;
  std::atomic<bool> stop_{false};
  std::jthread thread_;
};

}  // namespace farpage::pager
