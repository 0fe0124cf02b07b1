#include "pager/touch_recorder.h"

#include "pager/pages/page_table.h"

namespace farpage::pager {

void TouchRecorder::add(PageIndex page, AccessKind kind) {
  if (page.value >= kMaxTracePages) return;
  const MutexLock lock(mutex_);
  if (accesses_.size() >= kMaxTraceAccesses) return;
  accesses_.add({static_cast<uint32_t>(page.value), kind});
}

uint64_t TouchRecorder::size() const {
  const MutexLock lock(mutex_);
  return accesses_.size();
}

std::optional<AccessTrace> TouchRecorder::trace() const {
  const MutexLock lock(mutex_);
  if (accesses_.size() == 0) return std::nullopt;
  return accesses_.without_gaps(kPagesPerBlock);
}

}  // namespace farpage::pager
