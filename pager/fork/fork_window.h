// ForkWindow: what a pager does while its target forks, so that the child gets exactly the pages
// that the parent had when the kernel copied its memory.
//
// The kernel copies present pages and does not know of remote ones. So a snapshot S is taken before
// the fork, and nothing is evicted from S to the end of the fork. Until the copy only these changes
// can happen:
//
//   Remote -> present    the child may have the page or not: Remote, with kMaybePresent
//   Empty  -> present    the same, and a zero page is placed where the kernel finds nothing
//   Clean  -> Dirty      present in the child as well: Dirty is always right
//   discarded            applied to S too, if it was requested before the copy (discard())
//
// The event that brings the child's userfaultfd is queued after the copy, and the forking thread
// waits until it is read; at that time the child's page words are derived from S and the parent's
// present words.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "pager/core.h"
#include "pager/fork/inheritance.h"

namespace farpage::pager {

// Threads: open(), close() and discard() from the thread that answers the target's requests;
// born() from fault workers.
class ForkWindow {
 public:
  ForkWindow(Core& core, OnChild on_child) : core_(core), on_child_(std::move(on_child)) {}

  // Eviction is paused from before open() until after close().
  Status open();
  // `forked`: there is a child. Its event may still be processed by a worker: waits for that.
  void close(bool forked);
  // As discard_pages() with kWait, at any time.
  void discard(uffd::PageRun run);

  // The kernel has copied the target's memory.
  void born(std::unique_ptr<uffd::AddressSpace> child);

 private:
  Result<std::unique_ptr<ProcessImage>> make_image(uffd::AddressSpace& child) const;
  Result<std::unique_ptr<ProcessImage>> make_lost_image() const;

  Core& core_;
  const OnChild on_child_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<ProcessImage> snapshot_;  // guarded by mutex_; null: closed
  size_t children_ = 0;                     // guarded by mutex_; of this window
  // Guarded by mutex_. Children that could not get a pager: closing their userfaultfd would turn
  // their remote pages into zeros.
  std::vector<std::unique_ptr<uffd::AddressSpace>> stranded_;
};

}  // namespace farpage::pager
