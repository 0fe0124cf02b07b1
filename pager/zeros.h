// Zeros: what a page that was never used begins with.
#pragma once

#include "pager/core.h"
#include "pager/trend.h"

namespace farpage::pager {

inline constexpr uint32_t kMaxZeroPages = 16;  // of one call

// Places at most kMaxZeroPages. Those that are about to be written get frames at once, which costs
// less than the kernel's own fault of a first write; the others have none before they are written.
// Threads: fault workers. The outcomes are those of AddressSpace::zero().
uffd::Outcome place_zeros(Core& core, uffd::PageRun run, uffd::FaultKind kind);

// Places those pages of the plan that are Empty, as far as there is room that faults need not
// (Budget), so that the walk meets them without a fault. `kind`: of the walk's last fault.
// Threads: fault workers.
void place_zeros_ahead(Core& core, WorkerStats& stats, const PrefetchPlan& plan,
                       uffd::FaultKind kind);

}  // namespace farpage::pager
