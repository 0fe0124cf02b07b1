// Discarding pages: their contents are not needed any more.
#pragma once

#include "pager/target.h"

namespace farpage::pager {

enum class BusyPages : uint8_t {
  kWait,  // until the fault worker or the evictor that owns the page releases it: every page
          // ends Empty
  kSkip,  // for fault workers, which may own some pages themselves (those detect it when they
          // install), and for callers that must not wait
  kMark,  // the same in a section of Target::order that reads events: what is being fetched becomes
          // Empty when that ends, and nothing else is busy
};

// Every page of the run becomes Empty: its next touch gives zeros. The frames are dropped by the
// target itself, after this returns. False: not every page, without kWait. Threads: any; with kWait
// not a fault worker.
bool discard_pages(Target& target, uffd::PageRun run, BusyPages busy);

}  // namespace farpage::pager
