// Fetching pages from the calling thread, so that a lost page is an error, not SIGBUS.
#pragma once

#include <span>

#include "base/result.h"
#include "pager/pager.h"

namespace farpage::library {

// By the kernel. Whole pages; `writable`: the first write does not fault either. kUnavailable: a
// page is lost.
Status prefault(std::span<std::byte> pages, bool writable);

// By the pager, in this thread: for windows on which system calls fail with EFAULT. Same results.
Status prefault_here(pager::Pager& pager, uffd::PageRun run, bool writable);

// Fetches remote pages of the run, while there is room without evicting others.
void bring_in_here(pager::Pager& pager, uffd::PageRun run);

}  // namespace farpage::library
