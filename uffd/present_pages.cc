#include "uffd/present_pages.h"

#include <sys/ioctl.h>

#include <array>
#include <cerrno>

#include "uffd/kernel_abi.h"

namespace farpage::uffd {

Status find_present_pages(const Fd& pagemap, uint64_t begin, uint64_t end,
                          const std::function<void(uint64_t, uint64_t)>& found) {
  std::array<page_region, 512> regions;
  while (begin < end) {
    pm_scan_arg scan{};
    scan.size = sizeof scan;
    scan.start = begin;
    scan.end = end;
    scan.vec = reinterpret_cast<uint64_t>(regions.data());
    scan.vec_len = regions.size();
    scan.category_anyof_mask = PAGE_IS_PRESENT | PAGE_IS_SWAPPED;
    scan.category_inverted = PAGE_IS_PFNZERO;
    scan.category_mask = PAGE_IS_PFNZERO;
    scan.return_mask = PAGE_IS_PRESENT | PAGE_IS_SWAPPED;
    const int count = ::ioctl(pagemap.get(), PAGEMAP_SCAN, &scan);
    if (count < 0 && errno == ESRCH) return fail(ErrorCode::kUnavailable, "the process is gone");
    if (count < 0) return fail_errno("PAGEMAP_SCAN");
    for (int i = 0; i < count; ++i)
      found(regions[static_cast<size_t>(i)].start, regions[static_cast<size_t>(i)].end);
    if (scan.walk_end <= begin) return fail(ErrorCode::kIo, "PAGEMAP_SCAN made no progress");
    begin = scan.walk_end;
  }
  return {};
}

}  // namespace farpage::uffd
