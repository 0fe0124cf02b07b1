// ForkInProgress: what a pager does while its target forks, so that the child gets exactly the
// pages that the parent had when the kernel copied its memory.
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
// waits until it is read. A fault worker reads it and only leaves the child in a list: the thread
// that answers the target's requests adopts it, which copies the page table. The child's page words
// are derived from S and the parent's words at that time.
#pragma once

#include <memory>
#include <vector>

#include "base/doorbell.h"
#include "base/mutex.h"
#include "pager/fork/inheritance.h"
#include "pager/target.h"

namespace farpage::pager {

// Threads: arrived() by fault workers, and it never waits for the others. The rest by one thread at
// a time (a mutex sees to it): the one that answers the target's requests.
class ForkInProgress {
 public:
  ForkInProgress(Target& target, const Doorbell& arrivals, OnChild on_child)
      : target_(target), arrival_bell_(arrivals), on_child_(std::move(on_child)) {}
  // Goes on with the fork that a dead pager has opened, after which `children` were adopted.
  void take_over(std::unique_ptr<ProcessImage> snapshot, size_t children);

  // Eviction is paused from before open() until after close().
  Status open();
  // Where the snapshot's table is kept; 0: there is none.
  uint64_t snapshot_table();
  // `forked`: there is a child. Waits until its event has been read, and adopts it. Then `closing`
  // is called, before the snapshot is dropped.
  void close(bool forked, const std::function<void()>& closing = {});
  // As discard_pages() with kWait, at any time.
  void discard(uffd::PageRun run);
  // As Pager::try_discard().
  bool try_discard(uffd::PageRun run);

  // The kernel has copied the target's memory. Rings the doorbell.
  void arrived(std::unique_ptr<uffd::AddressSpace> child);
  // The same where events are ordered, in the section that has read this one: since the copy
  // nothing could be placed or moved, so the child has exactly what the words say now.
  void arrived_in_order(std::unique_ptr<uffd::AddressSpace> child);
  // Hands the children that have arrived to on_child.
  void adopt();
  bool has_arrivals() const;  // any thread
  // As Pager::guard_shared(), by any thread.
  uint64_t guard_shared();

 private:
  struct Arrival {
    std::unique_ptr<uffd::AddressSpace> child;
    std::unique_ptr<ProcessImage> image;  // null: to be made
  };
  Result<std::unique_ptr<ProcessImage>> make_image(uffd::AddressSpace& child) const
      FARPAGE_REQUIRES(mutex_);
  Result<std::unique_ptr<ProcessImage>> make_lost_image() const;
  uint64_t guard_block(PageIndex block);
  bool copied() FARPAGE_REQUIRES(mutex_);
  void adopt_arrivals() FARPAGE_REQUIRES(mutex_);
  void arrived(Arrival arrival);
  void adopt_one(Arrival arrival) FARPAGE_REQUIRES(mutex_);

  Target& target_;
  const Doorbell& arrival_bell_;
  const OnChild on_child_;

  mutable Mutex arrivals_mutex_;  // held for a few instructions
  ConditionVariable arrival_;
  std::vector<Arrival> arrivals_ FARPAGE_GUARDED_BY(arrivals_mutex_);

  Mutex mutex_;
  std::unique_ptr<ProcessImage> snapshot_ FARPAGE_GUARDED_BY(mutex_);  // null: closed
  size_t children_ FARPAGE_GUARDED_BY(mutex_) = 0;                     // of this fork
  // Children that could not get a pager: closing their userfaultfd would turn their remote pages
  // into zeros.
  std::vector<std::unique_ptr<uffd::AddressSpace>> stranded_ FARPAGE_GUARDED_BY(mutex_);
};

}  // namespace farpage::pager
