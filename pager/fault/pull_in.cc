#include "pager/fault/pull_in.h"

#include <algorithm>
#include <thread>
#include <vector>

namespace farpage::pager {
namespace {

constexpr size_t kBatchPages = 256;

// The next remote pages from `at` on; advances `at` past the last page examined.
std::vector<PageIndex> next_batch(const PageTable& table, uint64_t& at) {
  std::vector<PageIndex> batch;
  for (at = table.next_used(at); at < table.pages() && batch.size() < kBatchPages;
       at = table.next_used(at + 1))
    if (is_away(table.load(PageIndex{at}))) batch.push_back(PageIndex{at});
  return batch;
}

}  // namespace

bool pull_in(Target& target) {
  std::vector<std::byte> bytes(kBatchPages * kPageBytes);
  uint64_t at = 0;
  while (!target.closing.load(std::memory_order_acquire)) {
    const std::vector<PageIndex> batch = next_batch(target.table, at);
    if (batch.empty()) break;
    // A read of a remote page is a fault of the target, which a worker answers with a READ.
    if (!target.space.read(batch, std::span(bytes).first(batch.size() * kPageBytes))) return false;
  }
  // The worker that installed a page may not have set its state yet.
  const Instant start = SteadyClock::read();
  while (target.table.away_pages() > 0) {
    if (target.closing.load(std::memory_order_acquire) ||
        SteadyClock::read() - start > target.options.fault_deadline)
      return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

}  // namespace farpage::pager
