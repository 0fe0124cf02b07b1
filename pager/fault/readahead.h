// Readahead: the thread that fetches the ranges of MADV_WILLNEED, for all targets of an engine.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

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

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Target*, RunList> wanted_;  // guarded by mutex_; none is empty
  Target* last_ = nullptr;             // guarded by mutex_; whose turn it was
  Target* reads_ = nullptr;            // guarded by mutex_
  bool stop_ = false;                  // guarded by mutex_
  std::jthread thread_;
};

}  // namespace farpage::pager
