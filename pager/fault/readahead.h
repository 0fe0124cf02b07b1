// Readahead: the thread that fetches the ranges of MADV_WILLNEED, for all targets of an engine.
#pragma once

#include <map>
#include <thread>

#include "base/mutex.h"
#include "pager/pages/run_list.h"
#include "pager/target.h"

namespace farpage::pager {

// It reads the ranges of the target one after the other, so that each absent page is an ordinary
// fault and the fault workers fetch it: no second path installs pages. It uses only room below the
// high-water mark; pages that do not fit are skipped. Targets take turns, page by page.
// Threads: one of its own; all calls from any. It may wait for a page of a target, so it ends
// before the fault workers do.
class Readahead {
 public:
  Readahead();
  ~Readahead();
  Readahead(const Readahead&) = delete;
  Readahead& operator=(const Readahead&) = delete;

  void request(Target& target, uffd::PageRun run);
  // The target has cancelled the hint.
  void forget(Target& target, uffd::PageRun run);
  // Returns when no page of the target is being read; none will be. Target::closing is set.
  void remove(Target& target);

 private:
  void run();
  static void bring_in(Target& target, PageIndex page);

  Mutex mutex_;
  ConditionVariable changed_;
  std::map<Target*, RunList> wanted_ FARPAGE_GUARDED_BY(mutex_);  // none is empty
  Target* last_ FARPAGE_GUARDED_BY(mutex_) = nullptr;             // whose turn it was
  Target* reads_ FARPAGE_GUARDED_BY(mutex_) = nullptr;
  bool stop_ FARPAGE_GUARDED_BY(mutex_) = false;
  std::jthread thread_;
};

}  // namespace farpage::pager
