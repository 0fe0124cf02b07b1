#include "pager/touch_recorder.h"

#include <algorithm>

#include "pager/pages/page_table.h"

namespace farpage::pager {

void TouchRecorder::add(PageIndex page, AccessKind kind) {
  if (page.value >= kMaxTracePages) return;
  const MutexLock lock(mutex_);
  if (accesses_.size() >= kMaxTraceAccesses) return;
  pages_ = std::max(pages_, page.value + 1);
  accesses_.push_back({static_cast<uint32_t>(page.value), kind});
}

uint64_t TouchRecorder::size() const {
  const MutexLock lock(mutex_);
  return accesses_.size();
}

std::optional<AccessTrace> TouchRecorder::trace() const {
  const MutexLock lock(mutex_);
  if (accesses_.empty()) return std::nullopt;
  AccessTrace trace(pages_);
  for (const PageAccess& access : accesses_) trace.add(access);
  return trace.without_gaps(kPagesPerBlock);
}

}  // namespace farpage::pager
