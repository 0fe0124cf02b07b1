#include "bench/far_window.h"

#include "base/check.h"

namespace farpage::bench {

Result<FarWindow> FarWindow::create(uint64_t pages, const pager::PagerOptions& options,
                                    coordinator::Client& client,
                                    std::vector<std::unique_ptr<rdma::Transport>>& transports) {
  FARPAGE_TRY(memory, library::FarMemory::create(pages, options, client, transports));
  return FarWindow(std::move(memory));
}

void FarWindow::fill(const Content& content, uint64_t first, uint64_t pages) const {
  for (uint64_t page = first; page < first + pages; ++page) content.fill(page, words(page));
}

uint64_t FarWindow::present_pages(uint64_t first, uint64_t pages) const {
  return memory_.present_pages({PageIndex{first}, static_cast<uint32_t>(pages)});
}

void FarWindow::discard(uint64_t first, uint64_t pages) const {
  const Status done = memory_.discard({PageIndex{first}, static_cast<uint32_t>(pages)});
  FARPAGE_CHECK(done.has_value(), "%s", done.error().message().c_str());
}

}  // namespace farpage::bench
