// FirstFaults: serves a forked child before it needs a pager. Most children exec, or end soon: they
// use some fresh pages, and write to some that are write-protected.
#pragma once

#include "pager/fork/inheritance.h"

namespace farpage::pager {

// Threads: one, while the child has no pager. The inheritance outlives it.
class FirstFaults {
 public:
  // Pages that the child gets without a pager, and so without a budget.
  static constexpr size_t kMaxPages = 64;

  explicit FirstFaults(Inheritance& child) : child_(child) {}

  // Reads and answers the child's events. False: it needs a pager; threads that were not answered
  // have been woken, and fault again.
  bool answer();
  // The child discards these pages.
  void discard(uffd::PageRun run);

 private:
  bool answer_fault(const uffd::Fault& fault);
  bool give_zeros(PageIndex page, PageWord word);
  bool unprotect(PageIndex page, PageWord word);

  Inheritance& child_;
  size_t pages_ = 0;
};

}  // namespace farpage::pager
