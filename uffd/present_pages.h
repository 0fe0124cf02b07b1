// Which pages of another process are in its memory: PAGEMAP_SCAN of Linux 6.7.
// Source: Documentation/admin-guide/mm/pagemap.rst.
#pragma once

#include <cstdint>
#include <functional>

#include "base/fd.h"
#include "base/result.h"

namespace farpage::uffd {

// Calls `found(begin, end)` for each range of pages in [begin, end) that are present or in swap;
// the kernel's shared zero page is not counted. `pagemap`: /proc/PID/pagemap. kUnavailable: the
// process is gone.
Status find_present_pages(const Fd& pagemap, uint64_t begin, uint64_t end,
                          const std::function<void(uint64_t, uint64_t)>& found);

}  // namespace farpage::uffd
