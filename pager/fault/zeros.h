// Zeros ahead of a walk through memory that was never used.
#pragma once

#include "pager/target.h"

namespace farpage::pager {

// Pages that are about to be written get frames at once.
inline uffd::ZeroFrames frames_for(uffd::FaultKind kind) {
  return kind == uffd::FaultKind::kMissingRead ? uffd::ZeroFrames::kShared : uffd::ZeroFrames::kOwn;
}

// Predicts the next pages of a walk through fresh memory that has reached `page`, which is Empty.
// The page table itself has the history: the prediction is as long as the run of used pages
// directly behind `page`, at most `limit`, upwards or downwards. Any number of walks may alternate.
// `sequential`: the program has announced an upward walk. The run starts or ends with `page`, and
// all of its pages are Empty.
uffd::PageRun fresh_walk(const PageTable& table, PageIndex page, uint32_t limit, bool sequential);

// Answers a fault on an Empty page with zeros, and installs those of the walk in the same call, so
// all of them belong to one mapping. The caller has taken room for the page of the fault; room for
// the others is taken here, as far as faults do not need it (Budget). True: the fault is answered.
// False: its page is unchanged, but others may be installed. Threads: fault workers.
bool fill_walk(Target& target, WorkerCounts& counts, const uffd::Fault& fault, PageWord word,
               uffd::PageRun walk);

}  // namespace farpage::pager
