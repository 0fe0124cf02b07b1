// FirstFaults: what a forked child needs before it is worth a pager. Most children exec, or do a
// little and end: they take some fresh pages, and write to some that are write-protected.
#pragma once

#include "pager/inheritance.h"

namespace farpage::pager {

// Threads: one, while the child has no pager. The inheritance outlives it.
class FirstFaults {
 public:
  // Pages that are given without a pager, and thus without a budget.
  static constexpr size_t kMaxPages = 64;

  explicit FirstFaults(Inheritance& child) : child_(child) {}

  // Reads and answers the child's events. False: it needs a pager; who was not answered has been
  // woken, and faults again.
  bool answer();
  // The child gives these pages up.
  void discard(uffd::PageRun run);

 private:
  bool answer_fault(const uffd::Fault& fault);
  bool give_zeros(PageIndex page, PageWord word);
  bool unprotect(PageIndex page, PageWord word);

  Inheritance& child_;
  size_t pages_ = 0;
};

}  // namespace farpage::pager
