#include "library/prefault.h"

#include <sys/mman.h>

#include <atomic>
#include <cerrno>

#include "base/strong.h"

#ifndef MADV_POPULATE_READ  // Linux 5.14
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

namespace farpage::library {
namespace {

// For older kernels: touches the pages like the program would, including SIGBUS.
void touch(std::span<std::byte> pages, bool writable) {
  for (size_t at = 0; at < pages.size(); at += kPageBytes) {
    std::atomic_ref<std::byte> first(pages[at]);
    std::byte seen = first.load(std::memory_order_relaxed);
    // Rewrites the present value atomically, so that no concurrent write is lost.
    while (writable && !first.compare_exchange_weak(seen, seen, std::memory_order_relaxed)) {
    }
  }
}

tl::unexpected<Error> lost_page() {
  return fail(ErrorCode::kUnavailable, "prefault: a page of the range is lost; the log says which");
}

}  // namespace

Status prefault(std::span<std::byte> pages, bool writable) {
  const int advice = writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
  while (::madvise(pages.data(), pages.size(), advice) != 0) {
    switch (errno) {
      case EINTR:
      case EAGAIN:
        continue;
      case EINVAL:
        touch(pages, writable);
        return {};
      case EFAULT:
      case EHWPOISON:
        return lost_page();
      default:
        return fail_errno("prefault: madvise(POPULATE)");
    }
  }
  return {};
}

Status prefault_here(pager::Pager& pager, uffd::PageRun run, bool writable) {
  for (uint64_t i = 0; i < run.pages; ++i) {
    const PageIndex page{run.first.value + i};
    while (const auto missing = pager.next_fault(page, writable)) {
      if (pager.is_lost(page)) return lost_page();
      pager.resolve(page, *missing);
    }
  }
  return {};
}

void bring_in_here(pager::Pager& pager, uffd::PageRun run) {
  for (uint64_t i = 0; i < run.pages && pager.has_spare_room(); ++i) {
    const PageIndex page{run.first.value + i};
    if (pager.is_away(page)) pager.resolve(page, uffd::FaultKind::kMissingRead);
  }
}

}  // namespace farpage::library
