// Bringing pages in from the calling thread, so that a page that is lost is an error, not SIGBUS.
#pragma once

#include <span>

#include "base/result.h"
#include "pager/pager.h"

namespace farpage::library {

// By the kernel. Whole pages; `writable`: the first write is no fault either. kUnavailable: a page
// is lost.
Status prefault(std::span<std::byte> pages, bool writable);

// By the pager, in this thread: where the kernel's own touch would be EFAULT. The same results.
Status prefault_here(pager::Pager& pager, uffd::PageRun run, bool writable);

// Those pages of the run that are away, while there is room without pushing others out.
void bring_in_here(pager::Pager& pager, uffd::PageRun run);

}  // namespace farpage::library
