// Zeros ahead of a walk through memory that was never used.
#pragma once

#include "pager/core.h"

namespace farpage::pager {

// Pages that are about to be written get frames at once.
inline uffd::ZeroFrames frames_for(uffd::FaultKind kind) {
  return kind == uffd::FaultKind::kMissingRead ? uffd::ZeroFrames::kShared : uffd::ZeroFrames::kOwn;
}

// Which pages a walk through fresh memory uses next: it has come to `page`, which is Empty. The
// page table itself remembers the way: as many pages as lie behind it, used without a gap, are its
// next ones, at most `limit`, upwards or downwards. Any number of walks may alternate.
// `sequential`: the program has said that it walks upwards. The run has `page` in it, at one end,
// and Empty pages only.
uffd::PageRun fresh_walk(const PageTable& table, PageIndex page, uint32_t limit, bool sequential);

// Answers a fault of an Empty page with zeros, and places those of the walk as well, by one call:
// so all are of one mapping. The caller has taken room for the page of the fault; room for the
// others is taken here, from what faults leave (Budget). True: the fault is answered. False: its
// page is as it was, though others may be there. Threads: fault workers.
bool fill_walk(Core& core, WorkerStats& stats, const uffd::Fault& fault, PageWord word,
               uffd::PageRun walk);

}  // namespace farpage::pager
