// TouchRecorder: which pages a target touched, as far as the pager sees it: every fault, and every
// page that is discarded (`farpage run --record-trace`). A touch of a resident page is no
// fault. With a small budget nearly every change of the working set is one, and what such a budget
// hides would be resident under any larger one, too (trace stripping: Puzak, "Analysis of cache
// replacement-algorithms", 1985).
#pragma once

#include <optional>

#include "base/mutex.h"
#include "base/strong.h"
#include "pager/access_trace.h"

namespace farpage::pager {

// Threads: any. The order is that in which the fault workers have read the faults.
class TouchRecorder {
 public:
  // Ignored: pages above kMaxTracePages, and what comes after kMaxTraceAccesses.
  void touched(PageIndex page, bool write) {
    add(page, write ? AccessKind::kWrite : AccessKind::kRead);
  }
  void discarded(PageIndex page) { add(page, AccessKind::kDiscard); }

  uint64_t size() const;
  // Without the 2 MiB blocks that were never touched. nullopt: there was no touch.
  std::optional<AccessTrace> trace() const;

 private:
  void add(PageIndex page, AccessKind kind);

  mutable Mutex mutex_;
  AccessTrace accesses_ FARPAGE_GUARDED_BY(mutex_){kMaxTracePages};
};

}  // namespace farpage::pager
