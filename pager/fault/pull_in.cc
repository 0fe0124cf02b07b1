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

// A page that a successor has found in a dead worker's hands may be here already: then reading it
// was no fault, and nobody has changed its word.
void claim_present(Target& target, std::span<const PageIndex> read) {
  const ChangingPages section(target.order);
  for (const PageIndex page : read) {
    const PageWord word = target.table.load(page);
    if (word.state() == PageState::kRemote && word.has(PageWord::kMaybePresent))
      (void)target.claim_present(page, word);
  }
}

}  // namespace

bool pull_in(Target& target) {
  std::vector<std::byte> bytes(kBatchPages * kPageBytes);
  const auto read = [&](std::span<const PageIndex> pages) {
    return target.space.read(pages, std::span(bytes).first(pages.size() * kPageBytes)).has_value();
  };
  Instant moved_at = SteadyClock::read();
  uint64_t left = UINT64_MAX;
  // Again while pages become fewer: the worker that installed one may not have set its state yet.
  while (target.table.away_pages() > 0) {
    uint64_t at = 0;
    while (!target.closing.load(std::memory_order_acquire)) {
      const std::vector<PageIndex> batch = next_batch(target.table, at);
      if (batch.empty()) break;
      // A read of a remote page is a fault of the target, which a worker answers with a READ.
      const bool all = read(batch);
      if (target.order == nullptr && !all) return false;
      for (const PageIndex page : batch)  // one may have been unmapped
        if (all || read({&page, 1})) claim_present(target, {&page, 1});
    }
    const Instant now = SteadyClock::read();
    const uint64_t away = target.table.away_pages();
    if (away < left) moved_at = now;
    left = std::min(left, away);
    if (target.closing.load(std::memory_order_acquire) ||
        now - moved_at > target.options.fault_deadline)
      return false;
    if (away > 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

}  // namespace farpage::pager
