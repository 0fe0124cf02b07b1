#include "pager/pull_in.h"

#include <algorithm>
#include <thread>
#include <vector>

namespace farpage::pager {
namespace {

constexpr size_t kBatchPages = 256;

// The next pages that are away, from `at` on, which moves behind the last one looked at.
std::vector<PageIndex> next_batch(const PageTable& table, uint64_t& at) {
  std::vector<PageIndex> batch;
  for (const uint64_t end = table.used_pages(); at < end && batch.size() < kBatchPages; ++at)
    if (is_away(table.load(PageIndex{at}))) batch.push_back(PageIndex{at});
  return batch;
}

}  // namespace

bool pull_in(Core& core) {
  std::vector<std::byte> bytes(kBatchPages * kPageBytes);
  uint64_t at = 0;
  while (!core.stopping.load(std::memory_order_acquire)) {
    const std::vector<PageIndex> batch = next_batch(core.table, at);
    if (batch.empty()) break;
    // Reading an absent page is a fault of the target, which a worker answers with a READ.
    if (!core.space.read(batch, std::span(bytes).first(batch.size() * kPageBytes))) return false;
  }
  // A page that is present may not be called so yet by the worker that has installed it.
  const Instant start = SteadyClock::read();
  while (core.table.away_pages() > 0) {
    if (core.stopping.load(std::memory_order_acquire) ||
        SteadyClock::read() - start > core.options.fault_deadline)
      return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

}  // namespace farpage::pager
