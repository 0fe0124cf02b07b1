// ColdWishes: what the target has said that it does not need soon.
#pragma once

#include <atomic>
#include <optional>

#include "pager/run_queue.h"

namespace farpage::pager {

// A page can leave only to a slab that is leased. Wishes that come earlier wait for the next lease.
//
// Threads: any.
class ColdWishes {
 public:
  // Asked for again and again, it is one wish.
  void push(uffd::PageRun run) {
    forget(run);
    ready_.push(run);
  }
  void forget(uffd::PageRun run) {
    ready_.forget(run);
    waiting_.forget(run);
  }
  // The next ones that may be granted, at most `pages`.
  std::optional<uffd::PageRun> take(uint32_t pages) { return ready_.take(pages); }
  bool empty() const { return ready_.empty(); }

  // Of what was taken since leases_seen() gave `seen`: pages without a slab.
  uint32_t leases_seen() const { return leases_.load(std::memory_order_seq_cst); }
  void put_off(uffd::PageRun run, uint32_t seen) {
    waiting_.push(run);
    if (leases_seen() != seen) waiting_.move_to(ready_);
  }
  // A slab has been leased.
  void leased() {
    leases_.fetch_add(1, std::memory_order_seq_cst);
    waiting_.move_to(ready_);
  }

 private:
  RunQueue ready_;
  RunQueue waiting_;
  std::atomic<uint32_t> leases_{0};
};

}  // namespace farpage::pager
