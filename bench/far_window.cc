#include "bench/far_window.h"

#include <fmt/format.h>

#include <thread>

#include "base/check.h"

namespace farpage::bench {
namespace {

// Polling must leave the CPUs to the evictor.
constexpr Nanoseconds kRecheck = std::chrono::microseconds(200);
// Hints may be dropped: pages that stay longer than this are hinted again.
constexpr Nanoseconds kAskAgain = Milliseconds(100);

}  // namespace

std::string_view to_string(FaultMode mode) {
  switch (mode) {
    case FaultMode::kInWorker:
      return "worker";
    case FaultMode::kInHandler:
      return "handler";
  }
  return "unknown";
}

std::optional<FaultMode> fault_mode_from(std::string_view name) {
  for (const FaultMode mode : {FaultMode::kInWorker, FaultMode::kInHandler})
    if (name == to_string(mode)) return mode;
  return std::nullopt;
}

Result<FarWindow> FarWindow::create(uint64_t pages, const pager::PagerOptions& options,
                                    coordinator::Client& client,
                                    std::vector<std::unique_ptr<rdma::Transport>>& transports,
                                    FaultMode mode) {
  FARPAGE_TRY(memory, library::FarMemory::create(pages, options, client, transports, mode));
  return FarWindow(std::move(memory));
}

void FarWindow::fill(const Content& content, uint64_t first, uint64_t pages) const {
  for (uint64_t page = first; page < first + pages; ++page) content.fill(page, words(page));
}

uint64_t FarWindow::present_pages(uint64_t first, uint64_t pages) const {
  return memory_->present_pages({PageIndex{first}, static_cast<uint32_t>(pages)});
}

Status FarWindow::push_out(uint64_t first, uint64_t pages) const {
  pager::Pager& pager = memory_->pager();
  const uint64_t end = first + pages;
  uint64_t next = first;  // all pages before it are remote
  Instant moved = SteadyClock::read();
  Instant asked{0};
  while (true) {
    const uint64_t before = next;
    while (next < end && pager.is_away(PageIndex{next})) ++next;
    if (next == end) return {};
    const Instant now = SteadyClock::read();
    if (next > before) moved = now;
    if (now - moved > kPushPatience)
      return fail(ErrorCode::kConflict,
                  fmt::format("page {} of {} was not evicted (is the evictor stuck? See the log)",
                              next - first, pages));
    if (asked.count() == 0 || now - std::max(asked, moved) > kAskAgain) {
      pager.hint_cold({PageIndex{next}, static_cast<uint32_t>(end - next)});
      asked = now;
    }
    std::this_thread::sleep_for(kRecheck);
  }
}

void FarWindow::discard(uint64_t first, uint64_t pages) const {
  const Status done = memory_->discard({PageIndex{first}, static_cast<uint32_t>(pages)});
  FARPAGE_CHECK(done.has_value(), "%s", done.error().message().c_str());
}

}  // namespace farpage::bench
