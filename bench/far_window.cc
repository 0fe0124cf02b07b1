#include "bench/far_window.h"

#include <sys/mman.h>

#include <algorithm>

#include "base/check.h"
#include "uffd/own_process.h"

namespace farpage::bench {
namespace {

constexpr Milliseconds kNodePatience{5000};

}  // namespace

Result<FarWindow> FarWindow::create(uint64_t pages, const pager::PagerOptions& options,
                                    coordinator::Client& client,
                                    std::vector<std::unique_ptr<rdma::Transport>>& transports) {
  FARPAGE_TRY(space, uffd::create_own_window(pages));
  const uint64_t base = space->address_of(PageIndex{0});
  FARPAGE_TRY(pager,
              pager::Pager::create(options, std::move(space), client, transports, kNodePatience));
  return FarWindow(base, std::move(pager));
}

void FarWindow::fill(const Content& content, uint64_t first, uint64_t pages) const {
  for (uint64_t page = first; page < first + pages; ++page) content.fill(page, words(page));
}

uint64_t FarWindow::present_pages(uint64_t first, uint64_t pages) const {
  std::vector<unsigned char> states(pages);
  const int result = ::mincore(reinterpret_cast<void*>(base_ + (first << kPageShift)),
                               pages << kPageShift, states.data());
  FARPAGE_CHECK(result == 0, "mincore of %llu pages failed",
                static_cast<unsigned long long>(pages));
  return static_cast<uint64_t>(std::count_if(states.begin(), states.end(),
                                             [](unsigned char state) { return (state & 1) != 0; }));
}

void FarWindow::discard(uint64_t first, uint64_t pages) const {
  pager_->discard({PageIndex{first}, static_cast<uint32_t>(pages)});
  const int result = ::madvise(reinterpret_cast<void*>(base_ + (first << kPageShift)),
                               pages << kPageShift, MADV_DONTNEED);
  FARPAGE_CHECK(result == 0, "madvise of %llu pages failed",
                static_cast<unsigned long long>(pages));
}

}  // namespace farpage::bench
