// Zeros: what a page that was never used begins with.
#pragma once

#include "pager/core.h"

namespace farpage::pager {

inline constexpr uint32_t kMaxZeroPages = 16;  // of one call

// Places at most kMaxZeroPages. Those that are about to be written get frames at once, which costs
// less than the kernel's own fault of a first write; the others have none before they are written.
// Threads: fault workers. The outcomes are those of AddressSpace::zero().
uffd::Outcome place_zeros(Core& core, uffd::PageRun run, uffd::FaultKind kind);

// Which pages a walk through fresh memory will use next: it has come to `page`, the first that is
// Empty. The page table itself remembers the way: as many pages as lie behind it, used without a
// gap, are placed before it, at most `limit`, upwards or downwards. So what is placed in vain is
// never more than what was used, and any number of walks may alternate. `sequential`: the program
// has said that it walks upwards. Pages of the run that are Empty are to be placed.
uffd::PageRun fresh_pages_ahead(const PageTable& table, PageIndex page, uint32_t limit,
                                bool sequential);

// Places those, as far as there is room that faults need not (Budget), so that the walk meets them
// without a fault. `fault` has been answered with zeros.
// Threads: fault workers.
void place_zeros_ahead(Core& core, WorkerStats& stats, const uffd::Fault& fault, uint32_t limit,
                       bool sequential);

}  // namespace farpage::pager
